"""What operators ask of sources, over sources.yaml as it stands: whoever asks for a reading means the file of now.

So a source that was written a moment ago is found, one whose secret has come is opened, and a file that is not valid
is told to who asked, not to the log alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolhub_service.app.sourcing import Sourcing
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import SourceStatus
from toolhub_service.settings.loading import SettingsInvalid


@dataclass(frozen=True, slots=True)
class FollowingDesk:
    """Implements `SourceDesk`."""

    sourcing: Sourcing
    _looks: set[asyncio.Task[None]] = field(default_factory=set)

    def statuses(self) -> Sequence[SourceStatus]:
        return self.sourcing.sources.statuses()

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Raises HubFailure also FAILED_PRECONDITION, when the file is not valid; then nothing was read."""
        look = asyncio.create_task(self.sourcing.follow_file(), name="sources.yaml")
        self._looks.add(look)
        look.add_done_callback(self._has_looked)
        try:
            await asyncio.shield(look)  # a caller who leaves must not leave a source half closed
        except SettingsInvalid as invalid:
            message = f"{invalid}. Nothing was read, and the sources there are stay: `toolhub sources check` helps"
            raise HubFailure(HubStatus.FAILED_PRECONDITION, "SOURCES_INVALID", message) from invalid
        return await self.sourcing.sources.refresh(sources)

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        return await self.sourcing.sources.pins(where, after=after, limit=limit)

    async def approved(self, pin: Pin) -> Pin | None:
        return await self.sourcing.sources.approved(pin)

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> Pin:
        return await self.sourcing.sources.decide(source, tool, digest, approve=approve, by=by, comment=comment)

    def _has_looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            look.exception()  # told to who asked, if anybody still waits
