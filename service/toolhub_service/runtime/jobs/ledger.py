"""Every change of a job: compare-and-set in the store, then the audit log and the observer.

A job that ends, or is to stop, while a person is asked for it withdraws its approval.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.audit_attributes import attributes_of, was_taken_over

# How long jobs may take and are stored, and when a process counts as dead.


RETRY_S = 1.0
"""Seconds between attempts to reach a store."""


class JobTerms(msgspec.Struct, frozen=True):
    default_timeout_s: float = 3_600.0
    """Timeout of a job whose call names none."""
    max_timeout_s: float = 86_400.0
    max_open: int = 50_000
    """Most unfinished jobs in the whole store; further ones are refused."""
    keep_s: float = 604_800.0
    """How long a finished job is stored."""
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    """A process without a heartbeat for so long counts as dead, and its jobs are taken over."""

    @property
    def keep_ms(self) -> int:
        return round(self.keep_s * 1_000)

    @property
    def dead_after_ms(self) -> int:
        return round(self.dead_after_s * 1_000)


Withdraw = Callable[[str, str, str], Awaitable[None]]
"""Ends the approval (id) of a job (id) for a reason, unless it has ended already."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class JobLedger:
    """Writes jobs to the `JobStore`, audited and observed."""

    def __init__(
        self,
        store: JobStore,
        audit: AuditLog,
        observer: JobObserver,
        clock: Clock,
        terms: JobTerms,
        withdraw: Withdraw,
        tenant_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`tenant_of` returns the tenant of a principal's id by the policy in force, empty where there are no
        tenants."""
        self.store = store
        self.observer = observer
        self.clock = clock
        self.terms = terms
        self._audit = audit
        self._withdraw = withdraw
        self.tenant_of_id = tenant_of
        self.forget_log: Callable[[Job], Awaitable[None]] | None = None
        """Called with a job that replays and has ended. The composition sets it, because what it cancels are jobs."""

    def tenant_of(self, job: Job) -> str:
        """Return the tenant in whose queue the job waits."""
        return self.tenant_of_id(job.call.principal.id)

    async def create(self, job: Job) -> Job | None:
        """Create as `JobStore.create` does; an existing job counts as created when only its confirmation was lost."""
        try:
            existing = await self.store.create(job)
        except ToolFailure:
            if not _is_same(await self.store.get(job.job_id), job):
                raise
            existing = None
        if existing is None:
            self.observer.on_accept(job)
            self._audit_event(EventType.JOB_SUBMITTED, None, job, _NOTHING)
        return existing

    async def put(
        self, before: Job, job: Job, *, again: bool = False, attributes: Mapping[str, str] = _NOTHING
    ) -> bool:
        """Store as `JobStore.put` does. `again` says that this very record was sent before, and may have been stored.
        `attributes` is what the audit event says of the change beyond the records."""
        kept = await self.store.put(job) or (again and _is_same(await self.store.get(job.job_id), job))
        if kept and job.state is not before.state:
            self.observer.on_change(before, job)
        if kept and (job.state is not before.state or was_taken_over(before, job)):
            self._audit_event(EventType.JOB_STATE, before, job, attributes)
        if kept and job.approval_id and _waits_no_more(before, job):
            await self.withdraw(job, job.approval_id)
        if kept and job.replays and job.state.is_final:
            await self._forget_log(job)
        return kept

    async def change(
        self, job_id: str, transition: Callable[[Job], Job | None], attributes: Mapping[str, str] = _NOTHING
    ) -> Job | None:
        """Apply `transition` to the stored record, again while others change it first; None from it changes nothing.

        Return the job as it is afterwards; None when there is none. `attributes` as in `put`.
        """
        while (job := await self.store.get(job_id)) is not None:
            after = transition(job)
            if after is None:
                return job
            if await self.put(job, after, attributes=attributes):
                return after
        return None

    async def withdraw(self, job: Job, approval_id: str) -> None:
        """Withdraw approvals that this job no longer waits for. The sweep repeats what fails here."""
        try:
            await self._withdraw(approval_id, job.job_id, _why_withdrawn(job))
        except ToolFailure as away:
            self.observer.on_problem(job.job_id, away)

    async def _forget_log(self, job: Job) -> None:
        """Delete the log of inner calls. The sweep repeats what fails here."""
        if self.forget_log is None:
            return
        try:
            await self.forget_log(job)
        except ToolFailure as away:
            self.observer.on_problem(job.job_id, away)

    def _audit_event(self, type: EventType, before: Job | None, job: Job, attributes: Mapping[str, str]) -> None:
        """Audit the change. A broken audit log refuses calls, but must not cost a job its state."""
        result, context = job.status.result, job.call.context
        event = Event(
            type=type,
            at_unix_ms=job.status.at_unix_ms,
            principal=job.call.principal.id,
            tool=job.call.tool,
            tool_digest=job.tool_digest,
            call_id=job.call.call_id,
            request_id=context.request_id,
            args_digest=job.args_digest,
            outcome="" if result is None else "ok" if result.error is None else result.error.kind.value,
            attributes={**job.call.principal.facts, **attributes_of(before, job, attributes)},
            user_id=context.user_id,
            agent_id=context.agent_id,
            task_id=context.task_id,
            session_id=context.session_id,
            labels=context.labels,
        )
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self.observer.on_problem(job.job_id, broken)


def _waits_no_more(before: Job, job: Job) -> bool:
    """Return whether the call that waits for approval will not be made; a stopping run ends its own approval first."""
    if job.state is JobState.CANCELLING:
        return before.state in (JobState.QUEUED, JobState.AWAITING_APPROVAL)
    return job.state.is_final and job.state is not JobState.SUCCEEDED


def _why_withdrawn(job: Job) -> str:
    if job.cancelled_by:
        reason = f": {job.cancel_reason}" if job.cancel_reason else "."
        return f"{job.cancelled_by} cancelled the job that requested it{reason}"
    if job.state.is_final:
        return f"The job that requested it has ended: it is {job.state.value}."
    return "The job that requested it no longer waits for it."


def _is_same(existing: Job | None, job: Job) -> bool:
    """Return whether the store has this very record, recognised by what no other writer would have written with this
    version."""
    return existing is not None and _facts(existing) == _facts(job)


def _facts(job: Job) -> tuple[object, ...]:
    status = job.status
    place = status.job_id, status.sequence, status.state, status.at_unix_ms, job.call.call_id
    return job.version, *place, job.runner, job.runs, job.begun, job.remote, job.cancel_reason, job.cancelled_by
