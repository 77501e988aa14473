"""Leases: taken whole or not at all, given back once, refunded to the last token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.planned_calls import TIME_NOW, a_call, a_tool
from toolhub_service.budget.breaker import BreakerState
from toolhub_service.budget.lease import Lease
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.call import BudgetRequest, PlannedCall
from toolhub_service.domain.errors.failure import KEY_SENT, ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.tool import IdempotencyMode, ToolLimits
from toolhub_service.domain.verdict import Effect, Limit, Verdict

BREAKER = BreakerTerms(min_calls=2, cooldown_s=5.0, probes=1)
TERMS = BudgetTerms(breaker=BREAKER, upstream_concurrency=2, max_waiting=3)
FAILED = ToolError(ErrorKind.UPSTREAM_ERROR, "")
CALL = a_call(TIME_NOW, request_id="r-1")
RETRIED = ToolLimits(max_retries=1)


class LedgerHarness:
    """Budgets with a clock in hand."""

    def __init__(self, *limits: Limit, terms: BudgetTerms = TERMS) -> None:
        self.clock = ManualClock()
        self.budgets = Budgets(self.clock, FixedRandomness(), terms)
        self.verdict = Verdict(Effect.ALLOW, "rev", "grant:local", "ok", limits=limits)

    def take(self, call: PlannedCall = CALL, upstream: str = "up", **terms: Any) -> Lease:
        return self.budgets.take(call, self.verdict, upstream, **terms)

    def refused(self, call: PlannedCall = CALL, upstream: str = "up") -> ToolError:
        with pytest.raises(ToolFailure) as caught:
            self.take(call, upstream)
        return caught.value.error

    def fail(self, times: int, upstream: str = "up") -> None:
        for _ in range(times):
            self.take(upstream=upstream).release(FAILED)

    def state(self, upstream: str = "up") -> BreakerState:
        return dict(self.budgets.breaker_states())[upstream]


def test_a_plain_call_needs_no_waiting() -> None:
    harness = LedgerHarness()
    lease = harness.take()
    assert (lease.is_pending, lease.deadline_s, lease.max_attempts(FAILED)) == (False, 1_030.0, 1)
    assert harness.budgets.in_flight("up") == 1
    lease.release()
    assert harness.budgets.in_flight("up") == 0


def test_a_tool_without_an_upstream_is_its_own() -> None:
    assert LedgerHarness().take(upstream="").upstream == TIME_NOW.name


def test_giving_back_twice_gives_back_once() -> None:
    harness = LedgerHarness(Limit("l", quota=5))
    first, second = harness.take(), harness.take()
    first.release()
    first.release(FAILED)
    first.refund()
    assert harness.budgets.in_flight("up") == 1
    second.refund()
    second.refund()
    second.release()
    assert harness.budgets.in_flight("up") == 0


class TestLimits:
    def test_the_rate_is_refused_with_the_time_to_wait(self) -> None:
        harness = LedgerHarness(Limit("l", rate_per_s=2.0, burst=1))
        harness.take().release()
        error = harness.refused()
        assert (error.kind, error.retry_after_s, error.details["limit"]) == (ErrorKind.RATE_LIMITED, 0.5, "l")
        harness.clock.advance(0.5)
        harness.take().release()

    @pytest.mark.promise("budget.rate-and-quota")
    def test_the_quota_is_refused_until_its_window_closes(self) -> None:
        harness = LedgerHarness(Limit("l", quota=1, quota_window_s=60.0))
        harness.take().release()
        assert harness.refused().retry_after_s == 60.0
        harness.clock.advance(60.0)
        harness.take().release()

    def test_limits_with_equal_ids_share_one_count(self) -> None:
        harness = LedgerHarness(Limit("l", quota=1))
        harness.take().release()
        harness.verdict = structs.replace(harness.verdict, limits=(Limit("l", quota=1),))
        assert harness.refused(a_call(a_tool("other/tool"))).kind is ErrorKind.RATE_LIMITED

    @pytest.mark.promise("budget.refused-costs-nothing")
    def test_a_call_that_one_limit_refuses_spends_no_other(self) -> None:
        generous, strict = Limit("generous", quota=2), Limit("strict", quota=1, quota_window_s=10.0)
        harness = LedgerHarness(generous, strict)
        harness.take().release()
        for _ in range(5):
            assert harness.refused().details["limit"] == "strict"
        harness.clock.advance(10.0)
        harness.take().release()

    def test_a_changed_policy_changes_the_limit_and_keeps_the_count(self) -> None:
        harness = LedgerHarness(Limit("l", quota=1, rate_per_s=100.0, burst=9, concurrency=9))
        harness.take().release()
        harness.verdict = structs.replace(
            harness.verdict, limits=(Limit("l", quota=2, rate_per_s=50.0, burst=9, concurrency=1),)
        )
        lease = harness.take()
        assert harness.refused().kind is ErrorKind.RATE_LIMITED
        lease.release()
        harness.verdict = structs.replace(harness.verdict, limits=(Limit("l", concurrency=1),))
        harness.take().release()

    def under(self, harness: LedgerHarness, limit: Limit) -> LedgerHarness:
        """The same house under a changed policy."""
        harness.verdict = structs.replace(harness.verdict, limits=(limit,))
        return harness

    def test_a_policy_that_goes_back_to_what_it_was_is_followed_back(self) -> None:
        before, between = Limit("l", quota=1), Limit("l", quota=5)
        harness = LedgerHarness(before)
        harness.take().release()
        self.under(harness, between).take().release()
        assert self.under(harness, before).refused().details == {"limit": "l", "quota": 1, "passes_in_s": 86_400}
        self.under(harness, between).take().release()

    def test_a_changed_rate_holds_from_the_next_call_on(self) -> None:
        slow, fast = Limit("l", rate_per_s=1.0), Limit("l", rate_per_s=10.0)
        harness = LedgerHarness(slow)
        harness.take().release()
        assert self.under(harness, fast).refused().retry_after_s == pytest.approx(1.0)
        harness.clock.advance(1.0)
        harness.take().release()
        assert harness.refused().retry_after_s == pytest.approx(0.1)
        harness.clock.advance(0.1)
        self.under(harness, slow).take().release()
        assert harness.refused().retry_after_s == pytest.approx(1.0)

    def test_a_changed_number_of_calls_at_once_counts_those_under_way(self) -> None:
        one, two = Limit("l", concurrency=1), Limit("l", concurrency=2)
        harness = LedgerHarness(one, terms=structs.replace(TERMS, upstream_concurrency=9))
        held = [harness.take()]
        assert harness.take().is_pending
        held.append(self.under(harness, two).take())
        assert not held[1].is_pending
        held[0].release()
        assert self.under(harness, one).take().is_pending

    def test_a_bound_that_was_removed_binds_no_more_and_begins_anew_when_it_comes_back(self) -> None:
        bound, free = Limit("l", quota=1, rate_per_s=0.001, concurrency=1), Limit("l", quota=100)
        harness = LedgerHarness(bound, terms=structs.replace(TERMS, upstream_concurrency=9))
        held = harness.take()
        without_quota = Limit("l", rate_per_s=1000.0, burst=100)
        for _ in range(3):
            assert not self.under(harness, free).take().is_pending
            assert not self.under(harness, without_quota).take().is_pending
        held.refund()
        self.under(harness, bound).take().release()
        assert harness.refused().kind is ErrorKind.RATE_LIMITED

    def test_a_limit_under_which_calls_run_is_not_forgotten(self) -> None:
        harness = LedgerHarness(Limit("a", concurrency=1), terms=structs.replace(TERMS, max_limits=1))
        held = harness.take()
        other = Limit("b", concurrency=1)
        assert self.under(harness, other).refused().details["limit"] == "b"
        held.release()
        self.under(harness, other).take().release()

    def test_memory_is_bounded_and_only_empty_counters_are_forgotten(self) -> None:
        harness = LedgerHarness(terms=structs.replace(TERMS, max_limits=2))
        for index in range(2):
            harness.verdict = structs.replace(
                harness.verdict, limits=(Limit(f"l{index}", quota=1, quota_window_s=60.0),)
            )
            harness.take().release()
        harness.verdict = structs.replace(harness.verdict, limits=(Limit("l2", quota=1),))
        assert harness.refused().kind is ErrorKind.RATE_LIMITED
        harness.clock.advance(60.0)
        harness.take().release()
        assert len(harness.budgets._counters) == 2


class TestRequests:
    LAST = a_call(TIME_NOW, request_id="r-1", budget=BudgetRequest(max_tool_calls=2))

    @pytest.mark.promise("budget.calls-of-a-request")
    def test_calls_of_one_request_are_counted(self) -> None:
        harness = LedgerHarness()
        harness.take(self.LAST).release()
        harness.take(self.LAST).release(ErrorKind.NOT_FOUND)
        error = harness.refused(self.LAST)
        assert error.kind is ErrorKind.BUDGET_EXCEEDED
        assert error.details == {"max_tool_calls": 2, "used_tool_calls": 2}

    def test_another_request_and_another_principal_have_their_own(self) -> None:
        harness = LedgerHarness()
        for _ in range(2):
            harness.take(self.LAST).release()
        once = BudgetRequest(max_tool_calls=1)
        for other in (
            a_call(TIME_NOW, request_id="r-2", budget=once),
            a_call(TIME_NOW, principal="ann", request_id="r-1", budget=once),
        ):
            harness.take(other).release()
            assert harness.refused(other).details["used_tool_calls"] == 1

    def test_calls_that_stated_no_maximum_count_too(self) -> None:
        harness = LedgerHarness()
        for _ in range(2):
            harness.take(CALL).release()
        assert harness.refused(self.LAST).kind is ErrorKind.BUDGET_EXCEEDED

    def test_a_refused_call_is_not_counted(self) -> None:
        harness = LedgerHarness(Limit("l", rate_per_s=1.0))
        harness.take(self.LAST).release()
        assert harness.refused(self.LAST).kind is ErrorKind.RATE_LIMITED
        harness.clock.advance(1.0)
        harness.take(self.LAST).release()


class TestRefund:
    LIMITED = a_call(TIME_NOW, request_id="r-1", budget=BudgetRequest(max_tool_calls=1))

    def test_a_dry_run_spends_nothing(self) -> None:
        harness = LedgerHarness(Limit("l", rate_per_s=0.001, burst=1, quota=1, concurrency=1))
        for _ in range(5):
            harness.take(self.LIMITED).refund()
        harness.take(self.LIMITED).release()
        assert harness.budgets.in_flight("up") == 0
        harness.refused(self.LIMITED)

    def test_a_dry_run_does_not_count_for_the_breaker(self) -> None:
        harness = LedgerHarness()
        harness.fail(1)
        for _ in range(20):
            harness.take().refund()
        harness.fail(1)
        assert harness.state() is BreakerState.OPEN

    def test_a_dry_run_of_a_probe_makes_room_for_the_real_one(self) -> None:
        harness = LedgerHarness()
        harness.fail(2)
        harness.clock.advance(5.0)
        harness.take().refund()
        harness.take().release()
        assert harness.state() is BreakerState.CLOSED


class TestRetry:
    READ = a_call(a_tool("a/read", read_only=True, limits=ToolLimits(max_retries=2)))

    def test_a_failed_read_is_tried_again_as_often_as_allowed(self) -> None:
        harness = LedgerHarness(terms=structs.replace(TERMS, breaker=BreakerTerms()))
        lease = harness.take(self.READ)
        assert lease.max_attempts(FAILED) == 3
        pauses = [lease.retry_pause_s(FAILED, attempt) for attempt in (1, 2, 3)]
        assert pauses == [pytest.approx(0.1), pytest.approx(0.2), None]
        lease.release(FAILED)

    def test_a_side_effect_is_tried_once(self) -> None:
        lease = LedgerHarness().take(a_call(a_tool("a/post", limits=ToolLimits(max_retries=2))))
        assert lease.max_attempts(FAILED) == 1
        assert lease.retry_pause_s(FAILED, 1) is None

    @pytest.mark.parametrize(
        ("call", "reads_only", "attempts"),
        [
            (a_call(a_tool("a/read", read_only=True, limits=RETRIED)), False, 2),
            (a_call(a_tool("a/put", idempotent=True, limits=RETRIED)), False, 2),
            (a_call(a_tool("a/request", limits=RETRIED)), True, 2),
            (a_call(a_tool("a/post", limits=RETRIED)), False, 1),
            (a_call(a_tool("a/post", limits=RETRIED), idempotency_key="k"), False, 1),
            (a_call(a_tool("a/flow", idempotency=IdempotencyMode.DERIVED, limits=RETRIED)), False, 1),
        ],
    )
    def test_only_idempotent_calls_are_retried(self, call: PlannedCall, reads_only: bool, attempts: int) -> None:
        assert LedgerHarness().take(call, reads_only=reads_only).max_attempts(FAILED) == attempts

    def test_a_side_effect_is_tried_again_where_the_upstream_has_its_key_and_honours_it(self) -> None:
        lease = LedgerHarness().take(a_call(a_tool("a/post", limits=ToolLimits(max_retries=2)), idempotency_key="k"))
        assert lease.max_attempts(structs.replace(FAILED, details={KEY_SENT: True})) == 3

    def test_the_breaker_counts_each_attempt_once_and_ends_the_retries(self) -> None:
        harness = LedgerHarness()
        lease = harness.take(self.READ)
        assert lease.retry_pause_s(FAILED, 1) is not None
        assert lease.retry_pause_s(FAILED, 2) is None
        assert harness.state() is BreakerState.OPEN
        lease.release(FAILED)
        harness.clock.advance(5.0)
        assert harness.take().is_pending is False

    def test_a_final_failure_is_counted_once(self) -> None:
        harness = LedgerHarness(terms=structs.replace(TERMS, breaker=structs.replace(BREAKER, min_calls=3)))
        for _ in range(2):
            lease = harness.take()
            assert lease.retry_pause_s(FAILED, 1) is None
            lease.release(FAILED)
        assert harness.state() is BreakerState.CLOSED


def test_upstreams_in_use_are_never_forgotten_and_their_number_is_bounded() -> None:
    harness = LedgerHarness(terms=structs.replace(TERMS, max_upstreams=2))
    first = harness.take(upstream="a")
    harness.take(upstream="b").release()
    harness.take(upstream="c").release()
    assert sorted(dict(harness.budgets.breaker_states())) == ["a", "c"]
    second = harness.take(upstream="c")
    assert harness.refused(upstream="d").kind is ErrorKind.RATE_LIMITED
    first.release()
    second.release()


@pytest.mark.promise("budget.refused-costs-nothing")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["take", "release", "fail", "refund", "tick"]), max_size=60))
def test_no_slot_is_lost_or_made_up_in_any_order_of_events(steps: list[str]) -> None:
    harness = LedgerHarness(Limit("l", rate_per_s=5.0, burst=3, concurrency=2, quota=50))
    out: list[Lease] = []
    for step in steps:
        if step == "take":
            try:
                out.append(harness.take())
            except ToolFailure:
                continue
        elif step == "tick":
            harness.clock.advance(0.3)
        elif out:
            lease = out.pop(0)
            lease.refund() if step == "refund" else lease.release(FAILED if step == "fail" else None)
        assert harness.budgets.in_flight("up") == sum(not lease.is_pending for lease in out) <= 2
    for lease in out:
        lease.release()
    assert harness.budgets.in_flight("up") == 0


def test_a_request_that_only_one_call_can_belong_to_is_not_remembered() -> None:
    harness = LedgerHarness()
    alone = a_call(TIME_NOW, request_id=CALL.call.call_id)
    for _ in range(3):
        harness.take(alone).release()
    assert len(harness.budgets._requests) == 0
    harness.take(CALL).release()
    assert len(harness.budgets._requests) == 1
