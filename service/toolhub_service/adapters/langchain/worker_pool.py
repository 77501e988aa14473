"""A pool of worker processes. Calls wait for a slot in order of arrival.

Not a library's pool: those that can kill a worker (pebble, loky) return pickled results, and unpickling data of foreign
code executes it. A slot starts its worker when it is first needed; a call that is cut off takes its worker with it, and
the next one is started at once.
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


class _Slot:
    """A slot of the pool for one worker."""

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
        """Start a worker, once for all who request it."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_worker())
            self._starting.add_done_callback(_retrieve_exception)
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
            # Awaited all the same: a start that is cut off ends its own process.
            with suppress(asyncio.CancelledError, WorkerFailed):
                await starting
        worker, self.worker = self.worker, None
        if worker is not None:
            await worker.end()

    async def _start_worker(self) -> WorkerProcess:
        try:
            worker = self.worker = await self._start()
            return worker
        finally:
            self._starting = None


class WorkerPool:
    """At most `size` workers. One event loop owns it."""

    def __init__(self, start: Start, *, size: int) -> None:
        self._slots = [_Slot(start) for _ in range(size)]
        self._free = list(self._slots)
        self._permits = asyncio.Semaphore(size)
        self._replacements: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the running workers."""
        return tuple(slot.worker.pid for slot in self._slots if slot.worker is not None and slot.worker.alive)

    async def ask(self, frame: bytes) -> Any:
        """Return a worker's answer. Raises PoolClosed, WorkerFailed, FrameTooLarge, ValueError."""
        async with self._permits:
            if self.is_closed:
                raise PoolClosed
            slot = self._take()
            try:
                worker = await slot.ready()
                try:
                    return await worker.ask(frame)
                except BaseException as error:
                    await self._replace(slot)
                    # The pool itself ended the worker.
                    if isinstance(error, WorkerFailed) and self.is_closed:
                        raise PoolClosed from error
                    raise
            finally:
                self._free.append(slot)

    def warm(self) -> None:
        """Start a worker before it is needed, when none is running. Returns at once."""
        if not self._closed and self._free and not self.pids:
            self._free[-1].warm()

    async def close(self) -> None:
        """End all workers; calls that run fail with PoolClosed."""
        self._closed = True
        await asyncio.gather(*(slot.clear() for slot in self._slots), *self._replacements)

    def _take(self) -> _Slot:
        """Return the most recently used slot whose worker is ready, else one whose worker is being started,
        else any."""
        # The most recently used of the ready ones, so that few workers stay warm and the rest never start.
        chosen = max(reversed(self._free), key=lambda slot: (slot.is_warm, slot.is_starting))
        self._free.remove(chosen)
        return chosen

    async def _replace(self, slot: _Slot) -> None:
        """End the worker, even when the waiting task is cancelled, and start another."""
        task = asyncio.ensure_future(self._restart_slot(slot))
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)
        await asyncio.shield(task)

    async def _restart_slot(self, slot: _Slot) -> None:
        await slot.clear()
        if not self._closed:
            slot.warm()


def _retrieve_exception(starting: asyncio.Task[WorkerProcess]) -> None:
    """Keep asyncio from reporting a failed start that nobody awaits: the next call starts another."""
    if not starting.cancelled():
        starting.exception()
