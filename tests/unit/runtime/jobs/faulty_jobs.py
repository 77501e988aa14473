"""A store of jobs that fails where a test wants it to, before or after it did what it was asked; for many processes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TypeVar

from toolhub_service.domain.call import Owners
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobCounts, JobFilter, JobNews, JobStatus
from toolhub_service.stores.memory.jobs import MemoryJobs

Answer = TypeVar("Answer")
Listener = Callable[[JobNews], None]


class Fault(Enum):
    BEFORE = "before it was done"
    AFTER = "after it was done"


class FaultyJobs:
    """Implements `JobStore` for any number of processes. Every request gives the loop a turn, as a real one does."""

    def __init__(self) -> None:
        self.inner = MemoryJobs()
        self.inner.listen(self._fan_out)
        self.asked: list[str] = []
        """Every request, by method."""
        self.faults: dict[int, Fault] = {}
        """Of the requests from the first on, by number."""
        self.is_away = False
        self.unkept: Callable[[Job], bool] = lambda job: False
        """Records that make the store break, whatever is tried."""
        self.muted = False
        """Whether news are dropped."""
        self.held: defaultdict[str, asyncio.Event] = defaultdict(_let_go)
        """By method: what requests wait for after they were done."""
        self._listeners: list[Listener] = []

    async def create(self, job: Job) -> Job | None:
        return await self._ask("create", lambda: self.inner.create(job))

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        return await self._ask("get", lambda: self.inner.get(job_id, seen))

    async def put(self, job: Job) -> bool:
        if self.unkept(job):
            raise ValueError("it cannot be written")
        return await self._ask("put", lambda: self.inner.put(job))

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        return await self._ask("history", lambda: self.inner.history(job_id, after_sequence, limit))

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        return await self._ask("page", lambda: self.inner.page(where, after=after, limit=limit))

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        await self._ask("beat", lambda: self.inner.beat(runner, alive_until_unix_ms))

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        return await self._ask(
            "find_unattended", lambda: self.inner.find_unattended(now_unix_ms, queued_before_unix_ms, limit)
        )

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        return await self._ask("awaiting", lambda: self.inner.awaiting(after, limit))

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return await self._ask("is_alive", lambda: self.inner.is_alive(runner, now_unix_ms))

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        return await self._ask("forget", lambda: self.inner.forget(now_unix_ms, limit))

    async def count_jobs(self) -> JobCounts:
        return await self._ask("count_jobs", self.inner.count_jobs)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    def hold(self, method: str) -> asyncio.Event:
        """Requests are done and not answered until the event is set."""
        self.held[method] = asyncio.Event()
        return self.held[method]

    def announce(self, news: JobNews) -> None:
        """As the store's listener does."""
        for listener in self._listeners:
            listener(news)

    async def _ask(self, method: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        self.asked.append(method)
        fault = self.faults.get(len(self.asked))
        await asyncio.sleep(0)
        if self.is_away or fault is Fault.BEFORE:
            raise away()
        answer = await ask()
        await asyncio.sleep(0)
        await self.held[method].wait()
        if fault is Fault.AFTER:
            raise away()
        return answer

    def _fan_out(self, news: JobNews) -> None:
        if not self.muted:
            self.announce(news)


def away() -> ToolFailure:
    return refuse(ErrorKind.TOOL_UNAVAILABLE, "The store is away.", store="faulty")


def _let_go() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
