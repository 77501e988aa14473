"""Why a job is where it is, as the audit log tells it: read off the two records of a change, bounded.

from                the state before
runner              the process that has it, or had it until now
taken_over_from     the process that had it and has died
cancelled_by        who asked for its end, and with which cancel_reason
approval_id         what it waits for
timeout_s           of what its time has passed
cause, message      the error's own; `cause` alone where it goes back to its queue
"""

from __future__ import annotations

from collections.abc import Mapping

from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_state import JobState

_TEXT_MAX = 500
"""Characters of a reason or a message."""


def attributes_of(before: Job | None, job: Job, told: Mapping[str, str]) -> dict[str, str]:
    """Of the event that tells of `job`, which came after `before`. `told`: what the records do not show."""
    facts = {"job_id": job.job_id, "state": job.state.value, "runs": str(job.runs)}
    if before is not None:
        facts |= _change(before, job)
    if job.cancel_reason is not None:
        facts |= {"cancelled_by": job.cancelled_by, "cancel_reason": job.cancel_reason}
    if job.state is JobState.TIMED_OUT:
        facts["timeout_s"] = f"{(job.deadline_unix_ms - job.created_at_unix_ms) / 1_000:g}"
    result = job.status.result
    if result is not None and result.error is not None:
        facts |= {"cause": cause_of(result.error), "message": result.error.message}
    return {name: value[:_TEXT_MAX] for name, value in (facts | dict(told)).items() if value}


def was_taken_over(before: Job, job: Job) -> bool:
    """Whether it went from one process to another without going back to its queue."""
    return bool(before.runner and job.runner) and job.runner != before.runner


def cause_of(error: ToolError) -> str:
    """The cause among its details, such as RUNNER_DIED; else its kind."""
    cause = error.details.get("cause")
    return cause if isinstance(cause, str) else error.kind.value


def _change(before: Job, job: Job) -> dict[str, str]:
    facts = {"from": before.state.value, "runner": job.runner or before.runner}
    if was_taken_over(before, job):
        facts["taken_over_from"] = before.runner
    if JobState.AWAITING_APPROVAL in (before.state, job.state):
        facts["approval_id"] = job.approval_id
    return facts
