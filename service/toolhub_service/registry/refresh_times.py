"""When a source is read again: after its own time to live, soon after it says that something changed, and ever more
seldom while it cannot be read (exponential backoff with jitter)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from toolhub_service.domain.ports import Randomness

TTL_MIN_S: Final = 30.0
TTL_MAX_S: Final = 300.0
QUIET_S: Final = 0.25
"""A change is read when no other was announced for so long …"""
PATIENCE_S: Final = 2.0
"""… or so long after the first."""
REST_S: Final = 1.0
"""Between two readings because of announced changes at least, however many a source announces."""
BACKOFF_FIRST_S: Final = 1.0
_DOUBLINGS_MAX: Final = 20
NEVER_S: Final = float("inf")

Wait = Callable[[asyncio.Event, float], Awaitable[None]]
"""Returns when the event is set or so many seconds have passed."""


async def until(event: asyncio.Event, delay_s: float) -> None:
    """`Wait` on the event loop's clock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await event.wait()


def refresh_delay_s(ttl_s: float | None, refresh_s: float) -> float:
    """What the source says, within 30 s and 5 min, else what the operator says."""
    return refresh_s if ttl_s is None else min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)


def backoff_s(failures: int, refresh_s: float, randomness: Randomness) -> float:
    """Before attempt `failures` + 1: between half and all of 1, 2, 4 … s, at most the refresh interval."""
    longest_s = min(BACKOFF_FIRST_S * 2 ** min(failures - 1, _DOUBLINGS_MAX), refresh_s)
    return randomness.uniform(longest_s / 2, longest_s)


class Notices:
    """Announced changes, gathered (debounced) so that a burst is one reading."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0

    def add(self, now_s: float) -> None:
        self._first_s = now_s if self._first_s is None else self._first_s
        self._last_s = now_s

    def clear(self) -> None:
        self._first_s = None

    @property
    def due_s(self) -> float:
        """When to read, on the clock of `add`; infinite while there is nothing to read for."""
        return NEVER_S if self._first_s is None else min(self._last_s + QUIET_S, self._first_s + PATIENCE_S)
