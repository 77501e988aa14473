"""Long work: a call that outlives its RPC, and the history of its states (AIP-216)."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call, Owners
from toolhub_service.domain.result import FINAL_STATES, JobRef, JobState, Progress, ToolResult


class JobStatus(Struct, frozen=True, gc=False):
    """One entry of a job's history: appended before anyone sees it, never changed."""

    job_id: str
    sequence: int
    """From 1, gapless within the job."""
    state: JobState
    """From here on."""
    at_unix_ms: int
    progress: Progress | None = None
    """The latest report; None when there was none."""
    result: ToolResult | None = None
    """The whole outcome. Set exactly in final states; its `error` says why a job did not succeed."""
    artifacts: tuple[ArtifactRef, ...] = ()
    """Produced so far."""


class RemoteMark(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of the remote side's own job: saved before it is followed, so that a re-run re-attaches."""

    key: str
    """Minted by the hub before anything was sent; the remote side's own id, or idempotency key, where it takes one."""
    remote_id: str = ""
    """The remote side's name for it; empty until it has answered."""
    accepted: bool = False
    """Whether the remote side is known to have it. False: sent, perhaps; to be looked up before any resend."""
    endpoint: str = ""
    """Which of several backends has it; empty where there is one."""
    details: Mapping[str, str] = MappingProxyType({})
    """What the adapter needs besides, and evidence."""


class Job(Struct, frozen=True, gc=False):
    """A job as the store keeps it. Every change (`moved`, `amended`) is a new record with the next version."""

    job_id: str
    call: Call
    """What runs: without a deadline of the loop clock; its principal's rights are looked up anew when it runs."""
    tool_version: str
    tool_digest: str
    """sha256 (hex) of the definition it was accepted with."""
    args_digest: str
    """sha256 (hex) over the canonical, completed arguments; empty when they were refused before that."""
    created_at_unix_ms: int
    deadline_unix_ms: int
    """When it is given up."""
    status: JobStatus
    """The latest entry of its history."""
    version: int = 1
    """Of the record: rises by 1 with every change, seen by watchers or not. What compare-and-set compares."""
    state_since_unix_ms: int = 0
    """When it came into its present state, whatever progress was reported since; 0: when it was created."""
    approval_id: str = ""
    """The approval it waits for or was given."""
    runner: str = ""
    """The process that holds it; empty when none does."""
    runs: int = 0
    """How often a runner took it."""
    begun: bool = False
    """Whether a runner has reached an effect that must not happen twice: from then on it is never run again."""
    remote: RemoteMark | None = None
    cancel_reason: str | None = None
    """Set once cancellation was asked for; may be empty."""
    expires_at_unix_ms: int = 0
    """When a finished job is forgotten; 0 while it is not final."""
    trace_parent: str = ""
    """W3C traceparent of the submitter; empty when it had none."""
    cancelled_by: str = ""
    """The principal who asked for cancellation; empty when nobody did, or the hub stops it for another reason."""
    replays: bool = False
    """As `ToolSpec.replays`, when it was accepted: its log is forgotten when it is over."""

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def ref(self) -> JobRef:
        return JobRef(self.job_id, self.state)

    @property
    def waits_within(self) -> bool:
        """Whether the approval it waits for is one of a call that it makes."""
        return self.replays and self.approval_id != self.call.approval_id


class JobFilter(Struct, frozen=True, gc=False):
    """Which jobs to read; empty fields match everything, and filled ones are joined by AND."""

    principal: str = ""
    states: frozenset[JobState] = frozenset()
    tool: str = ""
    """A name or a glob (fnmatch, case-sensitive)."""
    request_id: str = ""
    task_id: str = ""
    owners: Owners | None = None

    def matches(self, job: Job) -> bool:
        call = job.call
        return (
            (self.owners is None or self.owners(call.principal.id))
            and self.principal in ("", call.principal.id)
            and (not self.states or job.state in self.states)
            # As stores match it: fnmatch itself would ignore case on some systems.
            and (not self.tool or fnmatchcase(call.tool, self.tool))
            and self.request_id in ("", call.context.request_id)
            and self.task_id in ("", call.context.task_id)
        )


class JobNews(Struct, frozen=True, gc=False):
    """What a store tells its listener: a job has got further."""

    job_id: str
    """Empty: something may have been missed; look at everything of interest again."""
    sequence: int = 0
    status: JobStatus | None = None
    """The entry itself where it is at hand; None: read it from the store."""


class JobTally(Struct, frozen=True, gc=False):
    """How much work there is in the whole store, for metrics and for shedding."""

    by_state: Mapping[JobState, int]
    """Jobs in each state that is not final; absent states have none."""
    oldest_queued_at_unix_ms: int | None = None
    """When the job that has been QUEUED longest was accepted; None when none is."""


# The one state machine of jobs, which runtime and stores share.
#
#     QUEUED ───────────────► RUNNING ──► SUCCEEDED | FAILED | CANCELLED | TIMED_OUT | LOST
#       ▲  │                   │   │
#       │  └► AWAITING_APPROVAL◄┘   └──► CANCELLING ──► any final state
#       └────────┘
#
# RUNNING goes back to QUEUED when its runner hands it over, and RUNNING or CANCELLING follow themselves as progress.
# A job that waits again with work on a remote side can be CANCELLING without having run again. A change is a pure
# function from one record to the next; the store keeps it by compare-and-set on `version`. A job that is over will not
# run again, and has no arguments any more: their digest says what they were.

# A job may end without ever having run: cancelled, out of time, or refused when it is judged again.
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
    # Final states have no entry there: nothing follows them.
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
    # Checked here, where records are made, and again by stores: a defect of either must not end a job twice.
    if not may_follow(status.state, state):
        raise ForbiddenTransition(f"{state.value} may not follow {status.state.value}")
    if state.is_final != (result is not None):
        raise ForbiddenTransition("a result and a final state come together")
    entry = JobStatus(
        job_id=job.job_id,
        sequence=status.sequence + 1,
        state=state,
        # Clocks of two hubs may differ, and a history must not run backwards.
        at_unix_ms=max(at_unix_ms, status.at_unix_ms),
        progress=progress or status.progress,
        result=result,
        artifacts=status.artifacts if artifacts is None else artifacts,
    )
    if state.is_final:
        # Arguments may hold what is secret, and nobody needs them any more; the digest stays.
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
