"""Every change of a job goes through here: compare-and-set in the store, then the audit log and the observer.

A job that ends, or is to stop, while a person is asked for it takes its question back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.runtime.jobs.causes import attributes_of, was_taken_over

Withdraw = Callable[[str, str, str], Awaitable[None]]
"""End the approval (its id) of a job (its id) because of something, unless it has ended."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class JobLedger:
    """What `JobStore` keeps, audited and observed."""

    def __init__(
        self, store: JobStore, audit: AuditLog, observer: JobObserver, clock: Clock, withdraw: Withdraw
    ) -> None:
        self.store = store
        self.observer = observer
        self.clock = clock
        self._audit = audit
        self._withdraw = withdraw

    async def create(self, job: Job) -> Job | None:
        """As `JobStore.create`; a job that is there already, because its confirmation was lost, counts as created."""
        try:
            standing = await self.store.create(job)
        except ToolFailure:
            if not _is(await self.store.get(job.job_id), job):
                raise
            standing = None
        if standing is None:
            self.observer.accepted(job)
            self._remember(EventType.JOB_SUBMITTED, None, job, _NOTHING)
        return standing

    async def put(self, before: Job, job: Job, *, again: bool = False, told: Mapping[str, str] = _NOTHING) -> bool:
        """As `JobStore.put`. `again`: this very record was sent before, and whether it was kept is not known.
        `told`: what the audit log is told of the change that the records do not show."""
        kept = await self.store.put(job) or (again and _is(await self.store.get(job.job_id), job))
        if kept and job.state is not before.state:
            self.observer.changed(before, job)
        if kept and (job.state is not before.state or was_taken_over(before, job)):
            self._remember(EventType.JOB_STATE, before, job, told)
        if kept and job.approval_id and _waits_no_more(before, job):
            await self.withdraw(job, job.approval_id)
        return kept

    async def change(
        self, job_id: str, step: Callable[[Job], Job | None], told: Mapping[str, str] = _NOTHING
    ) -> Job | None:
        """Apply `step` to the record as it stands, anew while others are faster; None from it leaves all as it is.

        The job as it stands afterwards; None when there is none. `told` as in `put`.
        """
        while (job := await self.store.get(job_id)) is not None:
            after = step(job)
            if after is None:
                return job
            if await self.put(job, after, told=told):
                return after
        return None

    async def withdraw(self, job: Job, approval_id: str) -> None:
        """Nobody is asked any more what this job does not wait for. What fails here is found by the sweep."""
        try:
            await self._withdraw(approval_id, job.job_id, _why_withdrawn(job))
        except ToolFailure as away:
            self.observer.troubled(job.job_id, away)

    def _remember(self, type: EventType, before: Job | None, job: Job, told: Mapping[str, str]) -> None:
        """An audit log that is broken refuses calls; it must not cost a job its state."""
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
            attributes=attributes_of(before, job, told),
            user_id=context.user_id,
            agent_id=context.agent_id,
            task_id=context.task_id,
            session_id=context.session_id,
            labels=context.labels,
        )
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self.observer.troubled(job.job_id, broken)


def _waits_no_more(before: Job, job: Job) -> bool:
    """Whether what it was to be approved for will not be done; a run that has begun to stop ends its own first."""
    if job.state is JobState.CANCELLING:
        return before.state in (JobState.QUEUED, JobState.AWAITING_APPROVAL)
    return job.state.is_final and job.state is not JobState.SUCCEEDED


def _why_withdrawn(job: Job) -> str:
    if job.cancelled_by:
        said = f": {job.cancel_reason}" if job.cancel_reason else "."
        return f"{job.cancelled_by} has cancelled the job that asked for it{said}"
    if job.state.is_final:
        return f"The job that asked for it is over: it is {job.state.value}."
    return "The job that asked for it does not wait for it any more."


def _is(standing: Job | None, job: Job) -> bool:
    """Whether the store has this very record, told by what no other writer would have put beside this version."""
    return standing is not None and _facts(standing) == _facts(job)


def _facts(job: Job) -> tuple[object, ...]:
    place = job.version, job.status[:4], job.call.call_id
    return *place, job.runner, job.runs, job.begun, job.remote, job.cancel_reason, job.cancelled_by
