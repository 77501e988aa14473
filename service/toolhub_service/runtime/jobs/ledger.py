"""Every change of a job goes through here: compare-and-set in the store, then the audit log and the observer."""

from __future__ import annotations

from collections.abc import Callable

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.ports import AuditLog, Clock


class JobLedger:
    """What `JobStore` keeps, audited and observed."""

    def __init__(self, store: JobStore, audit: AuditLog, observer: JobObserver, clock: Clock) -> None:
        self.store = store
        self.observer = observer
        self.clock = clock
        self._audit = audit

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
            self._remember(EventType.JOB_SUBMITTED, job)
        return standing

    async def put(self, before: Job, job: Job, *, again: bool = False) -> bool:
        """As `JobStore.put`. `again`: this very record was sent before, and whether it was kept is not known."""
        kept = await self.store.put(job) or (again and _is(await self.store.get(job.job_id), job))
        if kept and job.state is not before.state:
            self.observer.changed(before, job)
            self._remember(EventType.JOB_STATE, job)
        return kept

    async def change(self, job_id: str, step: Callable[[Job], Job | None]) -> Job | None:
        """Apply `step` to the record as it stands, anew while others are faster; None from it leaves all as it is.

        The job as it stands afterwards; None when there is none.
        """
        while (job := await self.store.get(job_id)) is not None:
            after = step(job)
            if after is None:
                return job
            if await self.put(job, after):
                return after
        return None

    def _remember(self, type: EventType, job: Job) -> None:
        """An audit log that is broken refuses calls; it must not cost a job its state."""
        result = job.status.result
        attributes = {"job_id": job.job_id, "state": job.state.value, "runs": str(job.runs)}
        if job.cancel_reason:
            attributes["cancel_reason"] = job.cancel_reason
        event = Event(
            type=type,
            at_unix_ms=job.status.at_unix_ms,
            principal=job.call.principal.id,
            tool=job.call.tool,
            tool_digest=job.tool_digest,
            call_id=job.call.call_id,
            request_id=job.call.context.request_id,
            args_digest=job.args_digest,
            outcome="" if result is None else "ok" if result.error is None else result.error.kind.value,
            attributes=attributes,
        )
        try:
            self._audit.append(event)
        except ToolFailure as broken:
            self.observer.troubled(job.job_id, broken)


def _is(standing: Job | None, job: Job) -> bool:
    """Whether the store has this very record, told by what no other writer would have put beside this version."""
    return standing is not None and _facts(standing) == _facts(job)


def _facts(job: Job) -> tuple[object, ...]:
    place = job.version, job.status[:4], job.call.call_id
    return *place, job.runner, job.runs, job.begun, job.remote, job.cancel_reason
