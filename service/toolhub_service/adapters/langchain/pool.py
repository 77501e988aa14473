"""A few worker processes for tools that cannot be interrupted; one call each at a time.

Ours rather than a library's: the pools that can kill a worker (pebble, loky) bring results back pickled, and to
unpickle what foreign code wrote is to run it. Calls wait for a place in the order they came. A place starts its worker
when it is first needed; a call that is cut off takes its worker with it, and the next one is started at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from toolhub_service.adapters.langchain.worker_process import WorkerFailed, WorkerProcess

Start = Callable[[], Awaitable[WorkerProcess]]


class PoolClosed(Exception):
    """The source has been closed."""


class _Place:
    """Room for one worker."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._starting: asyncio.Task[WorkerProcess] | None = None
        self.worker: WorkerProcess | None = None

    @property
    def is_warm(self) -> bool:
        return self.worker is not None and self.worker.alive

    @property
    def is_starting(self) -> bool:
        return self._starting is not None

    def warm(self) -> asyncio.Task[WorkerProcess]:
        """Have a worker started, once however many ask."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._started())
            self._starting.add_done_callback(_heard)
        return self._starting

    async def ready(self) -> WorkerProcess:
        worker = self.worker
        if worker is not None:
            if worker.alive:
                return worker
            await self.clear()
        return await asyncio.shield(self.warm())

    async def clear(self) -> None:
        """End the worker, or its start."""
        starting, self._starting = self._starting, None
        if starting is not None and not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError, WorkerFailed):
                await starting
        worker, self.worker = self.worker, None
        if worker is not None:
            await worker.end()

    async def _started(self) -> WorkerProcess:
        try:
            worker = self.worker = await self._start()
            return worker
        finally:
            self._starting = None


class WorkerPool:
    """At most `size` workers. One event loop owns it."""

    def __init__(self, start: Start, *, size: int) -> None:
        self._places = [_Place(start) for _ in range(size)]
        self._free = list(self._places)
        self._room = asyncio.Semaphore(size)
        self._tidying: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers that are running."""
        return tuple(place.worker.pid for place in self._places if place.worker is not None and place.worker.alive)

    async def ask(self, frame: bytes) -> Any:
        """The answer of a worker. Raises PoolClosed, WorkerFailed, FrameTooLarge, ValueError."""
        async with self._room:
            if self.is_closed:
                raise PoolClosed
            place = self._take()
            try:
                worker = await place.ready()
                try:
                    return await worker.ask(frame)
                except BaseException as error:
                    await self._renew(place)
                    if isinstance(error, WorkerFailed) and self.is_closed:
                        raise PoolClosed from error
                    raise
            finally:
                self._free.append(place)

    def warm(self) -> None:
        """Have one worker ready before it is asked for, when none is running. Returns at once."""
        if not self._closed and self._free and not self.pids:
            self._free[-1].warm()

    async def close(self) -> None:
        """End all workers; calls that run fail with PoolClosed."""
        self._closed = True
        await asyncio.gather(*(place.clear() for place in self._places), *self._tidying)

    def _take(self) -> _Place:
        """The place used last whose worker is ready, else one whose worker is being started, else any."""
        chosen = max(reversed(self._free), key=lambda place: (place.is_warm, place.is_starting))
        self._free.remove(chosen)
        return chosen

    async def _renew(self, place: _Place) -> None:
        """End the worker, even when the one who waits for that is cancelled, and start another."""
        task = asyncio.ensure_future(self._replaced(place))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)
        await asyncio.shield(task)

    async def _replaced(self, place: _Place) -> None:
        await place.clear()
        if not self._closed:
            place.warm()


def _heard(starting: asyncio.Task[WorkerProcess]) -> None:
    """A start that nobody waits for any more may fail unheard: the next call starts anew."""
    if not starting.cancelled():
        starting.exception()
