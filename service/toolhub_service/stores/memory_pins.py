"""Pins in the memory of one process: nothing awaits between a look and a change."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.stores.codec_pins import are_distinct


class MemoryPins:
    """Implements `PinStore`."""

    def __init__(self) -> None:
        self._pins: dict[str, dict[tuple[str, str, str], Pin]] = {}
        """By source, then by key."""
        self._revision = 0

    async def of_source(self, source: str) -> Sequence[Pin]:
        return list(self._pins.get(source, {}).values())

    async def put(self, pins: Sequence[Pin]) -> bool:
        if not are_distinct(pins) or any(self._version(pin) != pin.version - 1 for pin in pins):
            return False
        for pin in pins:
            self._pins.setdefault(pin.source, {})[pin.key] = pin
        self._revision += bool(pins)
        return True

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        sources = [where.source] if where.source else list(self._pins)
        of_sources = (pin for source in sources for pin in self._pins.get(source, {}).values())
        matching = sorted((pin for pin in of_sources if _matches(where, pin)), key=_place, reverse=True)
        behind = [pin for pin in matching if after is None or _place(pin) < after]
        return behind[:limit], len(matching)

    async def revision(self) -> int:
        return self._revision

    async def forget_source(self, source: str) -> int:
        forgotten = self._pins.pop(source, {})
        self._revision += bool(forgotten)
        return len(forgotten)

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _version(self, pin: Pin) -> int:
        """Of what is kept under its key; 0 when the key is free."""
        standing = self._pins.get(pin.source, {}).get(pin.key)
        return 0 if standing is None else standing.version


def _place(pin: Pin) -> tuple[int, str, str, str]:
    return pin.seen_at_unix_ms, *pin.key


def _matches(where: PinFilter, pin: Pin) -> bool:
    return (not where.states or pin.state in where.states) and (not where.tool or fnmatchcase(pin.tool, where.tool))
