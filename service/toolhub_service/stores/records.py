"""Approvals, pins and the records of artifacts, over any `RecordStore`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.reasons import Reason
from toolhub_service.domain.source import Pin, PinFilter
from toolhub_service.stores.codec import (
    decode_approval,
    decode_artifact,
    decode_pin,
    encode_approval,
    encode_artifact,
    encode_pin,
)
from toolhub_service.stores.record_store import BrokenRecord, Key, RecordStore, Table, Where

OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.APPROVED)


def _approval_row(approval: Approval) -> dict[str, Any]:
    binding = approval.binding
    return {
        "approval_id": approval.approval_id,
        "version": approval.version,
        "state": approval.state.value,
        "is_open": approval.state in OPEN_STATES,
        "binding": json.dumps(binding.parts),
        "principal": binding.principal,
        "tool": binding.tool,
        "requested_at_unix_ms": approval.requested_at_unix_ms,
        "expires_at_unix_ms": approval.expires_at_unix_ms,
    }


def _artifact_row(artifact: Artifact) -> dict[str, Any]:
    return {
        "artifact_id": artifact.artifact_id,
        "sha256": artifact.sha256,
        "principal": artifact.principal,
        "size_bytes": artifact.size_bytes,
        "expires_at_unix_ms": artifact.expires_at_unix_ms,
    }


def _pin_row(pin: Pin) -> dict[str, Any]:
    return {
        "source": pin.source,
        "tool": pin.tool,
        "digest": pin.digest,
        "version": pin.version,
        "state": pin.state.value,
        "seen_at_unix_ms": pin.seen_at_unix_ms,
    }


APPROVALS: Final = Table(
    "approvals",
    ("approval_id",),
    _approval_row,
    encode_approval,
    decode_approval,
    order=("requested_at_unix_ms", "approval_id"),
    ends=True,
    unique="binding",
)
ARTIFACTS: Final = Table(
    "artifacts",
    ("artifact_id",),
    _artifact_row,
    encode_artifact,
    decode_artifact,
    order=("expires_at_unix_ms", "artifact_id"),
    has_version=False,
    shared="sha256",
    total=("principal", "size_bytes"),
)
PINS: Final = Table(
    "pins",
    ("source", "tool", "digest"),
    _pin_row,
    encode_pin,
    decode_pin,
    order=("seen_at_unix_ms", "source", "tool", "digest"),
)


class Approvals:
    """Implements `ApprovalStore`."""

    def __init__(self, records: RecordStore[Approval]) -> None:
        self._records = records

    async def create(self, approval: Approval) -> Approval | None:
        return await self._records.create(approval)

    async def get(self, approval_id: str) -> Approval | None:
        return await self._records.get((approval_id,))

    async def put(self, approval: Approval) -> bool:
        return await self._records.put([approval])

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        states = {state.value for state in where.states}
        terms = Where({"principal": where.principal}, {"state": states}, {"tool": where.tool})
        return await self._records.page(terms, after=after, limit=limit)

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        return await self._records.expired(now_unix_ms, limit)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await self._records.forget(before_unix_ms, limit)

    def listen(self, on_event: Callable[[Approval | None], None]) -> None:
        self._records.listen(on_event)

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()


class Artifacts:
    """Implements `ArtifactRecords`."""

    def __init__(self, records: RecordStore[Artifact]) -> None:
        self._records = records

    async def add(self, artifact: Artifact) -> None:
        await self._records.create(artifact)

    async def get(self, artifact_id: str) -> Artifact | None:
        return await self._records.get((artifact_id,))

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]:
        return await self._records.expired(now_unix_ms, limit)

    async def remove(self, artifact_id: str) -> bool:
        return await self._records.remove((artifact_id,))

    async def usage(self, principal: str) -> tuple[int, int]:
        return await self._records.totals(principal)

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()


class Pins:
    """Implements `PinStore`: all of a source come back whole and under their own names, or the source is blocked."""

    def __init__(self, records: RecordStore[Pin]) -> None:
        self._records = records

    async def of_source(self, source: str) -> Sequence[Pin]:
        """Raises HubFailure FAILED_PRECONDITION when one cannot be read."""
        try:
            return await self._records.find("source", source)
        except BrokenRecord as broken:  # it may be the one that was rejected: nothing is guessed from the others
            raise _unreadable(broken.key) from None

    async def put(self, pins: Sequence[Pin]) -> bool:
        if len({pin.key for pin in pins}) < len(pins):
            return False  # of two changes to one the first comes before the second, which is refused with its batch
        return not pins or await self._records.put(pins)

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        states = {state.value for state in where.states}
        terms = Where({"source": where.source}, {"state": states}, {"tool": where.tool})
        return await self._records.page(terms, after=after, limit=limit)

    async def revision(self) -> int:
        return await self._records.revision()

    async def remove(self, pin: Pin) -> bool:
        return await self._records.remove(pin.key, pin.version)

    async def forget_source(self, source: str) -> int:
        return await self._records.remove_all("source", source)

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()


def _unreadable(key: Key) -> HubFailure:
    source, tool, digest = key
    return HubFailure(
        Reason.PIN_UNREADABLE,
        f"What was decided about `{tool}` of source `{source}` cannot be read: its record is damaged, or was "
        "written by a newer hub. No tool of this source is called until the store is restored, the newer hub is "
        "started again, or the pins of this source are forgotten and its tools decided about anew.",
        source=source,
        tool=tool,
        digest=digest,
    )
