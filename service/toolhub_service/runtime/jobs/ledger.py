"""Every change of a job: compare-and-set in the store, then the audit log and the observer.

A job that ends, or is to stop, while a person is asked for it withdraws its approval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import Job, JobNews
from toolhub_service.domain.job_ports import JobObserver, JobStore
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.result import JobState

# Audit attributes that explain a job's state, computed from the two records of a change, bounded.
#
# from                the state before
# runner              the process that runs it, or ran it until now
# taken_over_from     the process that ran it and has died
# cancelled_by        who requested cancellation, with its cancel_reason
# approval_id         the approval that it waits for
# timeout_s           the timeout of a job whose time has passed
# cause, message      the error's own; only `cause` where it is queued again

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


# A job that this process runs: its changes are made one at a time, and end when another process takes it.
#
# A record that was sent to a store which did not answer may have been stored. So a repeated change sends the very same
# record, which is recognised if it is there: nothing is written twice, and nothing goes unaudited.

Transition = Callable[[Job], Job]


class Superseded(Exception):
    """The job has ended or has another runner, so this run's changes are void."""


class _Sent(NamedTuple):
    transition: Transition
    before: Job
    after: Job


class LiveJob:
    def __init__(self, job: Job, runner: str, ledger: JobLedger) -> None:
        self.job = job
        """The job as this process knows it."""
        self.stopping = asyncio.Event()
        self.stops_itself = job.remote is not None
        """Whether the adapter ends by itself when `stopping` is set. Work that may run on a remote side already can be
        stopped by its adapter only, so the run must reach the adapter."""
        self.work: asyncio.Task[Any] | None = None
        """The pipeline's run of the job's call."""
        self.is_cancelled = False
        """Whether the work was cancelled."""
        self.is_superseded = False
        """Whether another process runs the job."""
        self.waits_within = ""
        """Approval that a call made by this run waits for."""
        self.ending: Transition | None = None
        """The transition that makes the last entry, once it is known."""
        self.cause = ""
        """Cause of the ending, as far as the run shows it."""
        self._runner = runner
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._sent: _Sent | None = None
        self._latest_sequence = 0
        self._has_missed = False

    async def change(self, transition: Transition, cause: str = "") -> Job:
        """Apply the transition and store the job; `cause` is the reason for the audit log. Raises Superseded, or
        ToolFailure when the store cannot be reached."""
        async with self._one_at_a_time:
            while True:
                before, (after, again) = self.job, self._next(transition)
                if await self._ledger.put(before, after, again=again, attributes={"cause": cause} if cause else {}):
                    self._sent, self.job = None, after
                    return after
                self._sent = None
                await self._reload()

    def on_event(self, news: JobNews) -> None:
        """Note an entry that the store announced; one without a status or an id must be read by `catch_up`."""
        self._latest_sequence = max(self._latest_sequence, news.sequence)
        self._has_missed = self._has_missed or not news.job_id
        if news.status is not None and news.status.state is JobState.CANCELLING:
            self.stop()

    @property
    def is_behind(self) -> bool:
        """Whether the store may have more than this process knows."""
        return self._has_missed or self._latest_sequence > self.job.status.sequence

    async def catch_up(self) -> None:
        """Read the record, unless the announced entry was this process's own. Raises as `change` does."""
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
        """Cancel the work where it does not stop itself: cancellation was requested."""
        self.stopping.set()
        if not self.stops_itself:
            self.cancel_work()

    def cancel_work(self) -> None:
        """Cancel the work, once: a second cancellation would interrupt its cleanup."""
        if self.work is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.work.cancel()

    def _next(self, transition: Transition) -> tuple[Job, bool]:
        """Return the record to send, and whether it was sent before."""
        sent = self._sent
        if sent is not None and sent.transition is transition and sent.before is self.job:
            return sent.after, True
        self._sent = _Sent(transition, self.job, transition(self.job))
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
