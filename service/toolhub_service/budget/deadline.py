"""The deadline of a call.

The caller's deadline is the outer limit, and its budget narrows it; without either, the tool's own timeout applies.
The operator's limit for calls of a source, and the hub's maximum, bound all of them. A job already has a deadline.
"""

from __future__ import annotations

from toolhub_service.domain.call import Call, Mode, PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse


def within_budget(call: Call, now_s: float) -> Call:
    """Return the call with its budget's time as its deadline, from `now_s` on: what waits before step 5 (large
    arguments, a key that another call holds) counts, too. A job's budget is the job's, counted from its submission."""
    allowed_s = call.context.budget.timeout_s
    if allowed_s is None or not allowed_s > 0 or call.mode is Mode.SUBMIT or call.job_id:
        return call
    deadline_s = now_s + allowed_s
    return call._replace(deadline_s=deadline_s if call.deadline_s is None else min(deadline_s, call.deadline_s))


def refuse_late_call(now_s: float, deadline_s: float) -> ToolFailure:
    """Return the refusal of a call whose time is over before its tool was started."""
    return refuse(
        ErrorKind.TIMEOUT,
        "The deadline passed before the tool was started, so nothing happened: call again with more time.",
        late_by_s=round(now_s - deadline_s, 3),
    )


def effective_deadline_s(planned: PlannedCall, now_s: float, max_timeout_s: float) -> float:
    """Return the deadline on the loop clock. Raises ToolFailure TIMEOUT or BUDGET_EXCEEDED when there is no time left
    to begin."""
    outer_s = planned.call.deadline_s
    allowed_s = planned.call.context.budget.timeout_s
    if planned.call.job_id and outer_s is not None:
        max_timeout_s = max(max_timeout_s, outer_s - now_s)  # a job's deadline comes from the limit for jobs
    limits = planned.spec.limits
    # Most tools have neither limit, and every call comes by here.
    is_limited = limits.call_max_s or limits.call_max_in_job_s
    most_s = limits.most_s(in_job=bool(planned.call.job_id)) if is_limited else 0.0
    if most_s and not (planned.call.job_id and planned.spec.cost.is_async):
        max_timeout_s = min(max_timeout_s, most_s)
    if outer_s is None and allowed_s is None:
        return now_s + min(limits.timeout_s, max_timeout_s)
    deadline_s = now_s + max_timeout_s
    if allowed_s is not None:
        if not allowed_s > 0:  # also NaN
            raise refuse(
                ErrorKind.BUDGET_EXCEEDED,
                "budget.timeout leaves the call no time: send a larger budget.timeout, or none.",
                timeout_s=0,
            )
        deadline_s = min(deadline_s, now_s + allowed_s)
    if outer_s is not None:
        if outer_s <= now_s:
            raise refuse_late_call(now_s, outer_s)
        deadline_s = min(deadline_s, outer_s)
    return deadline_s
