"""Taking a job that nobody runs.

    QUEUED                       take it and run
    its runner lives             somebody else's: nothing to do
    its runner is dead
        before its effect, safe to repeat, or marked on a remote side    run it again, or re-attach
        otherwise                                                        LOST, with the reason

Whoever puts RUNNING down first has it. A store that goes away meanwhile is waited for: it may have kept what it did not
confirm, and such a job would have a runner that lives and does not run it.
"""

from __future__ import annotations

import asyncio

from toolhub_service.domain.errors import ToolError, ToolFailure
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_state import JobState
from toolhub_service.runtime.jobs.ending import ended, never_ran, runner_died, stopped, too_late, without_answer
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.life import Life
from toolhub_service.runtime.jobs.terms import JobTerms

RETRY_S = 1.0
"""Between attempts to reach a store that is away."""


class Taking:
    def __init__(self, ledger: JobLedger, life: Life, terms: JobTerms) -> None:
        self._ledger = ledger
        self._life = life
        self._terms = terms

    async def take(self, job_id: str) -> Job | None:
        """The job, now this process's; None when there is nothing to run."""
        sent: tuple[Job, Job] | None = None
        while True:
            try:
                pair = sent or await self._look(job_id)
                if pair is None:
                    return None
                again, sent = sent is not None, pair
                if await self._ledger.put(*pair, again=again):
                    return self._mine(*pair)
                sent = None
            except ToolFailure as away:
                self._ledger.observer.troubled(job_id, away)
                await asyncio.sleep(RETRY_S)

    async def give_up(self, job: Job) -> bool:
        """Put down the end of a job that nobody runs and of which nothing is left to be run. False: it is somebody's,
        or must be delivered. Raises ToolFailure."""
        if job.runner and await self._is_held(job):
            return False
        after = self._taken(job)
        return after.state.is_final and await self._ledger.put(job, after)

    async def _look(self, job_id: str) -> tuple[Job, Job] | None:
        """The job as it stands and as it is to be taken; None when it is not to be."""
        job = await self._ledger.store.get(job_id)
        if job is None or job.state.is_final or job.state is JobState.AWAITING_APPROVAL:
            return None
        if job.runner and await self._is_held(job):
            return None
        return job, self._taken(job)

    def _mine(self, before: Job, job: Job) -> Job | None:
        if job.state.is_final:
            return None
        if before.runner:
            self._ledger.observer.taken_over(job)
        return job

    async def _is_held(self, job: Job) -> bool:
        """Whether somebody runs it, as far as this process may judge; of its own it knows."""
        if job.runner == self._life.runner:
            return False
        is_alive = await self._ledger.store.is_alive(job.runner, self._ledger.clock.unix_ms())
        return is_alive or not self._life.may_judge

    def _taken(self, job: Job) -> Job:
        """The record after the one in the store, of a job that nobody runs."""
        now_unix_ms = self._ledger.clock.unix_ms()
        is_over = now_unix_ms >= job.deadline_unix_ms
        if job.begun and job.remote is None:
            return self._ended(job, JobState.LOST, runner_died(job))
        if job.state is JobState.CANCELLING and job.remote is None:
            return self._ended(job, JobState.CANCELLED, stopped(job) if job.runs else never_ran())
        if is_over and job.remote is None:
            return self._ended(job, JobState.TIMED_OUT, too_late(job))
        state = job.state if job.state is JobState.CANCELLING else JobState.RUNNING
        return moved(job, state, now_unix_ms, runner=self._life.runner, runs=job.runs + 1)

    def _ended(self, job: Job, state: JobState, error: ToolError) -> Job:
        now_unix_ms = self._ledger.clock.unix_ms()
        return ended(job, state, without_answer(job, error, now_unix_ms), now_unix_ms, self._terms.keep_ms)
