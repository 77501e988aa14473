"""The upkeep of the audit log: old events leave it, new ones are exported.

One process at a time does it: the one that holds the lock, which ends with its process. Each task has its own interval
and works in threads on its own connections, and its failure delays neither calls nor other tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from toolhub_service.stores.audit.events import EventStore, UpkeepLock

_LOCK_RETRY_S: Final = 5.0
_BREATH_S: Final = 0.02
"""Pause between two steps, in which the log's writer can use the database."""
_PATIENCE_MAX_S: Final = 60.0
_LEAVE_S: Final = 5.0


class UpkeepObserver(Protocol):
    """Called on the event loop."""

    def upkeep_failed(self, task: str, problem: Exception) -> None:
        """A task failed; it is tried again after a pause that doubles up to a minute."""
        ...


class UpkeepTask(msgspec.Struct, frozen=True):
    name: str
    step: Callable[[], bool]
    """Do a bounded part of the work, in a thread; return whether there is more. May raise anything."""
    every_s: float
    """Pause when there is no more to do."""


class AuditUpkeep:
    """Runs the tasks from `start` to `close`; does nothing without tasks."""

    def __init__(self, events: EventStore, tasks: Sequence[UpkeepTask], observer: UpkeepObserver) -> None:
        self._events = events
        self._tasks = tasks
        self._observer = observer
        self._leaving = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._tasks:
            self._running = asyncio.create_task(self._run(), name="audit upkeep")

    async def close(self) -> None:
        """Stop; a running step gets some seconds. What remains is done after the next start, or by another process."""
        self._leaving.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=_LEAVE_S)
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        while not self._leaving.is_set():
            lock: UpkeepLock | None = None
            try:
                lock = await asyncio.to_thread(self._events.take_upkeep_lock)
            except Exception as problem:  # noqa: BLE001 - it is tried again, whatever failed
                self._observer.upkeep_failed("turn", problem)
            if lock is None:
                await self._pause(_LOCK_RETRY_S)
                continue
            try:
                await asyncio.gather(*(self._repeat(task, lock) for task in self._tasks))
            finally:
                await asyncio.to_thread(lock.close)

    async def _repeat(self, task: UpkeepTask, lock: UpkeepLock) -> None:
        """Repeat the task until the lock is lost or this process stops."""
        patience_s = task.every_s
        while not self._leaving.is_set():
            try:
                if not await asyncio.to_thread(lock.is_held):
                    return
                has_more = await asyncio.to_thread(task.step)
                patience_s = _BREATH_S if has_more else task.every_s
            except Exception as problem:  # noqa: BLE001 - it comes back to it, whatever failed
                self._observer.upkeep_failed(task.name, problem)
                patience_s = min(_PATIENCE_MAX_S, max(task.every_s, 1.0, patience_s * 2))
            await self._pause(patience_s)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):  # the usual cause; the other is that the process stops
            await asyncio.wait_for(self._leaving.wait(), seconds)
