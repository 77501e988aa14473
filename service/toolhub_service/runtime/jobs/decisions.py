"""What lets a job go on that waits for a person, whichever process heard the decision."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.approval_ports import ApprovalStore
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.job_state import JobState
from toolhub_service.runtime.jobs.deliver import deliver
from toolhub_service.runtime.jobs.ending import ended, final_state, out_of_reach, without_answer
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.terms import JobTerms


class Decisions:
    """Carries what was decided to the jobs that wait for it. What it misses, the sweep brings to `look_after`."""

    def __init__(self, ledger: JobLedger, engine: JobEngine, approvals: ApprovalStore, terms: JobTerms) -> None:
        self._ledger = ledger
        self._engine = engine
        self._approvals = approvals
        self._terms = terms
        self._carrying: set[asyncio.Task[None]] = set()

    def heard(self, approval: Approval | None) -> None:
        """For the listener of the approvals' store."""
        if approval is None or not approval.binding.job_id or approval.state is ApprovalState.PENDING:
            return
        carrying = asyncio.get_running_loop().create_task(self._carry(approval))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def decide(self, approval: Approval) -> None:
        """An approval was decided or has lapsed: its job goes on, or ends."""
        told = {"cause": approval.state.value, "decided_by": approval.decided_by}
        job = await self._ledger.change(approval.binding.job_id, lambda job: self._released(job, approval), told)
        if job is not None and job.state in (JobState.QUEUED, JobState.CANCELLING):
            await deliver(self._engine, job.job_id, self._ledger.observer)

    async def look_after(self, job: Job) -> None:
        """A job that waits for a person, seen by the sweep: was the decision missed?"""
        approval = await self._approvals.get(job.approval_id)
        now_unix_ms = self._ledger.clock.unix_ms()
        if approval is None:
            if now_unix_ms < job.deadline_unix_ms:
                return  # another hub that keeps the jobs with us may keep approvals of its own
            await self._ledger.change(job.job_id, lambda now: self._given_up(now, "the approval is no longer known"))
        elif approval.state is not ApprovalState.PENDING:
            await self.decide(approval)
        elif approval.expires_at_unix_ms <= now_unix_ms:
            await self.decide(replace(approval, state=ApprovalState.EXPIRED))

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
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.remote is not None and job.remote.accepted:  # it waits over there, too, until it is stopped
            return moved(job, JobState.CANCELLING, now_unix_ms, cancel_reason=f"it was not approved: {why}")
        error = ToolError(
            kind=ErrorKind.APPROVAL_REJECTED,
            message=f"{job.call.tool} was not approved: {why}",
            details={"approval_id": job.approval_id},
        )
        result = without_answer(job, error if job.remote is None else out_of_reach(job, error), now_unix_ms)
        return ended(job, final_state(job, result, now_unix_ms), result, now_unix_ms, self._terms.keep_ms)

    async def _carry(self, approval: Approval) -> None:
        try:
            await self.decide(approval)
        except Exception as away:  # noqa: BLE001 - the sweep comes back to it
            self._ledger.observer.troubled(approval.binding.job_id, away)
