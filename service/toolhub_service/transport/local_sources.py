"""The desk of a hub whose tools are all its own: there is nothing to read anew and nothing to pin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import SourceStatus


@dataclass(frozen=True, slots=True)
class LocalSources:
    """A `SourceDesk` without remote sources."""

    known: Callable[[], Sequence[SourceStatus]]

    def statuses(self) -> Sequence[SourceStatus]:
        return self.known()

    async def refresh(self, sources: Sequence[str]) -> Sequence[SourceStatus]:
        """Nothing is read. Raises HubFailure NOT_FOUND for a name that nobody knows."""
        known = {status.name: status for status in self.known()}
        for name in sources:
            if name not in known:
                raise HubFailure(
                    HubStatus.NOT_FOUND,
                    "SOURCE_NOT_FOUND",
                    f"There is no source {name!r}; ListSources names those there are.",
                    source=name,
                )
        return [known[name] for name in sources]

    async def pins(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        return (), 0

    async def approved(self, pin: Pin) -> Pin | None:
        return None

    async def decide(self, source: str, tool: str, digest: str, *, approve: bool, by: str, comment: str) -> NoReturn:
        """Raises HubFailure NOT_FOUND."""
        raise HubFailure(
            HubStatus.NOT_FOUND,
            "PIN_NOT_FOUND",
            f"No definition {digest[:12]}… of {tool} was seen from {source!r}; ListPins shows those that were.",
            source=source,
            tool=tool,
        )
