"""Progress of a call on its way to the hub's sink: at most 50 a second, and the newest is never lost.

A server may report as often as it likes. What comes too soon takes the place of what waits; one timer hands it on.
"""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import Final

from toolhub_service.adapters.shortening import one_line
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.progress import Progress

PAUSE_S: Final = 0.02
MESSAGE_MAX_CHARS: Final = 500


class Reporter:
    """Of one call; the SDK's progress callback."""

    __slots__ = ("_loop", "_next_s", "_sink", "_timer", "_waiting")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._next_s = 0.0
        self._waiting: tuple[float, float | None, str | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        if not isfinite(progress):
            return
        self._waiting = (progress, total, message)
        if self._loop.time() >= self._next_s:
            self._hand_on()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_s, self._hand_on)

    def close(self) -> None:
        """Hand on what waits; the call has ended."""
        if self._waiting is not None:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is None:
            return
        step, total, message = self._waiting
        self._waiting = None
        self._next_s = self._loop.time() + PAUSE_S
        known_total = total if total is not None and isfinite(total) else None
        shown = one_line(message, MESSAGE_MAX_CHARS) if message else ""
        self._sink.progress(Progress(step=step, total=known_total, message=shown))
