"""Until when a call may run."""

from __future__ import annotations

import pytest

from tests.fakes.planned_calls import a_call, a_tool
from toolhub_service.budget.deadline import effective_deadline_s
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import ToolLimits

TOOL = a_tool(limits=ToolLimits(timeout_s=30.0))


@pytest.mark.promise("budget.deadline-outer-bound")
@pytest.mark.parametrize(
    ("caller_s", "budget_s", "expected_s"),
    [
        (None, None, 130.0),
        (105.0, None, 105.0),
        (None, 7.0, 107.0),
        (105.0, 7.0, 105.0),
        (110.0, 7.0, 107.0),
        (250.0, None, 250.0),
        (None, 1e9, 700.0),
        (1e9, None, 700.0),
        (1e9, float("inf"), 700.0),
    ],
)
def test_the_caller_is_the_outer_bound_the_budget_narrows_the_tool_fills_in(
    caller_s: float | None, budget_s: float | None, expected_s: float
) -> None:
    call = a_call(TOOL, deadline_s=caller_s, budget=BudgetRequest(timeout_s=budget_s))
    assert effective_deadline_s(call, 100.0, 600.0) == expected_s


@pytest.mark.parametrize(
    ("caller_s", "budget_s", "expected_s"),
    [(None, None, 120.0), (105.0, None, 105.0), (250.0, None, 120.0), (None, 7.0, 107.0), (1e9, 1e9, 120.0)],
)
@pytest.mark.parametrize("job_id", ["", "job-1"])
def test_the_operators_timeout_of_a_source_bounds_the_caller_too(
    caller_s: float | None, budget_s: float | None, expected_s: float, job_id: str
) -> None:
    tool = a_tool(limits=ToolLimits(timeout_s=20.0, call_max_s=20.0))
    call = a_call(tool, deadline_s=caller_s, budget=BudgetRequest(timeout_s=budget_s))
    call = call._replace(call=call.call._replace(job_id=job_id))
    assert effective_deadline_s(call, 100.0, 600.0) == expected_s


@pytest.mark.parametrize(
    ("job_id", "caller_s", "expected_s"),
    [("", None, 400.0), ("", 1e9, 400.0), ("", 150.0, 150.0), ("job-1", 1e9, 3_700.0), ("job-1", 150.0, 150.0)],
)
def test_an_operator_may_allow_more_within_a_job_which_no_caller_lengthens(
    job_id: str, caller_s: float | None, expected_s: float
) -> None:
    tool = a_tool(limits=ToolLimits(timeout_s=300.0, call_max_s=300.0, call_max_in_job_s=3_600.0))
    call = a_call(tool, deadline_s=caller_s)
    call = call._replace(call=call.call._replace(job_id=job_id))
    assert effective_deadline_s(call, 100.0, 86_400.0) == expected_s


def test_the_hub_bounds_the_tools_own_timeout() -> None:
    slow = a_tool(limits=ToolLimits(timeout_s=3_600.0))
    assert effective_deadline_s(a_call(slow), 100.0, 600.0) == 700.0


@pytest.mark.parametrize(("late_s", "by_s"), [(100.0, 0.0), (98.5, 1.5)])
def test_a_deadline_that_has_passed_is_a_timeout_before_anything_happened(late_s: float, by_s: float) -> None:
    with pytest.raises(ToolFailure) as caught:
        effective_deadline_s(a_call(TOOL, deadline_s=late_s), 100.0, 600.0)
    assert caught.value.error.kind is ErrorKind.TIMEOUT
    assert caught.value.error.details == {"late_by_s": by_s}


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan")])
def test_a_budget_without_time_is_exceeded(budget_s: float) -> None:
    with pytest.raises(ToolFailure) as caught:
        effective_deadline_s(a_call(TOOL, budget=BudgetRequest(timeout_s=budget_s)), 100.0, 600.0)
    assert caught.value.error.kind is ErrorKind.BUDGET_EXCEEDED
