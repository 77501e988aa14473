"""What nobody looks after: jobs whose runner died or whose delivery was lost, and what has lived long enough.

A process gives a sign of life every heartbeat; beside that, however long it takes, it looks at the store twice in the
time in which a death is noticed, and removes the expired once a minute. Every process does it; compare-and-set lets one
of them win. What fails is told and leaves the rest as it is: one job that cannot be looked after is not to hold up the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobEngine, JobObserver, JobStore
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.ports import Clock
from toolhub_service.runtime.jobs.life import Life
from toolhub_service.runtime.jobs.terms import JobTerms

_BATCH = 500
_TIDY_S = 60.0


class Reconciler:
    def __init__(
        self,
        store: JobStore,
        engine: JobEngine,
        life: Life,
        observer: JobObserver,
        clock: Clock,
        terms: JobTerms,
        *,
        awaiting: Callable[[Job], Awaitable[None]],
        give_up: Callable[[Job], Awaitable[bool]],
        each_time: Sequence[Callable[[], Awaitable[object]]] = (),
        tidy: Sequence[Callable[[int], Awaitable[int]]] = (),
    ) -> None:
        """`awaiting` looks after a job that waits for a person; `give_up` ends a job of which nothing is left to be
        run, or says False; `each_time` is what else a sweep does; each of `tidy` removes what has expired at a time."""
        self._store = store
        self._engine = engine
        self._life = life
        self._observer = observer
        self._clock = clock
        self._terms = terms
        self._awaiting = awaiting
        self._give_up = give_up
        self._each_time = each_time
        self._tidy = tidy
        self._awaiting_after: tuple[int, str] | None = None
        """How far the looks at jobs that wait for a person have come: they go round and round, a batch a sweep."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._live())
            both.create_task(self._look_after())

    async def sweep(self) -> int:
        """Have every unattended job delivered; how many there were. Counts the open ones, too."""
        for work in self._each_time:
            await self._watched("", work)
        now_unix_ms = self._clock.unix_ms()
        jobs = await self._store.unattended(now_unix_ms, now_unix_ms - self._terms.dead_after_ms, _BATCH)
        await self._watched("", partial(self._deliver, jobs))
        await self._watched("", self._look_after_awaiting)
        self._observer.tallied(await self._store.tally())
        return len(jobs)

    async def tidy(self) -> None:
        """Remove what has expired."""
        now_unix_ms = self._clock.unix_ms()
        await self._watched("", partial(self._forget, now_unix_ms))
        for remove in self._tidy:
            await self._watched("", partial(remove, now_unix_ms))

    async def _live(self) -> None:
        while True:
            await self._life.beat()
            await asyncio.sleep(self._terms.heartbeat_s)

    async def _look_after(self) -> None:
        tidied_at_s = float("-inf")
        while True:
            await self._watched("", self.sweep)
            if self._clock.monotonic_s() - tidied_at_s >= _TIDY_S:
                tidied_at_s = self._clock.monotonic_s()
                await self.tidy()
            await asyncio.sleep(self._terms.dead_after_s / 2)

    async def _deliver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            is_ours_to_judge = job.state is JobState.QUEUED or self._life.may_judge
            if is_ours_to_judge and not await self._has_ended(job):
                await self._engine.enqueue(job.job_id)  # when it cannot be reached, it cannot be for the others

    async def _has_ended(self, job: Job) -> bool:
        try:
            return await self._give_up(job)
        except Exception as problem:  # noqa: BLE001 - then its delivery tells
            self._observer.troubled(job.job_id, problem)
            return False

    async def _look_after_awaiting(self) -> None:
        jobs = await self._store.awaiting(self._awaiting_after, _BATCH)
        is_round = len(jobs) < _BATCH
        self._awaiting_after = None if is_round else (jobs[-1].status.at_unix_ms, jobs[-1].job_id)
        for job in jobs:
            await self._watched(job.job_id, partial(self._awaiting, job))

    async def _forget(self, now_unix_ms: int) -> None:
        while await self._store.forget(now_unix_ms, _BATCH) == _BATCH:
            pass

    async def _watched(self, job_id: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as problem:  # noqa: BLE001 - the other work must go on, whatever fails
            self._observer.troubled(job_id, problem)
