"""How much each principal may own in artifacts, with what is on its way counted in.

What is recorded is asked of the records, which all hubs share; what this process is taking in is counted here, so that
uploads at once cannot pass the quota together. Several hubs may pass it by what they take in at the same moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from toolhub_service.domain.artifact_ports import ArtifactRecords
from toolhub_service.domain.errors import ErrorKind, refuse

_RECORD_BYTES = 1_024
"""What an artifact counts beside its bytes, so that empty ones are not free."""


@dataclass(slots=True)
class _Taking:
    """What this process is taking in for one principal."""

    bytes: int = 0
    running: int = 0
    ended: int = 0


class Room:
    """`async with room.claim(principal) as claim`: `grow` with every chunk, `check` before it is recorded."""

    def __init__(self, records: ArtifactRecords, quota_bytes: int) -> None:
        self._records = records
        self._quota_bytes = quota_bytes
        self._taking: dict[str, _Taking] = {}

    @asynccontextmanager
    async def claim(self, principal_id: str) -> AsyncIterator[Claim]:
        """Holds its bytes until the body ends: by then they are recorded or gone. Raises as `Claim.grow`."""
        taking = self._taking.setdefault(principal_id, _Taking())
        claim = Claim(taking, self._quota_bytes)
        taking.running += 1
        try:
            claim.used_bytes = await self.used_bytes(principal_id)
            claim.grow(_RECORD_BYTES)
            yield claim
            # The body ends when what it kept is recorded.
        finally:
            taking.bytes -= claim.bytes
            taking.running -= 1
            taking.ended += 1
            if not taking.running:
                self._taking.pop(principal_id, None)

    async def check(self, principal_id: str, claim: Claim) -> None:
        """Once all bytes are in: others may have been recorded meanwhile. Raises as `Claim.grow`."""
        claim.used_bytes = await self.used_bytes(principal_id)
        claim.grow(0)

    async def used_bytes(self, principal_id: str) -> int:
        """What is recorded, asked again when something ended meanwhile: it would be counted by neither side."""
        taking = self._taking[principal_id]
        while True:
            ended = taking.ended
            count, size_bytes = await self._records.usage(principal_id)
            if taking.ended == ended:
                return size_bytes + count * _RECORD_BYTES


class Claim:
    """Bytes on their way to one artifact."""

    def __init__(self, taking: _Taking, quota_bytes: int) -> None:
        self._taking = taking
        self._quota_bytes = quota_bytes
        self.used_bytes = 0
        self.bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Raises ToolFailure BUDGET_EXCEEDED beyond the quota."""
        self.bytes += size_bytes
        self._taking.bytes += size_bytes
        if self.used_bytes + self._taking.bytes > self._quota_bytes:
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                f"The artifacts of this caller would pass their quota of {self._quota_bytes} bytes. Keep less, or wait "
                "until older ones expire.",
                quota_bytes=self._quota_bytes,
                used_bytes=self.used_bytes,
            )
