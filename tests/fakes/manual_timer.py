"""A timer that fires only by an event or by a clock that a test advances."""

from __future__ import annotations

import asyncio

from tests.fakes.clock import ManualClock


class ManualTimer:
    """Implements `Wait` (registry/discovery/source_controller.py) on a `ManualClock`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._waiting: dict[asyncio.Event, float] = {}
        self._more = asyncio.Event()

    async def __call__(self, event: asyncio.Event, delay_s: float) -> None:
        due = asyncio.Event()
        self._waiting[due] = self._clock.monotonic_s() + delay_s
        self._more.set()
        either = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(due.wait())]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[due]
            for waiting in either:
                waiting.cancel()

    def advance(self, seconds: float) -> None:
        """Move the clock; whose time has come wakes."""
        self._clock.advance(seconds)
        for due, at_s in self._waiting.items():
            if at_s <= self._clock.monotonic_s():
                due.set()

    @property
    def left_s(self) -> list[float]:
        """How long each that waits has still to wait, sorted."""
        return sorted(round(at_s - self._clock.monotonic_s(), 6) for at_s in self._waiting.values())

    async def until_left(self, *wanted_s: float) -> None:
        """Wait until exactly these times are left to those that wait."""
        wanted = sorted(round(left_s, 6) for left_s in wanted_s)
        async with asyncio.timeout(60):
            while self.left_s != wanted:
                self._more.clear()
                await self._more.wait()
