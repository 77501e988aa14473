"""Breakers: what opens one, how long it stays open, how it closes, and which outcomes do not count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.budget.breaker import Breaker, BreakerState, Health, health
from toolhub_service.budget.terms import BreakerTerms
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Upstream

TERMS = BreakerTerms(window_s=30.0, min_calls=4, failure_ratio=0.5, cooldown_s=5.0, max_cooldown_s=20.0, probes=2)
HEALTHY, FAILING, NO_EVIDENCE = Health.HEALTHY, Health.FAILING, Health.NO_EVIDENCE


def run(breaker: Breaker, outcomes: str, now_s: float = 0.0) -> None:
    """One admitted call a letter: `.` well, `x` ill, `?` silent."""
    for letter in outcomes:
        breaker.settle(breaker.admit(now_s), {".": HEALTHY, "x": FAILING, "?": NO_EVIDENCE}[letter], now_s)


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker(TERMS)
    run(breaker, "xxxx", now_s)
    assert breaker.state is BreakerState.OPEN
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ("xxx", BreakerState.CLOSED),
        ("xxxx", BreakerState.OPEN),
        ("..xx", BreakerState.OPEN),
        ("...x", BreakerState.CLOSED),
        ("...xx", BreakerState.CLOSED),
        ("xx??????", BreakerState.CLOSED),
        ("." * 100, BreakerState.CLOSED),
    ],
)
def test_a_breaker_opens_when_enough_calls_failed_and_their_share_is_great(outcomes: str, state: BreakerState) -> None:
    breaker = Breaker(TERMS)
    run(breaker, outcomes)
    assert breaker.state is state


def test_old_failures_are_forgotten() -> None:
    breaker = Breaker(TERMS)
    run(breaker, "xxx", 0.0)
    run(breaker, "x", 61.0)
    assert breaker.state is BreakerState.CLOSED


def test_failures_are_forgotten_exactly_two_windows_after_theirs_began() -> None:
    breaker = Breaker(TERMS)
    run(breaker, "xxx", 0.0)
    run(breaker, "x", 2 * TERMS.window_s)
    assert breaker.state is BreakerState.CLOSED


def test_failures_of_the_window_before_still_count() -> None:
    breaker = Breaker(TERMS)
    run(breaker, "xxx", 0.0)
    run(breaker, "x", 31.0)
    assert breaker.state is BreakerState.OPEN


def test_an_open_breaker_states_when_to_retry() -> None:
    breaker = opened(10.0)
    assert breaker.wait_s(10.0) == 5.0
    assert breaker.wait_s(14.0) == 1.0
    assert breaker.wait_s(15.0) == 0.0


@pytest.mark.promise("breaker.half-open")
def test_half_open_lets_only_its_probes_pass_and_closes_when_they_succeed() -> None:
    breaker = opened()
    first, second = breaker.admit(5.0), breaker.admit(5.0)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.wait_s(5.0) > 0
    states = []
    for ticket in (first, second):
        breaker.settle(ticket, HEALTHY, 5.5)
        states.append(breaker.state)
    assert states == [BreakerState.HALF_OPEN, BreakerState.CLOSED]
    assert breaker.wait_s(5.5) == 0


def test_a_failed_probe_opens_it_again_for_twice_as_long_up_to_a_maximum() -> None:
    breaker, now = opened(), 5.0
    for rest in (10.0, 20.0, 20.0):
        run(breaker, "x", now)
        assert breaker.state is BreakerState.OPEN
        assert breaker.wait_s(now) == rest
        now += rest
    run(breaker, "..", now)
    assert breaker.state is BreakerState.CLOSED
    run(breaker, "xxxx", now)
    assert breaker.wait_s(now) == 5.0


def test_a_probe_without_a_verdict_makes_room_for_another() -> None:
    breaker = opened()
    first = breaker.admit(5.0)
    breaker.admit(5.0)
    breaker.settle(first, NO_EVIDENCE, 5.0)
    assert breaker.wait_s(5.0) == 0


@pytest.mark.parametrize("late", [HEALTHY, FAILING])
def test_an_answer_from_before_the_outage_changes_nothing(late: Health) -> None:
    breaker = Breaker(TERMS)
    old = breaker.admit(0.0)
    run(breaker, "xxxx")
    breaker.settle(old, late, 1.0)
    assert (breaker.state, breaker.wait_s(0.0)) == (BreakerState.OPEN, 5.0)
    breaker.admit(5.0)
    breaker.settle(old, late, 5.0)
    breaker.settle(old, late, 5.0)
    assert breaker.state is BreakerState.HALF_OPEN


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (None, HEALTHY),
        (ErrorKind.UPSTREAM_ERROR, FAILING),
        (ErrorKind.TIMEOUT, FAILING),
        (ErrorKind.HTTP_TIMEOUT, FAILING),
        (ErrorKind.NETWORK_ERROR, FAILING),
        (ErrorKind.OUTCOME_UNKNOWN, FAILING),
        (ErrorKind.NOT_FOUND, HEALTHY),
        (ErrorKind.INVALID_INPUT, HEALTHY),
        (ErrorKind.OUTPUT_SCHEMA_INVALID, HEALTHY),
        (ErrorKind.CANCELLED, NO_EVIDENCE),
        (ErrorKind.INTERNAL, NO_EVIDENCE),
        (ToolError(ErrorKind.OUTCOME_UNKNOWN, "", details={"cause": "INTERNAL"}), NO_EVIDENCE),
        (ToolError(ErrorKind.OUTCOME_UNKNOWN, "", details={"cause": "TIMEOUT"}), FAILING),
        (ErrorKind.HTTP_DISALLOWED_HOST, NO_EVIDENCE),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(404)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(429)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(408)), FAILING),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(503)), FAILING),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(500)), FAILING),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(499)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(200)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(0)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(-32602)), HEALTHY),
        (ToolError(ErrorKind.UPSTREAM_ERROR, "", upstream=Upstream(-32603)), HEALTHY),
        (ToolError(ErrorKind.NETWORK_ERROR, "", blames_upstream=False), NO_EVIDENCE),
        (ToolError(ErrorKind.HTTP_TIMEOUT, "", blames_upstream=False), NO_EVIDENCE),
        (ToolError(ErrorKind.UPSTREAM_ERROR, ""), FAILING),
    ],
)
def test_only_outcomes_that_blame_the_upstream_count(outcome: ErrorKind | ToolError | None, expected: Health) -> None:
    assert health(outcome) is expected


def test_a_timeout_that_the_caller_forced_does_not_count() -> None:
    assert health(ErrorKind.TIMEOUT, had_fair_time=False) is NO_EVIDENCE
    assert health(ErrorKind.NETWORK_ERROR, had_fair_time=False) is FAILING
    own = ToolError(ErrorKind.HTTP_TIMEOUT, "", blames_upstream=True)
    assert health(own, had_fair_time=False) is FAILING


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("x.?"), st.floats(0.0, 12.0)), max_size=80))
def test_a_breaker_lets_no_call_pass_during_a_rest_and_always_closes_again(steps: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(TERMS), 0.0
    for letter, gap in steps:
        now += gap
        if breaker.wait_s(now) == 0:
            run(breaker, letter, now)
    now += TERMS.max_cooldown_s
    assert breaker.wait_s(now) == 0
    run(breaker, "..", now)
    assert breaker.state is BreakerState.CLOSED
