"""Until when a call may run.

The caller's deadline is the outer bound and its budget narrows it; where neither speaks, the tool's own timeout
applies; the hub's maximum bounds all of them. A job comes with a deadline.
"""

from __future__ import annotations

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind, refuse


def effective_deadline_s(planned: PlannedCall, now_s: float, max_timeout_s: float) -> float:
    """Loop clock. Raises ToolFailure TIMEOUT or BUDGET_EXCEEDED when there is no time left to begin."""
    outer_s = planned.call.deadline_s
    allowed_s = planned.call.context.budget.timeout_s
    if planned.call.job_id and outer_s is not None:
        max_timeout_s = max(max_timeout_s, outer_s - now_s)  # jobs have a bound of their own, which made their deadline
    if outer_s is None and allowed_s is None:
        return now_s + min(planned.spec.limits.timeout_s, max_timeout_s)
    deadline_s = now_s + max_timeout_s
    if allowed_s is not None:
        if not allowed_s > 0:  # also NaN
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                "The call's budget leaves it no time: send a greater budget.timeout or none.",
                timeout_s=0,
            )
        deadline_s = min(deadline_s, now_s + allowed_s)
    if outer_s is not None:
        if outer_s <= now_s:
            raise refuse(
                ErrorKind.TIMEOUT,
                "The deadline passed before the tool was started, so nothing happened: call again with more time.",
                late_by_s=round(now_s - outer_s, 3),
            )
        deadline_s = min(deadline_s, outer_s)
    return deadline_s
