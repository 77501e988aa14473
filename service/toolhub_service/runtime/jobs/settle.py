"""How a run ends: its result is stored, retried while the store is unreachable, or the job is requeued.

A process that shuts down cannot wait for a store forever: other processes claim what it could not store once its
heartbeat has expired.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from toolhub_service.domain.errors.failure import IDLE, STOPPED, ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.job import Job, amend_job, move_job
from toolhub_service.domain.result import Evidence, EvidenceType, JobState, Progress, ToolResult
from toolhub_service.runtime.approvals.tool_questions import UNASKED
from toolhub_service.runtime.failures import broke_off, crash
from toolhub_service.runtime.jobs.audit_attributes import cause_of
from toolhub_service.runtime.jobs.ledger import RETRY_S, JobLedger
from toolhub_service.runtime.jobs.live_job import LiveJob, Superseded, Transition
from toolhub_service.runtime.jobs.reports import JobSink

# How a job ends: which state follows from a result, and the result of a job that ended without one.

_TIMEOUTS = frozenset({ErrorKind.TIMEOUT.value, ErrorKind.HTTP_TIMEOUT.value})


def final_state(job: Job, result: ToolResult, now_unix_ms: int) -> JobState:
    """Return the state in which the job ends with this answer of its run.

    It is TIMED_OUT, even if the effect is unknown, when the job's deadline or an operator's limit has passed, or when
    the remote side stopped the work because it took too long.
    """
    error = result.error
    if error is None:
        return JobState.SUCCEEDED
    causes = {str(error.details.get("cause")), error.kind.value}
    is_late = now_unix_ms >= job.deadline_unix_ms or not {"timeout_s", IDLE, STOPPED}.isdisjoint(error.details)
    if is_late and causes & _TIMEOUTS:
        return JobState.TIMED_OUT
    if error.kind is ErrorKind.OUTCOME_UNKNOWN:
        return JobState.LOST
    return JobState.CANCELLED if error.kind is ErrorKind.CANCELLED else JobState.FAILED


def end_job(
    job: Job, state: JobState, result: ToolResult, now_unix_ms: int, keep_ms: int, progress: Progress | None = None
) -> Job:
    """Return the job with its last entry; `progress` is the latest report if it has no entry of its own."""
    return move_job(
        job,
        state,
        now_unix_ms,
        progress=progress,
        result=result,
        artifacts=result.artifacts,
        runner="",
        expires_at_unix_ms=now_unix_ms + keep_ms,
    )


def without_answer(job: Job, error: ToolError, now_unix_ms: int) -> ToolResult:
    """Return the result of a job that no pipeline has answered."""
    evidence = Evidence(
        type=EvidenceType.TOOL,
        ref=job.call.call_id,
        summary=f"{error.kind.value}: job {job.job_id} was {job.state.value}",
        created_at_unix_ms=now_unix_ms,
    )
    return ToolResult(
        ok=False,
        call_id=job.call.call_id,
        tool=job.call.tool,
        error=error,
        evidence=(evidence,),
        tool_version=job.tool_version,
        tool_digest=job.tool_digest,
        attempts=1 if job.begun else 0,
        request_id=job.call.context.request_id,
    )


def end_job_unanswered(ledger: JobLedger, job: Job, state: JobState, error: ToolError) -> Job:
    """Return the job with its last entry, at the current time, where no pipeline has answered."""
    now_unix_ms = ledger.clock.unix_ms()
    return end_job(job, state, without_answer(job, error, now_unix_ms), now_unix_ms, ledger.terms.keep_ms)


def broken_off_error(job: Job, how: str, cause: str) -> ToolError:
    """Return the error of an interrupted run; `how` is a clause that says what interrupted it."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{how}, and the call may have had its effect. Check that before you submit it again.",
        details={"cause": cause, "runs": job.runs},
    )


def out_of_reach(job: Job, refused: ToolError) -> ToolError:
    """Return the error of a job that an earlier run sent to a remote side, when a later run was refused before it could
    look there."""
    if refused.kind is ErrorKind.OUTCOME_UNKNOWN:
        return refused
    mark = job.remote
    where = "" if mark is None else f" It may still run there as {mark.remote_id or mark.key}."
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{job.call.tool} was submitted to its remote server, and the hub may no longer follow it: "
        f"{refused.message}{where}",
        details={"cause": refused.kind.value, **refused.details},
    )


def never_ran() -> ToolError:
    return ToolError(kind=ErrorKind.CANCELLED, message="The job was cancelled before it ran; nothing happened.")


def cancelled_job_error(job: Job) -> ToolError:
    """Return the error of a job that was cancelled while it ran here."""
    partly = " It had started and may have had a part of its effect." if job.begun else ""
    return ToolError(kind=ErrorKind.CANCELLED, message=f"The job was cancelled and has stopped.{partly}")


def too_late(job: Job) -> ToolError:
    return ToolError(
        kind=ErrorKind.TIMEOUT,
        message="The job's deadline passed before it finished. Submit it again with a larger budget.timeout, or "
        "when fewer jobs are waiting.",
        details={"deadline_unix_ms": job.deadline_unix_ms},
    )


_PASSING = frozenset({ErrorKind.RATE_LIMITED, ErrorKind.CIRCUIT_OPEN, ErrorKind.TOOL_UNAVAILABLE})
# Most deliveries of one job; after so many refusals the job ends with the last one.
_RUNS_MAX = 1_000
LEAVING_S = 5.0
"""Seconds in which a process that shuts down tries to store an end."""


class JobSettlement:
    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._clock = ledger.clock

    async def settle(self, live: LiveJob, progress: Progress | None) -> None:
        """Store how the work ended, retrying until the store has it."""
        if live.ending is None:
            result = self._result(live)
            live.ending = self._ending(result, progress, live.waits_within)
            live.cause = cause_of(result.error) if result.error else ""
        try:
            await self._persist(live, live.ending, live.cause)
        except Exception as defect:  # noqa: BLE001 - a result that no store can keep must not leave the job RUNNING
            self._ledger.observer.on_problem(live.job.job_id, defect)
            live.ending = self._ending(self._crash_result(live.job), None)
            await self._persist(live, live.ending)

    async def hand_over(self, live: LiveJob, sink: JobSink) -> None:
        """At shutdown: work that has ended, by itself or by cancellation, is stored as such; a job that can run again
        is requeued; any other ends as LOST or CANCELLED."""
        work, was_stopped = live.work, live.is_cancelled
        assert work is not None  # it is running
        live.cancel_work()
        await asyncio.wait({work})
        progress = await sink.close()
        if was_stopped or not work.cancelled():
            putting = asyncio.create_task(self.settle(live, progress))
        else:
            putting = asyncio.create_task(self._persist(live, self._requeue_job, "HUB_STOPPED"))
        await asyncio.wait({putting}, timeout=LEAVING_S)
        putting.cancel()
        await asyncio.wait({putting})
        if not putting.cancelled() and (problem := putting.exception()) is not None:
            self._ledger.observer.on_problem(live.job.job_id, problem)

    def _requeue_job(self, job: Job) -> Job:
        if job.begun and job.remote is None:
            unclear = broken_off_error(job, f"The hub was stopped while {job.call.tool} ran", "HUB_STOPPED")
            return end_job_unanswered(self._ledger, job, JobState.LOST, unclear)
        if job.state is not JobState.CANCELLING:
            return move_job(job, JobState.QUEUED, self._clock.unix_ms(), runner="")
        if job.remote is not None:
            return amend_job(job, runner="")
        return end_job_unanswered(self._ledger, job, JobState.CANCELLED, cancelled_job_error(job))

    def _result(self, live: LiveJob) -> ToolResult:
        work = live.work
        assert work is not None  # it was awaited
        if work.cancelled():
            return without_answer(live.job, cancelled_job_error(live.job), self._clock.unix_ms())
        problem = work.exception()
        if problem is None and isinstance(answer := work.result(), ToolResult):
            return answer
        self._ledger.observer.on_problem(live.job.job_id, problem or TypeError("a job was answered with a plan"))
        return self._crash_result(live.job)

    def _crash_result(self, job: Job) -> ToolResult:
        error = crash(job.call.call_id)
        if job.begun or job.remote is not None:
            error = broke_off(job.call.tool, job.call.call_id, error)
        return without_answer(job, error, self._clock.unix_ms())

    def _ending(self, result: ToolResult, progress: Progress | None, waits_within: str = "") -> Transition:
        """Return the transition that ends the run; `waits_within` is the approval of a call made by the job that ended
        the run."""
        error = result.error
        if error is not None and error.kind is ErrorKind.APPROVAL_REQUIRED:
            approval_id = str(error.details.get("approval_id", ""))
            if approval_id:
                is_own = approval_id != waits_within
                return lambda job: self._waiting(job, result, approval_id, is_own=is_own)
        return lambda job: self._finish_job(job, result, progress)

    def _finish_job(self, job: Job, result: ToolResult, progress: Progress | None) -> Job:
        now_unix_ms = self._clock.unix_ms()
        if _is_requeued(job, result):
            return move_job(job, JobState.QUEUED, now_unix_ms, runner="", begun=False)
        if job.remote is not None and result.error is not None and result.attempts == 0:
            result = without_answer(job, out_of_reach(job, result.error), now_unix_ms)
        state = final_state(job, result, now_unix_ms)
        return end_job(job, state, result, now_unix_ms, self._ledger.terms.keep_ms, progress)

    def _waiting(self, job: Job, result: ToolResult, approval_id: str, *, is_own: bool) -> Job:
        """Return the job as waiting for a person: its tool has a question or policy has changed since it was accepted,
        or (not `is_own`) a call that it makes needs approval."""
        now_unix_ms = self._clock.unix_ms()
        if job.state is not JobState.RUNNING:  # it is being cancelled, and nobody waits any more
            asked = structs.replace(job, approval_id=approval_id)
            return self._finish_job(asked, without_answer(job, cancelled_job_error(job), now_unix_ms), None)
        call = job.call._replace(approval_id=approval_id) if is_own else job.call
        return move_job(
            job,
            JobState.AWAITING_APPROVAL,
            now_unix_ms,
            call=call,
            approval_id=approval_id,
            runner="",
            begun=False,
        )

    async def _persist(self, live: LiveJob, transition: Transition, cause: str = "") -> None:
        while True:
            try:
                await live.change(transition, cause)
                return
            except ToolFailure as unreachable:
                self._ledger.observer.on_problem(live.job.job_id, unreachable)
                await asyncio.sleep(RETRY_S)
            except Superseded:
                return


def _is_requeued(job: Job, result: ToolResult) -> bool:
    """Return whether the run was refused for a passing reason (no room, a resting upstream, an unreachable store)
    before it did anything, its tool's question included. A job can wait, so it is queued again, and the next sweep
    delivers it, until its deadline."""
    error = result.error
    if error is None or error.kind not in _PASSING or not error.is_retryable:
        return False
    has_done_nothing = result.attempts == 0 or error.details.get(UNASKED) is True
    return has_done_nothing and job.state is JobState.RUNNING and job.runs < _RUNS_MAX
