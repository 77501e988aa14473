"""How a job ends: which state a result is, and the result of a job that ended without one."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import Evidence, EvidenceType, ToolResult

_TIMEOUTS = frozenset({ErrorKind.TIMEOUT.value, ErrorKind.HTTP_TIMEOUT.value})


def final_state(job: Job, result: ToolResult, now_unix_ms: int) -> JobState:
    """What the run's answer means for its job. A deadline that passed is TIMED_OUT even if the effect is unknown."""
    error = result.error
    if error is None:
        return JobState.SUCCEEDED
    causes = {str(error.details.get("cause")), error.kind.value}
    if now_unix_ms >= job.deadline_unix_ms and causes & _TIMEOUTS:
        return JobState.TIMED_OUT
    if error.kind is ErrorKind.OUTCOME_UNKNOWN:
        return JobState.LOST
    return JobState.CANCELLED if error.kind is ErrorKind.CANCELLED else JobState.FAILED


def ended(
    job: Job, state: JobState, result: ToolResult, now_unix_ms: int, keep_ms: int, progress: Progress | None = None
) -> Job:
    """The job with its last entry; `progress` is the latest report, when it was not appended by itself."""
    return moved(
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
    """The result of a job that no pipeline has answered."""
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
    )


def runner_died(job: Job) -> ToolError:
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"The process that ran {job.call.tool} died while it ran, and the call may have had its effect. "
        "Check that before you submit it again.",
        retryable=False,
        details={"cause": "RUNNER_DIED", "runs": job.runs},
    )


def hub_stopped(job: Job) -> ToolError:
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"The hub was stopped while {job.call.tool} ran, and the call may have had its effect. "
        "Check that before you submit it again.",
        retryable=False,
        details={"cause": "HUB_STOPPED", "runs": job.runs},
    )


def out_of_reach(job: Job, refused: ToolError) -> ToolError:
    """An earlier run has sent it to a remote side, and it was refused before another could look there."""
    if refused.kind is ErrorKind.OUTCOME_UNKNOWN:
        return refused
    mark = job.remote
    where = "" if mark is None else f" It may still run there as {mark.remote_id or mark.key}."
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"The work of {job.call.tool} was given to its remote side, and the hub may not follow it any more: "
        f"{refused.message}{where}",
        retryable=False,
        details={"cause": refused.kind.value, **refused.details},
    )


def never_ran() -> ToolError:
    return ToolError(kind=ErrorKind.CANCELLED, message="The job was cancelled before it ran; nothing happened.")


def stopped(job: Job) -> ToolError:
    """It was cancelled while it ran, here."""
    partly = " It had begun and may have had a part of its effect." if job.begun else ""
    return ToolError(kind=ErrorKind.CANCELLED, message=f"The job was cancelled and has stopped.{partly}")


def too_late(job: Job) -> ToolError:
    return ToolError(
        kind=ErrorKind.TIMEOUT,
        message="The job's deadline passed before it could run to its end. Submit it again with a greater "
        "budget.timeout, or when less is waiting.",
        details={"deadline_unix_ms": job.deadline_unix_ms},
    )
