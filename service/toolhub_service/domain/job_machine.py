"""The one state machine of jobs, which runtime and stores share.

    QUEUED ───────────────► RUNNING ──► SUCCEEDED | FAILED | CANCELLED | TIMED_OUT | LOST
      ▲  │                   │   │
      │  └► AWAITING_APPROVAL◄┘   └──► CANCELLING ──► any final state
      └────────┘

RUNNING goes back to QUEUED when its runner hands it over, and RUNNING or CANCELLING follow themselves as progress. One
that waits, again, with work on a remote side can be CANCELLING without having run again. A change is a pure function
from one record to the next; the store keeps it by compare-and-set on `version`. A job that is over will not run again,
and has no arguments any more: their digest says what they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.job_state import FINAL_STATES, JobState
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import ToolResult

_FOLLOWING: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: FINAL_STATES | {JobState.RUNNING, JobState.AWAITING_APPROVAL, JobState.CANCELLING},
    JobState.AWAITING_APPROVAL: FINAL_STATES | {JobState.QUEUED, JobState.CANCELLING},
    JobState.RUNNING: FINAL_STATES
    | {JobState.RUNNING, JobState.QUEUED, JobState.AWAITING_APPROVAL, JobState.CANCELLING},
    JobState.CANCELLING: FINAL_STATES | {JobState.CANCELLING},
}


class ForbiddenTransition(Exception):
    """The job is not where the change thought it was: read it again and decide anew."""


def may_follow(now: JobState, then: JobState) -> bool:
    """Whether an entry with state `then` may come right after one with state `now`."""
    return then in _FOLLOWING.get(now, frozenset())


def moved(
    job: Job,
    state: JobState,
    at_unix_ms: int,
    *,
    progress: Progress | None = None,
    result: ToolResult | None = None,
    artifacts: tuple[ArtifactRef, ...] | None = None,
    **fields: Any,
) -> Job:
    """The job with the next entry in its history. `progress` and `artifacts` left out stay as they were.

    Raises ForbiddenTransition when `state` may not follow, or when a result and a final state do not go together.
    """
    status = job.status
    if not may_follow(status.state, state):
        raise ForbiddenTransition(f"{state.value} may not follow {status.state.value}")
    if state.is_final != (result is not None):
        raise ForbiddenTransition("a result and a final state come together")
    entry = JobStatus(
        job_id=job.job_id,
        sequence=status.sequence + 1,
        state=state,
        at_unix_ms=max(at_unix_ms, status.at_unix_ms),
        progress=progress or status.progress,
        result=result,
        artifacts=status.artifacts if artifacts is None else artifacts,
    )
    if state.is_final:
        fields["call"] = fields.get("call", job.call)._replace(args={})
    since_unix_ms = job.state_since_unix_ms if state is status.state else entry.at_unix_ms
    return replace(job, status=entry, version=job.version + 1, state_since_unix_ms=since_unix_ms, **fields)


def amended(job: Job, **fields: Any) -> Job:
    """The job with changed fields that watchers do not see: nothing is added to its history."""
    return replace(job, version=job.version + 1, **fields)


def has_new_entry(job: Job, before: Job) -> bool:
    """Whether `job`, the record after `before`, adds an entry. Raises ForbiddenTransition for one that may not."""
    if job.status.sequence == before.status.sequence:
        return False
    if job.status.sequence != before.status.sequence + 1 or not may_follow(before.state, job.state):
        raise ForbiddenTransition(f"{job.state.value} may not follow {before.state.value}")
    return True
