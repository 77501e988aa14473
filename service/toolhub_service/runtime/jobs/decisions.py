"""Approvals of jobs: carries decisions to the jobs that wait for them, and withdraws questions of ended jobs.

Both happen at once where the process is told of it; the sweep (reconcile.py) repeats them for what was missed.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from toolhub_service.domain.approval import Approval, ApprovalFilter, ApprovalState, ApprovalStore
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.accept import deliver
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.settle import end_job, final_state, out_of_reach, without_answer

_APPROVALS_A_PAGE = 256
_PENDING = ApprovalFilter(states=frozenset({ApprovalState.PENDING}))


class OrphanedApprovals:
    """Withdraws approvals that ended jobs had requested, where the job's own end could not do it.

    Whoever ends a job withdraws its approval right after (ledger.py); if the process dies between the two, or the store
    of approvals is unreachable then, a person is left with a question that nothing waits for. So every minute a batch
    of the PENDING approvals is checked, in rotation.
    """

    def __init__(self, approvals: ApprovalStore, ledger: JobLedger) -> None:
        self._approvals = approvals
        self._ledger = ledger
        self._after: tuple[int, str] | None = None

    async def withdraw(self, now_unix_ms: int) -> int:
        """Check one batch, and return how many were withdrawn. Raises ToolFailure when a store cannot be reached."""
        page, _ = await self._approvals.page(_PENDING, after=self._after, limit=_APPROVALS_A_PAGE)
        self._after = (page[-1].requested_at_unix_ms, page[-1].approval_id) if len(page) == _APPROVALS_A_PAGE else None
        count = 0
        for approval in page:
            job_id = approval.binding.job_id
            job = await self._ledger.store.get(job_id) if job_id else None
            if job is not None and job.state.is_final:
                await self._ledger.withdraw(job, approval.approval_id)
                count += 1
        return count


class Decisions:
    """Carries decisions to the jobs that wait for them, whichever process received them. The sweep calls `check` for
    missed ones."""

    def __init__(self, ledger: JobLedger, engine: JobEngine, approvals: ApprovalStore) -> None:
        self._ledger = ledger
        self._engine = engine
        self._approvals = approvals
        self._applying: set[asyncio.Task[None]] = set()

    def on_event(self, approval: Approval | None) -> None:
        """Listener of the approvals' store."""
        if approval is None or not approval.binding.job_id or approval.state is ApprovalState.PENDING:
            return
        applying = asyncio.get_running_loop().create_task(self._apply(approval))
        self._applying.add(applying)
        applying.add_done_callback(self._applying.discard)

    async def decide(self, approval: Approval) -> None:
        """Requeue or end the job of an approval that was decided or has expired."""
        attributes = {"cause": approval.state.value, "decided_by": approval.decided_by}
        job = await self._ledger.change(approval.binding.job_id, lambda job: self._release(job, approval), attributes)
        if job is not None and job.state in (JobState.QUEUED, JobState.CANCELLING):
            await deliver(self._engine, job, self._ledger)

    async def check(self, job: Job) -> None:
        """Called by the sweep for a job that waits for a person: apply a decision that was missed."""
        approval = await self._approvals.get(job.approval_id)
        now_unix_ms = self._ledger.clock.unix_ms()
        if approval is None:
            if now_unix_ms < job.deadline_unix_ms:
                return  # another hub that shares the jobs may have its own approvals
            await self._ledger.change(job.job_id, lambda now: self._give_up(now, "the approval is no longer known"))
        elif approval.state is not ApprovalState.PENDING:
            await self.decide(approval)
        elif approval.expires_at_unix_ms <= now_unix_ms:
            await self.decide(replace(approval, state=ApprovalState.EXPIRED))

    def _release(self, job: Job, approval: Approval) -> Job | None:
        if job.state is not JobState.AWAITING_APPROVAL or job.approval_id != approval.approval_id:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        # A call within the job receives the denial itself, and the job's program decides what the job does then.
        if approval.state in (ApprovalState.APPROVED, ApprovalState.USED) or job.waits_within:
            waited_ms = now_unix_ms - job.status.at_unix_ms
            return move_job(job, JobState.QUEUED, now_unix_ms, deadline_unix_ms=job.deadline_unix_ms + waited_ms)
        if approval.state is ApprovalState.REJECTED:
            comment = f": {approval.comment}" if approval.comment else "."
            return self._give_up(job, f"{approval.decided_by} denied it{comment}")
        return self._give_up(job, "nobody decided in time")

    def _give_up(self, job: Job, why: str) -> Job | None:
        if job.state is not JobState.AWAITING_APPROVAL:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.remote is not None and job.remote.accepted:  # the remote side waits, too, until it is stopped
            return move_job(job, JobState.CANCELLING, now_unix_ms, cancel_reason=f"it was not approved: {why}")
        error = ToolError(
            kind=ErrorKind.APPROVAL_REJECTED,
            message=f"{job.call.tool} was not approved: {why}",
            details={"approval_id": job.approval_id},
        )
        result = without_answer(job, error if job.remote is None else out_of_reach(job, error), now_unix_ms)
        return end_job(job, final_state(job, result, now_unix_ms), result, now_unix_ms, self._ledger.terms.keep_ms)

    async def _apply(self, approval: Approval) -> None:
        try:
            await self.decide(approval)
        except Exception as away:  # noqa: BLE001 - the sweep comes back to it
            self._ledger.observer.on_problem(approval.binding.job_id, away)
