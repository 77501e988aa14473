"""Every change of a job goes through here: compare-and-set in the store, then the audit log and the observer.

A job that ends, or is to stop, while a person is asked for it takes its question back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import Job, JobNews
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.result import JobState

# Why a job is where it is, as the audit log tells it: read off the two records of a change, bounded.
#
# from                the state before
# runner              the process that has it, or had it until now
# taken_over_from     the process that had it and has died
# cancelled_by        who asked for its end, and with which cancel_reason
# approval_id         what it waits for
# timeout_s           of what its time has passed
# cause, message      the error's own; `cause` alone where it goes back to its queue

# Characters of a reason or a message.
_TEXT_MAX = 500


def attributes_of(before: Job | None, job: Job, attributes: Mapping[str, str]) -> dict[str, str]:
    """Of the audit event of a change from `before` to `job`, with `attributes` that the records do not show."""
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
    return {name: value[:_TEXT_MAX] for name, value in (facts | dict(attributes)).items() if value}


def was_taken_over(before: Job, job: Job) -> bool:
    """Whether it went from one process to another without going back to its queue."""
    return bool(before.runner and job.runner) and job.runner != before.runner


def cause_of(error: ToolError) -> str:
    """The cause among its details, such as RUNNER_DIED; else its kind."""
    cause = error.details.get("cause")
    return cause if isinstance(cause, str) else error.kind.value


# How long jobs may take and are remembered, and when a process counts as dead.


RETRY_S = 1.0
"""Between attempts to reach a store that is away."""


class JobTerms(msgspec.Struct, frozen=True):
    default_timeout_s: float = 3_600.0
    """Of a job whose call names no timeout."""
    max_timeout_s: float = 86_400.0
    max_open: int = 50_000
    """Jobs that are not finished, in the whole store; beyond, new ones are shed."""
    keep_s: float = 604_800.0
    """How long a finished job is remembered."""
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    """Without a sign of life for so long, a process is dead and its jobs are taken."""

    @property
    def keep_ms(self) -> int:
        return round(self.keep_s * 1_000)

    @property
    def dead_after_ms(self) -> int:
        return round(self.dead_after_s * 1_000)


Withdraw = Callable[[str, str, str], Awaitable[None]]
"""End the approval (its id) of a job (its id) because of something, unless it has ended."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class JobLedger:
    """What `JobStore` keeps, audited and observed."""

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
        """`tenant_of`: the tenant of a principal's id by the policy in force; empty: there are none."""
        self.store = store
        self.observer = observer
        self.clock = clock
        self.terms = terms
        self._audit = audit
        self._withdraw = withdraw
        self.tenant_of_id = tenant_of
        self.forget_log: Callable[[Job], Awaitable[None]] | None = None
        """Of a job that replays and is over; given by the composition, for what it stops are jobs."""

    def tenant_of(self, job: Job) -> str:
        """Whose turn it waits for."""
        return self.tenant_of_id(job.call.principal.id)

    async def create(self, job: Job) -> Job | None:
        """As `JobStore.create`; a job that is there already, because its confirmation was lost, counts as created."""
        try:
            existing = await self.store.create(job)
        except ToolFailure:
            if not _is_same(await self.store.get(job.job_id), job):
                raise
            existing = None
        if existing is None:
            self.observer.accepted(job)
            self._audit_event(EventType.JOB_SUBMITTED, None, job, _NOTHING)
        return existing

    async def put(
        self, before: Job, job: Job, *, again: bool = False, attributes: Mapping[str, str] = _NOTHING
    ) -> bool:
        """As `JobStore.put`. `again`: this very record was sent before, and whether it was kept is not known.
        `attributes`: what the audit event says of the change besides, which the records do not show."""
        kept = await self.store.put(job) or (again and _is_same(await self.store.get(job.job_id), job))
        if kept and job.state is not before.state:
            self.observer.changed(before, job)
        if kept and (job.state is not before.state or was_taken_over(before, job)):
            self._audit_event(EventType.JOB_STATE, before, job, attributes)
        if kept and job.approval_id and _waits_no_more(before, job):
            await self.withdraw(job, job.approval_id)
        if kept and job.replays and job.state.is_final:
            await self._forget_log(job)
        return kept

    async def change(
        self, job_id: str, step: Callable[[Job], Job | None], attributes: Mapping[str, str] = _NOTHING
    ) -> Job | None:
        """Apply `step` to the record as it stands, anew while others are faster; None from it leaves all as it is.

        The job as it stands afterwards; None when there is none. `attributes` as in `put`.
        """
        while (job := await self.store.get(job_id)) is not None:
            after = step(job)
            if after is None:
                return job
            if await self.put(job, after, attributes=attributes):
                return after
        return None

    async def withdraw(self, job: Job, approval_id: str) -> None:
        """Nobody is asked any more what this job does not wait for. What fails here is found by the sweep."""
        try:
            await self._withdraw(approval_id, job.job_id, _why_withdrawn(job))
        except ToolFailure as away:
            self.observer.troubled(job.job_id, away)

    async def _forget_log(self, job: Job) -> None:
        """What fails here is found by the sweep."""
        if self.forget_log is None:
            return
        try:
            await self.forget_log(job)
        except ToolFailure as away:
            self.observer.troubled(job.job_id, away)

    def _audit_event(self, type: EventType, before: Job | None, job: Job, attributes: Mapping[str, str]) -> None:
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
            self.observer.troubled(job.job_id, broken)


def _waits_no_more(before: Job, job: Job) -> bool:
    """Whether what it was to be approved for will not be done; a run that has begun to stop ends its own first."""
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
    """Whether the store has this very record, recognised by what no other writer would have put beside this version."""
    return existing is not None and _facts(existing) == _facts(job)


def _facts(job: Job) -> tuple[object, ...]:
    status = job.status
    place = status.job_id, status.sequence, status.state, status.at_unix_ms, job.call.call_id
    return job.version, *place, job.runner, job.runs, job.begun, job.remote, job.cancel_reason, job.cancelled_by


# A job in this process's hands: its changes happen one at a time, and stop when it is no longer ours.
#
# What was sent to a store that did not answer may have been kept or not. So the same change, tried again, sends the
# very same record, which is recognised when it is there: nothing is written twice, and nothing goes unaudited.

Step = Callable[[Job], Job]


class Superseded(Exception):
    """The job has ended or has another runner: whatever is still being done for it here is void."""


class _Sent(NamedTuple):
    step: Step
    before: Job
    after: Job


class LiveJob:
    def __init__(self, job: Job, runner: str, ledger: JobLedger) -> None:
        self.job = job
        """As this process knows it."""
        self.stopping = asyncio.Event()
        self.stops_itself = job.remote is not None
        """Whether the adapter ends by itself when `stopping` is set. What may run on a remote side already is stopped
        by its adapter alone, so the work must get as far as that."""
        self.work: asyncio.Task[Any] | None = None
        """The pipeline's run of its call."""
        self.is_cancelled = False
        """Whether the work was cancelled."""
        self.is_superseded = False
        """Whether somebody else runs it."""
        self.waits_within = ""
        """The approval that a call of its run waits for."""
        self.ending: Step | None = None
        """The last entry, once it is known."""
        self.cause = ""
        """Why it is that, as far as the run tells."""
        self._runner = runner
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._sent: _Sent | None = None
        self._latest_sequence = 0
        self._has_missed = False

    async def change(self, step: Step, cause: str = "") -> Job:
        """`cause`: why, for the audit log. Raises Superseded, or ToolFailure when the store cannot be reached."""
        async with self._one_at_a_time:
            while True:
                before, (after, again) = self.job, self._next(step)
                if await self._ledger.put(before, after, again=again, attributes={"cause": cause} if cause else {}):
                    self._sent, self.job = None, after
                    return after
                self._sent = None
                await self._reload()

    def on_event(self, news: JobNews) -> None:
        """Note an entry that the store announced; without a status, or without an id, `catch_up` must read it."""
        self._latest_sequence = max(self._latest_sequence, news.sequence)
        self._has_missed = self._has_missed or not news.job_id
        if news.status is not None and news.status.state is JobState.CANCELLING:
            self.stop()

    @property
    def is_behind(self) -> bool:
        """Whether the store may have more than is known here."""
        return self._has_missed or self._latest_sequence > self.job.status.sequence

    async def catch_up(self) -> None:
        """Read the record, unless the announced entry was this process's own. Raises as `change`."""
        async with self._one_at_a_time:
            if not self.is_behind:
                return
            self._has_missed, latest_sequence = False, self._latest_sequence
            try:
                await self._reload()
            except ToolFailure:
                self._has_missed = True
                raise
            if self._latest_sequence == latest_sequence:
                self._latest_sequence = 0

    def stop(self) -> None:
        """Cancellation was asked for."""
        self.stopping.set()
        if not self.stops_itself:
            self.cancel_work()

    def cancel_work(self) -> None:
        """Cancel the work, once: a second cancellation would interrupt its cleanup."""
        if self.work is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.work.cancel()

    def _next(self, step: Step) -> tuple[Job, bool]:
        """The record to send, and whether it was sent before."""
        sent = self._sent
        if sent is not None and sent.step is step and sent.before is self.job:
            return sent.after, True
        self._sent = _Sent(step, self.job, step(self.job))
        return self._sent.after, False

    async def _reload(self) -> None:
        job = await self._ledger.store.get(self.job.job_id)
        if job is None or job.state.is_final or job.runner != self._runner:
            self.stops_itself = False
            self.is_superseded = job is not None and not job.state.is_final
            self.stop()
            raise Superseded
        self.job = job
        if job.state is JobState.CANCELLING:  # its announcement may count as old by now
            self.stop()


def not_ours() -> ToolFailure:
    return refuse(
        ErrorKind.CANCELLED, "Another hub process took this job, or the job has ended. This run has no effect."
    )
