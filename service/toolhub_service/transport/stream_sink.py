"""Progress and chunks of one call on their way to its stream: bounded, and never blocking the execution."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from toolhub_service.domain.progress import Chunk, Progress

_EVENTS_MAX = 1_024
_HELD_MAX_BYTES = 1024 * 1024
"""Of output that waits for the reader; a stream that nobody reads costs no more."""


class StreamSink:
    """A reader that is too slow loses the oldest events; the result still carries the whole output."""

    def __init__(self) -> None:
        self._events: deque[Progress | Chunk] = deque()
        self._held_bytes = 0
        self._ready = asyncio.Event()
        self._closed = False

    def progress(self, progress: Progress) -> None:
        if self._events and isinstance(self._events[-1], Progress):
            self._events.pop()  # only the newest matters
        self._hold(progress, 0)

    def chunk(self, chunk: Chunk) -> None:
        self._hold(chunk, len(chunk.data))

    def _hold(self, event: Progress | Chunk, size_bytes: int) -> None:
        self._events.append(event)
        self._held_bytes += size_bytes
        while len(self._events) > _EVENTS_MAX or (self._held_bytes > _HELD_MAX_BYTES and len(self._events) > 1):
            self._next()
        self._ready.set()

    def _next(self) -> Progress | Chunk:
        event = self._events.popleft()
        if isinstance(event, Chunk):
            self._held_bytes -= len(event.data)
        return event

    def close(self) -> None:
        """No event comes any more: the iteration ends when it has caught up."""
        self._closed = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[Progress | Chunk]:
        while True:
            while self._events:
                yield self._next()
            if self._closed:
                return
            self._ready.clear()
            await self._ready.wait()
