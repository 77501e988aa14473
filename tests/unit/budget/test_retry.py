"""What is tried again, how often, and after which pause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import FixedRandomness
from tests.fakes.planned_calls import a_call, a_tool
from toolhub_service.budget.retry import max_attempts, pause_s
from toolhub_service.budget.terms import BudgetTerms
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.tool import ToolLimits

TERMS = BudgetTerms(max_retries=5, retry_initial_s=0.1, retry_cap_s=10.0)
FAILED = ToolError(ErrorKind.UPSTREAM_ERROR, "")


@pytest.mark.parametrize(
    ("tool_retries", "wished", "attempts"),
    [(0, None, 1), (2, None, 3), (2, 0, 1), (0, 3, 4), (2, 99, 6), (99, None, 6), (2, -1, 1)],
)
def test_the_caller_decides_before_the_tool_and_the_hub_bounds_both(
    tool_retries: int, wished: int | None, attempts: int
) -> None:
    tool = a_tool("a/read", read_only=True, limits=ToolLimits(max_retries=tool_retries))
    call = a_call(tool, budget=BudgetRequest(max_retries=wished))
    assert max_attempts(call, TERMS, is_safe=True) == attempts
    assert max_attempts(call, TERMS, is_safe=False) == 1


@pytest.mark.parametrize(("attempt", "ceiling_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (8, 10.0), (10_000, 10.0)])
def test_the_pause_grows_exponentially_with_full_jitter_up_to_a_cap(attempt: int, ceiling_s: float) -> None:
    assert pause_s(FAILED, attempt, 60.0, TERMS, FixedRandomness(1.0)) == pytest.approx(ceiling_s)
    assert pause_s(FAILED, attempt, 60.0, TERMS, FixedRandomness(0.0)) == 0


def test_the_upstreams_retry_after_is_honoured() -> None:
    busy = ToolError(ErrorKind.RATE_LIMITED, "", retry_after_s=3.0)
    assert pause_s(busy, 1, 60.0, TERMS, FixedRandomness(1.0)) == pytest.approx(3.1)
    assert pause_s(busy, 1, 3.0, TERMS, FixedRandomness(0.0)) is None


@pytest.mark.parametrize(
    "kind", [ErrorKind.INVALID_INPUT, ErrorKind.OUTCOME_UNKNOWN, ErrorKind.CANCELLED, ErrorKind.INTERNAL]
)
def test_a_permanent_failure_is_not_retried(kind: ErrorKind) -> None:
    assert pause_s(ToolError(kind, ""), 1, 60.0, TERMS, FixedRandomness()) is None


def test_an_error_can_state_whether_to_retry_unless_its_outcome_is_unknown() -> None:
    assert pause_s(ToolError(ErrorKind.UPSTREAM_ERROR, "", retryable=False), 1, 60.0, TERMS, FixedRandomness()) is None
    assert pause_s(ToolError(ErrorKind.IO_ERROR, "", retryable=True), 1, 60.0, TERMS, FixedRandomness()) is not None
    assert pause_s(ToolError(ErrorKind.OUTCOME_UNKNOWN, "", retryable=True), 1, 60.0, TERMS, FixedRandomness()) is None


@given(st.integers(1, 50), st.floats(0.0, 1.0), st.floats(0.0, 100.0), st.none() | st.floats(0.0, 50.0))
def test_no_pause_reaches_the_deadline(attempt: int, share: float, left_s: float, after_s: float | None) -> None:
    error = ToolError(ErrorKind.UPSTREAM_ERROR, "", retry_after_s=after_s)
    wait_s = pause_s(error, attempt, left_s, TERMS, FixedRandomness(share))
    assert wait_s is None or (after_s or 0.0) <= wait_s < left_s
