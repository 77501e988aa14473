"""Long work: a call that outlives its RPC, and the history of what became of it (AIP-216)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call
from toolhub_service.domain.job_state import JobRef, JobState
from toolhub_service.domain.progress import Progress
from toolhub_service.domain.result import ToolResult


class JobStatus(NamedTuple):
    """One entry of a job's history: appended before anyone sees it, never changed."""

    job_id: str
    sequence: int
    """From 1, gapless within the job."""
    state: JobState
    """From here on."""
    at_unix_ms: int
    progress: Progress | None = None
    """The latest report; None when the runner has not said."""
    result: ToolResult | None = None
    """The whole outcome. Set exactly in final states; its `error` says why a job did not succeed."""
    artifacts: tuple[ArtifactRef, ...] = ()
    """Produced so far."""


class RemoteMark(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store keeps it. Every change is a new record with the next version (see job_machine)."""

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

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def ref(self) -> JobRef:
        return JobRef(self.job_id, self.state)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to read; empty fields match everything, and filled ones are joined by AND."""

    principal: str = ""
    states: frozenset[JobState] = frozenset()
    tool: str = ""
    """A name or a glob (fnmatch, case-sensitive)."""
    request_id: str = ""
    task_id: str = ""


class JobNews(NamedTuple):
    """What a store tells its listener: a job has got further."""

    job_id: str
    """Empty: something may have been missed; look at everything of interest again."""
    sequence: int = 0
    status: JobStatus | None = None
    """The entry itself where it is at hand; None: read it from the store."""


@dataclass(frozen=True, slots=True)
class JobTally:
    """How much work there is in the whole store, for metrics and for shedding."""

    by_state: Mapping[JobState, int]
    """Jobs in each state that is not final; absent states have none."""
    oldest_queued_at_unix_ms: int | None = None
    """When the job that has been QUEUED longest was accepted; None when none is."""
