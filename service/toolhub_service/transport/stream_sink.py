"""Progress and chunks of one call on their way to its stream: bounded, and never blocking the execution."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from toolhub_service.domain.ports import Chunk, Progress

_EVENTS_MAX = 1_024


class StreamSink:
    """A reader that is too slow loses the oldest events; the result still carries the whole output."""

    def __init__(self) -> None:
        self._events: deque[Progress | Chunk] = deque(maxlen=_EVENTS_MAX)
        self._ready = asyncio.Event()
        self._closed = False

    def progress(self, progress: Progress) -> None:
        if self._events and isinstance(self._events[-1], Progress):
            self._events.pop()  # only the newest matters
        self._events.append(progress)
        self._ready.set()

    def chunk(self, chunk: Chunk) -> None:
        self._events.append(chunk)
        self._ready.set()

    def close(self) -> None:
        """No event comes any more: the iteration ends when it has caught up."""
        self._closed = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[Progress | Chunk]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._ready.clear()
            await self._ready.wait()
