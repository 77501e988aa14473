"""Claims a job that nobody runs, or takes it over from a process that has died.

    QUEUED                       claim it and run
    its runner lives             nothing to do
    its runner is dead
        before its effect, safe to repeat, or marked on a remote side    run it again, or re-attach
        otherwise                                                        LOST, with the reason

Whoever writes RUNNING first has it. When the store cannot be reached during a claim, the claim is repeated until the
store answers: it may have kept a claim that it did not confirm, and the job would then belong to a living process that
does not run it.
"""

from __future__ import annotations

import asyncio

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.heartbeat import Heartbeat
from toolhub_service.runtime.jobs.ledger import RETRY_S, JobLedger
from toolhub_service.runtime.jobs.settle import (
    broken_off_error,
    cancelled_job_error,
    end_job_unanswered,
    never_ran,
    too_late,
)


class JobClaims:
    """Decides whether this process runs a job, and what becomes of one whose runner is dead."""

    def __init__(self, ledger: JobLedger, heartbeat: Heartbeat) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat

    async def claim(self, job_id: str) -> Job | None:
        """Claim the job for this process and return it; None when there is nothing to run."""
        sent: tuple[Job, Job] | None = None
        while True:
            try:
                pair = sent or await self._next(job_id)
                if pair is None:
                    return None
                again, sent = sent is not None, pair
                if await self._ledger.put(*pair, again=again):
                    before, job = pair
                    if job.state.is_final:
                        return None
                    if before.runner:
                        self._ledger.observer.on_takeover(job)
                    return job
                sent = None
            except ToolFailure as away:
                self._ledger.observer.on_problem(job_id, away)
                await asyncio.sleep(RETRY_S)

    async def give_up(self, job: Job) -> bool:
        """Store the end of a job that nobody runs and that has nothing left to run. Return False when it has a runner
        or must be delivered. Raises ToolFailure."""
        if job.runner and await self._is_held(job):
            return False
        after = self._claim_job(job)
        return after.state.is_final and await self._ledger.put(job, after)

    async def _next(self, job_id: str) -> tuple[Job, Job] | None:
        """Return the stored job and the record that claims it; None when it must not be claimed."""
        job = await self._ledger.store.get(job_id)
        if job is None or job.state.is_final or job.state is JobState.AWAITING_APPROVAL:
            return None
        if job.runner and await self._is_held(job):
            return None
        return job, self._claim_job(job)

    async def _is_held(self, job: Job) -> bool:
        """Return whether another process runs the job, as far as this process can tell."""
        if job.runner == self._heartbeat.runner:
            return False
        is_alive = await self._ledger.store.is_alive(job.runner, self._ledger.clock.unix_ms())
        return is_alive or not self._heartbeat.may_take_over(job.runner)

    def _claim_job(self, job: Job) -> Job:
        """Return the next record of a job that nobody runs: claimed by this process, or ended."""
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.begun and job.remote is None:
            unclear = broken_off_error(job, f"The process that ran {job.call.tool} died while it ran", "RUNNER_DIED")
            return end_job_unanswered(self._ledger, job, JobState.LOST, unclear)
        if job.state is JobState.CANCELLING and job.remote is None:
            error = cancelled_job_error(job) if job.runs else never_ran()
            return end_job_unanswered(self._ledger, job, JobState.CANCELLED, error)
        if now_unix_ms >= job.deadline_unix_ms and job.remote is None:
            return end_job_unanswered(self._ledger, job, JobState.TIMED_OUT, too_late(job))
        state = job.state if job.state is JobState.CANCELLING else JobState.RUNNING
        return move_job(job, state, now_unix_ms, runner=self._heartbeat.runner, runs=job.runs + 1)
