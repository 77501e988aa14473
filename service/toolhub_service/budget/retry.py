"""Whether and when a call is tried again.

Only what is retryable *and* safe: a read, an idempotent tool, or a call with a key at an upstream that honours keys.
The pause is exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog), after
whatever the upstream asked for, and never beyond the deadline.
"""

from __future__ import annotations

from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.ports import Randomness
from toolhub_service.domain.tool import IdempotencyMode

_NEVER = frozenset({ErrorKind.OUTCOME_UNKNOWN, ErrorKind.CANCELLED})


def is_safe_to_repeat(planned: PlannedCall, *, reads_only: bool = False, upstream_honours_keys: bool = False) -> bool:
    """Whether running the call twice does what running it once does."""
    if reads_only or planned.spec.annotations.safe_to_repeat:
        return True
    has_key = bool(planned.call.idempotency_key) or planned.spec.idempotency is IdempotencyMode.DERIVED
    return has_key and upstream_honours_keys


def max_attempts(planned: PlannedCall, terms: BudgetTerms, is_safe: bool) -> int:
    """How often the adapter may be asked: the caller's wish or else the tool's, within the hub's bound; at least 1."""
    if not is_safe:
        return 1
    wished = planned.call.context.budget.max_retries
    retries = planned.spec.limits.max_retries if wished is None else wished
    return 1 + max(0, min(retries, terms.max_retries))


def pause_s(
    error: ToolError, attempt: int, time_left_s: float, terms: BudgetTerms, randomness: Randomness
) -> float | None:
    """Seconds to wait after the `attempt`-th failure (from 1), or None when trying again cannot help in time."""
    if not error.is_retryable or error.kind in _NEVER:
        return None
    ceiling_s = min(terms.retry_cap_s, terms.retry_initial_s * 2.0 ** min(attempt - 1, 32))
    wait_s = (error.retry_after_s or 0.0) + randomness.uniform(0.0, ceiling_s)
    return wait_s if wait_s < time_left_s else None
