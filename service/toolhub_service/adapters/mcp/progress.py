"""Passes a server's progress on to the hub's sink, at most 50 times a second.

An early report replaces the one that waits; a timer passes it on, so that the newest is never lost.
"""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.adapters.mcp.idle import IdleLimit
from toolhub_service.adapters.mcp.result_value import is_finite
from toolhub_service.adapters.upstream import (
    one_line,
)
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Progress

PAUSE_S: Final = 0.02
MESSAGE_MAX_CHARS: Final = 500


class Reporter:
    """The SDK's progress callback of one call."""

    __slots__ = ("_loop", "_next_s", "_sink", "_timer", "_waiting", "idle")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._next_s = 0.0
        self._waiting: tuple[float, float | None, str | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle = IdleLimit(0.0)
        """Of the call, which each report renews."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.idle.renew()
        # JSON parsers accept NaN and integers beyond the range of a float; neither can be passed on.
        if not is_finite(progress):
            return
        self._waiting = (progress, total, message)
        if self._loop.time() >= self._next_s:
            self._forward()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_s, self._forward)

    def close(self) -> None:
        """Pass on the report that waits; the call has ended."""
        if self._waiting is not None:
            self._forward()

    def _forward(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is None:
            return
        step, total, message = self._waiting
        self._waiting = None
        self._next_s = self._loop.time() + PAUSE_S
        known_total = total if total is not None and is_finite(total) else None
        shown = one_line(message, MESSAGE_MAX_CHARS) if message else ""
        self._sink.progress(Progress(step=step, total=known_total, message=shown))
