"""Lines of a pipe, a few per turn of the loop.

asyncio hands over up to 256 KiB of a pipe at once, which may be eighty thousand lines; nothing else would run until the
last of them is parsed. What is not taken at once waits here, at most as much as arrives in two readings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from toolhub_service.adapters.mcp.transports.lines import Lines, TooLong
from toolhub_service.aio.turnstile import pass_turnstile

LINES_A_TURN: Final = 32
WAITING_MAX_BYTES: Final = 256 * 1024
_WAITING: Final = "waiting"


class LinePump:
    """Splits what a pipe brings into lines, and passes them on."""

    def __init__(
        self, lines: Lines, take_line: Callable[[bytes | TooLong], None], pause_reading: Callable[[bool], None]
    ) -> None:
        """`pause_reading(True)` stops the reading of the pipe, `False` continues it."""
        self._lines = lines
        self._take_line = take_line
        self._pause_reading = pause_reading
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._holds: set[str] = set()
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._on_idle: Callable[[], None] | None = None
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """Take what the pipe brought; after `stop` it is dropped."""
        if self._is_over or self._on_idle is not None:
            return
        if self._task is None and not self._holds and data.count(b"\n") <= LINES_A_TURN:
            for line in self._lines.feed(data):
                self._take_line(line)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > WAITING_MAX_BYTES:
            self.hold(_WAITING)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def hold(self, reason: str) -> None:
        """Stop reading until `release` was called with each reason that holds it."""
        if not self._holds:
            self._released.clear()
            self._pause_reading(True)
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        if reason in self._holds:
            self._holds.discard(reason)
            self._released.set()
            if not self._holds and not self._is_over:
                self._pause_reading(False)

    def finish(self, then: Callable[[], None]) -> None:
        """Take no more data, and call `then` when all lines were passed on."""
        self._on_idle = then
        if self._task is None:
            then()

    def stop(self) -> None:
        """Pass on nothing more; what waits is dropped."""
        self._is_over = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._released.set()

    async def _run(self) -> None:
        while self._waiting:
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            if self._waiting_bytes <= WAITING_MAX_BYTES // 2:
                self.release(_WAITING)
            for number, line in enumerate(self._lines.feed(data)):
                if number % LINES_A_TURN == 0:
                    await pass_turnstile()
                while self._holds - {_WAITING} and not self._is_over:
                    self._released.clear()
                    await self._released.wait()
                if self._is_over:
                    return
                self._take_line(line)
        self._task = None
        if self._on_idle is not None:
            self._on_idle()
