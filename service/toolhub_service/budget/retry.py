"""Whether and when a call is retried.

Only what is retryable *and* safe: a read, or an idempotent tool. A key makes a call safe only where it was sent to
the upstream, and the policy says that this upstream honours keys. The pause is exponential with full jitter (Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog), after whatever the upstream requested, and never beyond the
deadline.
"""

from __future__ import annotations

from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.ports import Randomness

_NEVER = frozenset({ErrorKind.OUTCOME_UNKNOWN, ErrorKind.CANCELLED})


def max_attempts(planned: PlannedCall, terms: BudgetTerms, is_safe: bool) -> int:
    """Return how often the adapter may be called: as the caller wants or else as the tool says, within the hub's limit;
    at least 1."""
    if not is_safe:
        return 1
    wished = planned.call.context.budget.max_retries
    retries = planned.spec.limits.max_retries if wished is None else wished
    return 1 + max(0, min(retries, terms.max_retries))


def pause_s(
    error: ToolError, attempt: int, time_left_s: float, terms: BudgetTerms, randomness: Randomness
) -> float | None:
    """Return the seconds to wait after the `attempt`-th failure (from 1), or None when a retry cannot succeed in
    time."""
    if not error.is_retryable or error.kind in _NEVER:
        return None
    ceiling_s = min(terms.retry_cap_s, terms.retry_initial_s * 2.0 ** min(attempt - 1, 32))
    wait_s = (error.retry_after_s or 0.0) + randomness.uniform(0.0, ceiling_s)
    return wait_s if wait_s < time_left_s else None
