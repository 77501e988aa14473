"""Finds jobs whose runner died or whose delivery was lost, and deletes what has expired.

Every process writes its heartbeat once per interval. A separate task, so that a slow check does not delay the
heartbeat, checks the store twice within the time after which a process counts as dead, and deletes expired records once
a minute. All processes do this; compare-and-set lets one of them win. A failure is reported and changes nothing else:
one job that fails must not delay the others.

`Reconciler.sweep` finds the jobs of a killed process and delivers them again; what happens to each is decided where it
is claimed, by `JobClaims` in claims.py. The jobs of a process on the same machine are found at once, because the lock
of its runner is free (`Heartbeat.release_dead`). A sweep also runs `Decisions.check` and
`OrphanedApprovals.withdraw` (decisions.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.heartbeat import Heartbeat
from toolhub_service.runtime.jobs.ledger import JobLedger

_BATCH = 500
_QUEUED = frozenset({JobState.QUEUED})
# Further batches that one sweep checks when the first is full.
_OTHERS_MAX = 8
_TIDY_S = 60.0


class Reconciler:
    """Runs until cancelled: heartbeats and, in a task of their own, sweeps of the store."""

    def __init__(
        self,
        ledger: JobLedger,
        engine: JobEngine,
        heartbeat: Heartbeat,
        *,
        awaiting: Callable[[Job], Awaitable[None]],
        give_up: Callable[[Job], Awaitable[bool]],
        each_time: Sequence[Callable[[], Awaitable[object]]] = (),
        tidy: Sequence[Callable[[int], Awaitable[int]]] = (),
        forgotten: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`awaiting` is called with each job that waits for a person. `give_up` ends a job that has nothing left to
        run, and returns whether it did. A sweep also calls `each_time`. Each of `tidy` deletes what has expired by a
        given time. `forgotten` is called with the number of deleted jobs."""
        self._ledger = ledger
        self._store = ledger.store
        self._engine = engine
        self._heartbeat = heartbeat
        self._observer = ledger.observer
        self._clock = ledger.clock
        self._terms = ledger.terms
        self._awaiting = awaiting
        self._give_up = give_up
        self._each_time = each_time
        self._tidy = tidy
        self._forgotten = forgotten
        # Start of the next batch of jobs that wait for a person: one batch per sweep, in rotation.
        self._awaiting_after: tuple[int, str] | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._beat())
            both.create_task(self._sweep_forever())

    async def sweep(self) -> int:
        """Deliver every unattended job, and return how many there were. Reports the number of open jobs, too."""
        for work in (self._heartbeat.release_dead, *self._each_time):
            await self._run_guarded(work)
        now_unix_ms = self._clock.unix_ms()
        jobs = await self._store.find_unattended(now_unix_ms, now_unix_ms - self._terms.dead_after_ms, _BATCH)
        await self._run_guarded(partial(self._deliver, jobs))
        if len(jobs) == _BATCH:
            await self._run_guarded(partial(self._deliver_others, jobs))
        await self._run_guarded(self._check_awaiting)
        self._observer.on_counts(await self._store.count_jobs())
        return len(jobs)

    async def tidy(self) -> None:
        """Delete what has expired."""
        now_unix_ms = self._clock.unix_ms()
        await self._run_guarded(partial(self._forget, now_unix_ms))
        for remove in self._tidy:
            await self._run_guarded(partial(remove, now_unix_ms))

    async def _beat(self) -> None:
        while True:
            await self._heartbeat.beat()
            await asyncio.sleep(self._terms.heartbeat_s)

    async def _sweep_forever(self) -> None:
        tidied_at_s = float("-inf")
        while True:
            await self._run_guarded(self.sweep)
            if self._clock.monotonic_s() - tidied_at_s >= _TIDY_S:
                tidied_at_s = self._clock.monotonic_s()
                await self.tidy()
            await asyncio.sleep(self._terms.dead_after_s / 2)

    async def _deliver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.state is not JobState.QUEUED and not self._heartbeat.may_take_over(job.runner):
                continue
            has_ended = False
            try:
                has_ended = await self._give_up(job)
            except Exception as problem:  # noqa: BLE001 - then its delivery tells
                self._observer.on_problem(job.job_id, problem)
            if not has_ended:
                # An engine that cannot be reached for one job cannot be for the others.
                await self._engine.enqueue(job.job_id, self._ledger.tenant_of(job))

    async def _deliver_others(self, jobs: Sequence[Job]) -> None:
        """Deliver jobs of other tenants: the longest waiting ones fill a batch, and may all belong to a few tenants.
        Each batch takes the newest jobs of tenants not seen yet."""
        seen = {self._ledger.tenant_of(job) for job in jobs} - {""}
        for _ in range(_OTHERS_MAX if seen else 0):
            others_only = partial(self._is_of_another, frozenset(seen))
            where = JobFilter(states=_QUEUED, owners=others_only)
            others, _ = await self._store.page(where, after=None, limit=_BATCH)
            await self._deliver(others)
            seen |= {self._ledger.tenant_of(job) for job in others}
            if len(others) < _BATCH:
                return

    def _is_of_another(self, seen: frozenset[str], principal_id: str) -> bool:
        return self._ledger.tenant_of_id(principal_id) not in seen

    async def _check_awaiting(self) -> None:
        jobs = await self._store.awaiting(self._awaiting_after, _BATCH)
        is_round = len(jobs) < _BATCH
        self._awaiting_after = None if is_round else (jobs[-1].status.at_unix_ms, jobs[-1].job_id)
        for job in jobs:
            await self._run_guarded(partial(self._awaiting, job), job.job_id)

    async def _forget(self, now_unix_ms: int) -> None:
        count = _BATCH
        while count == _BATCH:
            count = await self._store.forget(now_unix_ms, _BATCH)
            if count:
                self._forgotten(count)

    async def _run_guarded(self, work: Callable[[], Awaitable[object]], job_id: str = "") -> None:
        try:
            await work()
        except Exception as problem:  # noqa: BLE001 - the other work must go on, whatever fails
            self._observer.on_problem(job_id, problem)
