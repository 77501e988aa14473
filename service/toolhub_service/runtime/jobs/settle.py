"""How a run ends: what it brought is put down until the store takes it, or the job is handed over.

A process that leaves cannot wait for a store for ever: what it could not put down is taken by others once its signs of
life have ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_machine import amended, moved
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.approval_questions import UNASKED
from toolhub_service.runtime.failures import broke_off, crash
from toolhub_service.runtime.jobs.causes import cause_of
from toolhub_service.runtime.jobs.ending import (
    ended,
    final_state,
    hub_stopped,
    out_of_reach,
    stopped,
    without_answer,
)
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.live import LiveJob, Step, Superseded
from toolhub_service.runtime.jobs.progress import JobSink
from toolhub_service.runtime.jobs.take import RETRY_S
from toolhub_service.runtime.jobs.terms import JobTerms

_LATER = frozenset({ErrorKind.RATE_LIMITED, ErrorKind.CIRCUIT_OPEN, ErrorKind.TOOL_UNAVAILABLE})
_RUNS_MAX = 1_000
"""Deliveries of one job; one that has been turned away so often is told so."""
LEAVING_S = 5.0
"""How long a process that leaves tries to put an end down."""


class Settling:
    def __init__(self, ledger: JobLedger, terms: JobTerms) -> None:
        self._ledger = ledger
        self._clock = ledger.clock
        self._terms = terms

    async def settle(self, live: LiveJob, progress: Progress | None) -> None:
        """Put down how the work ended, which has, for as long as it takes."""
        if live.ending is None:
            result = self._result(live)
            live.ending, live.cause = self._ending(result, progress), cause_of(result.error) if result.error else ""
        try:
            await self._put_down(live, live.ending, live.cause)
        except Exception as defect:  # noqa: BLE001 - a result that no store can keep must not leave the job RUNNING
            self._ledger.observer.troubled(live.job.job_id, defect)
            live.ending = self._ending(self._crashed(live.job), None)
            await self._put_down(live, live.ending)

    async def hand_over(self, live: LiveJob, sink: JobSink) -> None:
        """This process leaves. What has ended, by itself or because it was cancelled, is put down as such; what can be
        run again goes back; what cannot is told as what it is."""
        work, was_stopped = live.work, live.is_cut_off
        assert work is not None  # it runs
        live.cut_off()
        await asyncio.wait({work})
        progress = await sink.close()
        if was_stopped or not work.cancelled():
            putting = asyncio.create_task(self.settle(live, progress))
        else:
            putting = asyncio.create_task(self._give_back(live))
        await asyncio.wait({putting}, timeout=LEAVING_S)
        putting.cancel()
        await asyncio.wait({putting})
        if not putting.cancelled() and (problem := putting.exception()) is not None:
            self._ledger.observer.troubled(live.job.job_id, problem)

    async def _give_back(self, live: LiveJob) -> None:
        await self._put_down(live, self._given_back, "HUB_STOPPED")

    def _given_back(self, job: Job) -> Job:
        now_unix_ms = self._clock.unix_ms()
        if job.begun and job.remote is None:
            result = without_answer(job, hub_stopped(job), now_unix_ms)
            return ended(job, JobState.LOST, result, now_unix_ms, self._terms.keep_ms)
        if job.state is not JobState.CANCELLING:
            return moved(job, JobState.QUEUED, now_unix_ms, runner="")
        if job.remote is not None:
            return amended(job, runner="")
        result = without_answer(job, stopped(job), now_unix_ms)
        return ended(job, JobState.CANCELLED, result, now_unix_ms, self._terms.keep_ms)

    def _result(self, live: LiveJob) -> ToolResult:
        work = live.work
        assert work is not None  # it has been waited for
        if work.cancelled():
            return without_answer(live.job, stopped(live.job), self._clock.unix_ms())
        problem = work.exception()
        if problem is None and isinstance(answer := work.result(), ToolResult):
            return answer
        self._ledger.observer.troubled(live.job.job_id, problem or TypeError("a job was answered with a plan"))
        return self._crashed(live.job)

    def _crashed(self, job: Job) -> ToolResult:
        error = crash(job.call.call_id)
        if job.begun or job.remote is not None:
            error = broke_off(job.call.tool, job.call.call_id, error)
        return without_answer(job, error, self._clock.unix_ms())

    def _ending(self, result: ToolResult, progress: Progress | None) -> Step:
        error = result.error
        if error is not None and error.kind is ErrorKind.APPROVAL_REQUIRED:
            approval_id = str(error.details.get("approval_id", ""))
            if approval_id:
                return lambda job: self._waiting(job, result, approval_id)
        return lambda job: self._done(job, result, progress)

    def _done(self, job: Job, result: ToolResult, progress: Progress | None) -> Job:
        now_unix_ms = self._clock.unix_ms()
        if _comes_back(job, result):
            return moved(job, JobState.QUEUED, now_unix_ms, runner="", begun=False)
        if job.remote is not None and result.error is not None and result.attempts == 0:
            result = without_answer(job, out_of_reach(job, result.error), now_unix_ms)
        state = final_state(job, result, now_unix_ms)
        return ended(job, state, result, now_unix_ms, self._terms.keep_ms, progress)

    def _waiting(self, job: Job, result: ToolResult, approval_id: str) -> Job:
        """A person has been asked: its tool has a question, or policy has changed since it was accepted."""
        now_unix_ms = self._clock.unix_ms()
        if job.state is not JobState.RUNNING:  # it is to be cancelled, and nobody waits any more
            asked = replace(job, approval_id=approval_id)
            return self._done(asked, without_answer(job, stopped(job), now_unix_ms), None)
        call = job.call._replace(approval_id=approval_id)
        return moved(
            job,
            JobState.AWAITING_APPROVAL,
            now_unix_ms,
            call=call,
            approval_id=approval_id,
            runner="",
            begun=False,
        )

    async def _put_down(self, live: LiveJob, step: Step, cause: str = "") -> None:
        while True:
            try:
                await live.change(step, cause)
                return
            except ToolFailure as unreachable:
                self._ledger.observer.troubled(live.job.job_id, unreachable)
                await asyncio.sleep(RETRY_S)
            except Superseded:
                return


def _comes_back(job: Job, result: ToolResult) -> bool:
    """Whether the run was turned away by what passes (no room, a resting upstream, a store that is away) before it did
    anything, its tool's question included: a job can wait, so it queues again and the next sweep delivers it, until
    its deadline."""
    error = result.error
    if error is None or error.kind not in _LATER or not error.is_retryable:
        return False
    has_done_nothing = result.attempts == 0 or error.details.get(UNASKED) is True
    return has_done_nothing and job.state is JobState.RUNNING and job.runs < _RUNS_MAX
