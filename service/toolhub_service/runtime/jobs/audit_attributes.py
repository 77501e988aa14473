"""Audit attributes that explain a job's state, computed from the two records of a change, bounded.

from                the state before
runner              the process that runs it, or ran it until now
taken_over_from     the process that ran it and has died
cancelled_by        who requested cancellation, with its cancel_reason
approval_id         the approval that it waits for
timeout_s           the timeout of a job whose time has passed
cause, message      the error's own; only `cause` where it is queued again.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import Job
from toolhub_service.domain.result import JobState

# Longest reason or message, in characters.
_TEXT_MAX = 500


def attributes_of(before: Job | None, job: Job, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the audit event for the change from `before` to `job`; `attributes` adds what the
    records do not show."""
    facts = {"job_id": job.job_id, "state": job.state.value, "runs": str(job.runs)}
    if before is not None:
        facts |= {"from": before.state.value, "runner": job.runner or before.runner}
        if was_taken_over(before, job):
            facts["taken_over_from"] = before.runner
        if JobState.AWAITING_APPROVAL in (before.state, job.state):
            facts["approval_id"] = job.approval_id
    if job.cancel_reason is not None:
        facts |= {"cancelled_by": job.cancelled_by, "cancel_reason": job.cancel_reason}
    if job.state is JobState.TIMED_OUT:
        facts["timeout_s"] = f"{(job.deadline_unix_ms - job.created_at_unix_ms) / 1_000:g}"
    result = job.status.result
    if result is not None and result.error is not None:
        facts |= {"cause": cause_of(result.error), "message": result.error.message}
    return {name: excerpt(value, _TEXT_MAX) for name, value in (facts | dict(attributes)).items() if value}


def was_taken_over(before: Job, job: Job) -> bool:
    """Return whether the job changed its runner without going back to the queue."""
    return bool(before.runner and job.runner) and job.runner != before.runner


def cause_of(error: ToolError) -> str:
    """Return the cause in the error's details, such as RUNNER_DIED; else the error's kind."""
    cause = error.details.get("cause")
    return cause if isinstance(cause, str) else error.kind.value
