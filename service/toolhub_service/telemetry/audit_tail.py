"""Watching the audit log: each watcher has a bounded queue and is told when it was too slow, never waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.telemetry.audit_rows import matches

TAIL_LIMIT: Final = 1_000
"""Events that may wait for one watcher."""


class Tail(AsyncIterator[ChainedEvent]):
    """New events from now on, until it is closed or the log is. Used on the loop's thread only."""

    def __init__(self, where: EventFilter, after_row: int, *, closed: Callable[[Tail], None], limit: int) -> None:
        self.where = where
        self.after_row = after_row
        """Where this watcher stands; moved by the writer's thread."""
        self._closed = closed
        self._limit = limit
        self._waiting: deque[ChainedEvent] = deque()
        self._news = asyncio.Event()
        self._lagged = False
        self._ended = False

    def offer(self, events: Sequence[ChainedEvent]) -> None:
        """Hand over new events; those that do not fit are dropped and the watcher will be told."""
        for event in events:
            if self._lagged or not matches(self.where, event):
                continue
            if len(self._waiting) >= self._limit:
                self._lagged = True
            else:
                self._waiting.append(event)
        self._news.set()

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> ChainedEvent:
        """The next event. Raises HubFailure TAIL_LAGGED after the last one that was kept."""
        while not self._waiting:
            if self._lagged:
                await self.aclose()
                message = "Events came faster than they were taken. List from the last one you saw, then watch again."
                raise HubFailure(HubStatus.RESOURCE_EXHAUSTED, "TAIL_LAGGED", message)
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Watch no longer."""
        self.end()
        self._closed(self)

    def end(self) -> None:
        """No more will come; what is waiting can still be taken."""
        self._ended = True
        self._news.set()
