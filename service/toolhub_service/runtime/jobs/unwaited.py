"""Approvals that were asked for by jobs which have ended since: withdrawn, where the job's own end could not do it.

Whoever ends a job takes its question back right after (ledger.py); a process that dies between the two, or a store of
approvals that is away then, leaves a person with a question that nothing waits for. So every minute a batch of those
that are PENDING is looked at, round and round.
"""

from __future__ import annotations

from toolhub_service.domain.approval import ApprovalFilter, ApprovalState
from toolhub_service.domain.approval_ports import ApprovalStore
from toolhub_service.runtime.jobs.ledger import JobLedger

_BATCH = 256
_PENDING = ApprovalFilter(states=frozenset({ApprovalState.PENDING}))


class Unwaited:
    def __init__(self, approvals: ApprovalStore, ledger: JobLedger) -> None:
        self._approvals = approvals
        self._ledger = ledger
        self._after: tuple[int, str] | None = None

    async def withdraw(self, now_unix_ms: int) -> int:
        """One batch; how many were withdrawn. Raises ToolFailure when a store cannot be reached."""
        page, _ = await self._approvals.page(_PENDING, after=self._after, limit=_BATCH)
        self._after = (page[-1].requested_at_unix_ms, page[-1].approval_id) if len(page) == _BATCH else None
        count = 0
        for approval in page:
            job_id = approval.binding.job_id
            job = await self._ledger.store.get(job_id) if job_id else None
            if job is not None and job.state.is_final:
                await self._ledger.withdraw(job, approval.approval_id)
                count += 1
        return count
