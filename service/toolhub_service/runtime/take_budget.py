"""Step 5: is there time, rate, a slot, quota, a closed breaker? The only place where a call becomes granted."""

from __future__ import annotations

from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.call import GrantedCall, PlannedCall
from toolhub_service.domain.key import Claim
from toolhub_service.domain.ports import Adapter
from toolhub_service.domain.question import Reply
from toolhub_service.domain.verdict import Verdict


async def take_budget(
    planned: PlannedCall,
    verdict: Verdict,
    adapter: Adapter,
    budgets: Budgets,
    claim: Claim | None = None,
    reply: Reply | None = None,
) -> tuple[GrantedCall, Lease]:
    """The granted call and the lease to release. Raises BUDGET_EXCEEDED, RATE_LIMITED, CIRCUIT_OPEN or TIMEOUT."""
    has_side_effects = adapter.has_side_effects(planned)
    lease = budgets.take(
        planned,
        verdict,
        adapter.upstream(planned),
        reads_only=not has_side_effects,
        is_followed=bool(planned.call.job_id) and adapter.resumes(planned.spec),
    )
    if lease.is_pending:
        await lease.admitted()
    granted = GrantedCall(
        planned=planned,
        verdict=verdict,
        deadline_s=lease.deadline_s,
        has_side_effects=has_side_effects,
        idempotency_key=planned.call.idempotency_key if claim is None else claim.key.key,
        reply=reply,
    )
    return granted, lease
