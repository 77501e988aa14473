"""What principals ask about jobs, and what lets a job go on that waited for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.approval_ports import ApprovalStore
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.principal import Principal, Role
from toolhub_service.runtime.jobs.ending import ended, never_ran, without_answer
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.terms import JobTerms
from toolhub_service.runtime.jobs.watch import unknown

_SEE_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})


class Desk:
    """Implements `JobDesk`."""

    def __init__(self, ledger: JobLedger, engine: JobEngine, approvals: ApprovalStore, terms: JobTerms) -> None:
        self._ledger = ledger
        self._engine = engine
        self._approvals = approvals
        self._terms = terms

    async def get(self, principal: Principal, job_id: str) -> Job:
        job = await self._ledger.store.get(job_id)
        if job is None or not (job.call.principal.id == principal.id or principal.roles & _SEE_ALL):
            raise unknown(job_id)
        return job

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        """As `JobStore.page`, of what the principal may see: its own, for operators and auditors all."""
        if not principal.roles & _SEE_ALL:
            if where.principal not in ("", principal.id):
                return (), 0
            where = replace(where, principal=principal.id)
        return await self._ledger.store.page(where, after=after, limit=limit)

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        job = await self.get(principal, job_id)
        if job.call.principal.id != principal.id and Role.OPERATOR not in principal.roles:
            raise unknown(job_id)
        cancelled = await self._ledger.change(job_id, lambda now: self._cancelled(now, reason))
        if cancelled is None:
            raise unknown(job_id)
        if cancelled.state is JobState.CANCELLING and not cancelled.runner:
            await self._engine.enqueue(job_id)
        return cancelled

    def _cancelled(self, job: Job, reason: str) -> Job | None:
        if job.state.is_final or job.state is JobState.CANCELLING:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.state is JobState.RUNNING or job.remote is not None:
            return moved(job, JobState.CANCELLING, now_unix_ms, cancel_reason=reason)
        result = without_answer(job, never_ran(), now_unix_ms)
        return replace(ended(job, JobState.CANCELLED, result, now_unix_ms, self._terms.keep_ms), cancel_reason=reason)

    async def decided(self, approval: Approval) -> None:
        """An approval was decided or has lapsed: its job goes on, or ends."""
        if not approval.binding.job_id or approval.state is ApprovalState.PENDING:
            return
        job = await self._ledger.change(approval.binding.job_id, lambda job: self._released(job, approval))
        if job is not None and job.state is JobState.QUEUED:
            await self._engine.enqueue(job.job_id)

    async def look_after(self, job: Job) -> None:
        """A job that waits for a person, seen by the sweep: was the decision missed?"""
        approval = await self._approvals.get(job.approval_id)
        now_unix_ms = self._ledger.clock.unix_ms()
        if approval is None:
            await self._ledger.change(job.job_id, lambda now: self._given_up(now, "the approval is no longer known"))
        elif approval.state is not ApprovalState.PENDING:
            await self.decided(approval)
        elif approval.expires_at_unix_ms <= now_unix_ms:
            await self.decided(replace(approval, state=ApprovalState.EXPIRED))

    def _released(self, job: Job, approval: Approval) -> Job | None:
        if job.state is not JobState.AWAITING_APPROVAL or job.approval_id != approval.approval_id:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        if approval.state in (ApprovalState.APPROVED, ApprovalState.USED):
            waited_ms = now_unix_ms - job.status.at_unix_ms
            return moved(job, JobState.QUEUED, now_unix_ms, deadline_unix_ms=job.deadline_unix_ms + waited_ms)
        if approval.state is ApprovalState.REJECTED:
            said = f": {approval.comment}" if approval.comment else "."
            return self._given_up(job, f"{approval.decided_by} said no{said}")
        return self._given_up(job, "nobody decided in time")

    def _given_up(self, job: Job, why: str) -> Job | None:
        if job.state is not JobState.AWAITING_APPROVAL:
            return None
        error = ToolError(
            kind=ErrorKind.APPROVAL_REJECTED,
            message=f"{job.call.tool} was not approved: {why}",
            details={"approval_id": job.approval_id},
        )
        now_unix_ms = self._ledger.clock.unix_ms()
        result = without_answer(job, error, now_unix_ms)
        return ended(job, JobState.FAILED, result, now_unix_ms, self._terms.keep_ms)
