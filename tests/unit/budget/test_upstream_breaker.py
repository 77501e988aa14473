"""The breakers of one upstream: whose failures rest it for whom."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.planned_calls import TIME_NOW, a_call, a_tool
from tests.unit.budget.test_ledger import FAILED, LedgerHarness
from toolhub_service.budget.breaker import BreakerState, Health
from toolhub_service.budget.terms import BreakerTerms
from toolhub_service.budget.upstream_breaker import PRINCIPALS_MAX, SPENT, UpstreamBreaker
from toolhub_service.domain.call import BudgetRequest
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Upstream
from toolhub_service.domain.tool import ToolLimits

TERMS = BreakerTerms(window_s=30.0, min_calls=4, failure_ratio=0.5, cooldown_s=5.0, max_cooldown_s=20.0, probes=2)
HEALTH = {".": Health.HEALTHY, "x": Health.FAILING, "?": Health.NO_EVIDENCE}


def run(breaker: UpstreamBreaker, principal: str, outcomes: str, now_s: float = 0.0) -> None:
    """One call a letter, where it may pass: `.` well, `x` ill, `?` silent."""
    for letter in outcomes:
        if breaker.wait_s(principal, now_s) == 0:
            breaker.settle(principal, breaker.admit(principal, now_s), HEALTH[letter], now_s)


def shut() -> UpstreamBreaker:
    """Open for everybody."""
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "ann", "xx")
    run(breaker, "bob", "xx")
    assert breaker.wait_s("eve", 0.0) == 5.0
    return breaker


def test_failures_of_one_rest_that_one_alone() -> None:
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "ann", "x" * 20)
    assert (breaker.wait_s("ann", 1.0), breaker.wait_s("bob", 1.0)) == (4.0, 0.0)
    assert breaker.state_at(1.0) is BreakerState.OPEN


@pytest.mark.parametrize(
    ("others", "is_shut"),
    [("xx", True), ("x", False), ("x.", True), ("x..", False), ("..", False), ("", False)],
)
def test_the_breaker_opens_for_all_when_others_than_one_principal_fail_too(others: str, is_shut: bool) -> None:
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "ann", "xxx")
    run(breaker, "bob", others)
    run(breaker, "ann", "x")
    assert (breaker.wait_s("eve", 0.0) > 0) is is_shut


def test_one_failure_of_each_of_four_principals_opens_the_breaker() -> None:
    breaker = UpstreamBreaker(TERMS)
    for name in ("ann", "bob", "cat", "dan"):
        run(breaker, name, "x")
    assert breaker.wait_s("eve", 0.0) == 5.0


def test_failures_of_one_in_the_window_before_are_that_ones_in_this() -> None:
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "ann", "xxx", 0.0)
    run(breaker, "ann", "xxx", 31.0)
    run(breaker, "bob", ".", 32.0)
    run(breaker, "ann", "xxx", 40.0)
    assert breaker.wait_s("bob", 40.0) == 0


def test_failures_of_one_in_the_window_before_prove_nothing_to_others() -> None:
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "ann", "xxx", 0.0)
    run(breaker, "bob", "x", 31.0)
    assert breaker.wait_s("eve", 31.0) == 0


def test_an_old_agreement_is_forgotten() -> None:
    breaker = UpstreamBreaker(TERMS)
    run(breaker, "bob", "xx", 0.0)
    run(breaker, "ann", "xx", 61.0)
    assert breaker.wait_s("eve", 61.0) == 0


def test_half_open_each_has_one_probe_at_a_time() -> None:
    breaker = shut()
    breaker.admit("eve", 5.0)
    assert breaker.wait_s("eve", 5.0) > 0
    assert breaker.wait_s("ann", 5.0) == 0
    breaker.admit("ann", 5.0)
    assert breaker.wait_s("bob", 5.0) > 0


def test_half_open_a_failed_probe_rests_its_principal_and_nobody_else() -> None:
    breaker = shut()
    for now_s in (5.0, 10.0, 20.0, 40.0):
        run(breaker, "ann", "x", now_s)
        assert breaker.wait_s("ann", now_s) > 0
        assert breaker.wait_s("eve", now_s) == 0
    run(breaker, "eve", "..", 41.0)
    assert breaker.wait_s("bob", 41.0) == 0


def test_half_open_failed_probes_of_two_rest_all_for_twice_as_long() -> None:
    breaker = shut()
    run(breaker, "ann", "x", 5.0)
    run(breaker, "bob", "x", 5.0)
    assert breaker.wait_s("eve", 5.0) == 10.0


def test_half_open_a_probe_without_a_verdict_makes_room() -> None:
    breaker = shut()
    run(breaker, "eve", "???..", 5.0)
    assert breaker.wait_s("bob", 5.0) == 0
    assert breaker.state_at(5.0) is BreakerState.CLOSED


def test_a_call_counts_once() -> None:
    breaker = UpstreamBreaker(TERMS)
    for _ in range(20):
        breaker.settle("ann", SPENT, Health.FAILING, 0.0)
    assert breaker.wait_s("ann", 0.0) == 0


def test_calls_under_way_when_the_first_fails_count_too() -> None:
    breaker = UpstreamBreaker(TERMS)
    for ticket in [breaker.admit("ann", 0.0) for _ in range(4)]:
        breaker.settle("ann", ticket, Health.FAILING, 0.0)
    assert breaker.wait_s("ann", 0.0) == 5.0


def test_principals_that_fail_are_remembered_in_bounds_and_forgotten_when_well() -> None:
    breaker = UpstreamBreaker(BreakerTerms(min_calls=10**6))
    for index in range(3 * PRINCIPALS_MAX):
        run(breaker, f"p{index}", "x")
    assert len(breaker._own) == PRINCIPALS_MAX
    assert len(breaker._shared._tallies) == PRINCIPALS_MAX
    for index in range(3 * PRINCIPALS_MAX):
        run(breaker, f"p{index}", ".", 100.0)
    run(breaker, "ann", ".", 200.0)
    assert not breaker._shared._tallies


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("x.?"), st.booleans(), st.floats(0.0, 12.0)), max_size=60))
def test_a_healthy_agent_always_passes_whatever_another_does(steps: list[tuple[str, bool, float]]) -> None:
    breaker, now_s = UpstreamBreaker(TERMS), 0.0
    for letter, is_evil, gap_s in steps:
        now_s += gap_s
        if is_evil:
            run(breaker, "eve", letter * 5, now_s)
        else:
            assert breaker.wait_s("ann", now_s) == 0
            run(breaker, "ann", ".", now_s)


class TestBreakerInLedger:
    @pytest.mark.promise("breaker.per-upstream")
    def test_an_upstream_that_fails_is_given_a_rest_and_the_others_are_not(self) -> None:
        harness = LedgerHarness()
        harness.fail(2)
        error = harness.refused()
        assert (error.kind, error.retry_after_s, error.is_retryable) == (ErrorKind.CIRCUIT_OPEN, 5.0, True)
        harness.take(upstream="other").release()
        harness.clock.advance(5.0)
        harness.take().release()
        assert harness.state() is BreakerState.CLOSED

    def test_an_agent_that_asks_for_missing_pages_opens_no_breaker(self) -> None:
        harness = LedgerHarness()
        missing = ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(404))
        for _ in range(20):
            harness.take().release(missing)
        assert harness.state() is BreakerState.CLOSED

    def test_an_agent_that_leaves_no_time_opens_no_breaker(self) -> None:
        harness = LedgerHarness()
        for timeout_s in (0.01, 1.0, 26.0):
            hasty = a_call(TIME_NOW, budget=BudgetRequest(timeout_s=timeout_s))
            for _ in range(20):
                harness.take(hasty).release(ErrorKind.TIMEOUT)
        assert harness.state() is BreakerState.CLOSED
        for _ in range(2):
            harness.take().release(ErrorKind.TIMEOUT)
        assert harness.state() is BreakerState.OPEN

    def test_a_tool_without_an_upstream_has_no_breaker(self) -> None:
        harness = LedgerHarness()
        for _ in range(20):
            lease = harness.take(upstream="")
            assert lease.retry_pause_s(FAILED, 1) is None
            lease.release(FAILED)
        assert not dict(harness.budgets.breaker_states())

    def test_failures_of_one_principal_rest_no_other(self) -> None:
        harness = LedgerHarness()
        harness.fail(2)
        assert harness.refused().kind is ErrorKind.CIRCUIT_OPEN
        harness.take(a_call(TIME_NOW, principal="ann")).release()

    def test_a_result_that_reports_a_failing_upstream_counts_as_a_failure(self) -> None:
        harness = LedgerHarness()
        for _ in range(2):
            lease = harness.take()
            lease.blame()
            lease.release()
        assert harness.state() is BreakerState.OPEN


def test_a_breaker_whose_pause_is_over_is_reported_as_half_open_without_a_call() -> None:
    harness = LedgerHarness()
    harness.fail(2)
    harness.clock.advance(4.9)
    assert harness.state() is BreakerState.OPEN
    harness.clock.advance(0.1)
    assert harness.state() is BreakerState.HALF_OPEN


def test_upstream_that_was_forgotten_begins_anew_and_calls_under_way_end_with_the_old_one() -> None:
    narrow = a_call(a_tool("a/narrow", limits=ToolLimits(max_concurrency=1)))
    wide = a_call(a_tool("a/wide", limits=ToolLimits(max_concurrency=2)))
    harness = LedgerHarness()
    under_way = harness.take(narrow)
    harness.budgets.forget("up")
    harness.budgets.forget("never-seen")
    first, second = harness.take(wide), harness.take(wide)
    assert harness.budgets.in_flight("up") == 2
    under_way.release(FAILED)
    assert harness.budgets.in_flight("up") == 2
    first.release()
    second.release()
    harness.fail(2)
    harness.budgets.forget("up")
    harness.take().release()
    assert harness.state() is BreakerState.CLOSED
