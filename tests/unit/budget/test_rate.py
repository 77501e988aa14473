"""Token buckets: bursts, refill, and never more than the rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.budget.rate import TokenBucket


def take_if_free(bucket: TokenBucket, now_s: float) -> bool:
    if bucket.wait_s(now_s) > 0:
        return False
    bucket.take(now_s)
    return True


def test_a_burst_passes_and_then_the_rate_does() -> None:
    bucket = TokenBucket(rate_per_s=2.0, burst=3)
    assert [take_if_free(bucket, 0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_s(0.0) == pytest.approx(0.5)
    assert take_if_free(bucket, 0.5)
    assert not take_if_free(bucket, 0.9)


def test_waiting_for_the_stated_time_is_enough() -> None:
    bucket = TokenBucket(rate_per_s=0.3, burst=1)
    assert take_if_free(bucket, 10.0)
    assert take_if_free(bucket, 10.0 + bucket.wait_s(10.0))


def test_a_token_given_back_can_be_taken_again_but_never_above_the_burst() -> None:
    bucket = TokenBucket(rate_per_s=1.0, burst=2)
    assert take_if_free(bucket, 0.0)
    bucket.give_back()
    assert bucket.is_full(0.0)
    assert [take_if_free(bucket, 0.0) for _ in range(3)] == [True, True, False]
    bucket.give_back()
    assert [take_if_free(bucket, 100.0) for _ in range(3)] == [True, True, False]


@given(now_s=st.floats(0.0, 1e8), rate_per_s=st.floats(1e-3, 1e3))
def test_a_token_given_back_counts_whole_at_any_time(now_s: float, rate_per_s: float) -> None:
    bucket = TokenBucket(rate_per_s, burst=2)
    for _ in range(5):
        assert take_if_free(bucket, now_s)
        bucket.give_back()
    assert [take_if_free(bucket, now_s) for _ in range(3)] == [True, True, False]


def test_a_changed_rate_keeps_what_was_spent() -> None:
    bucket = TokenBucket(rate_per_s=1.0, burst=1)
    assert take_if_free(bucket, 0.0)
    bucket.retune(rate_per_s=10.0, burst=1)
    assert not take_if_free(bucket, 0.5)
    assert take_if_free(bucket, 1.0)
    assert take_if_free(bucket, 1.1)


@pytest.mark.promise("budget.rate-and-quota")
@settings(max_examples=200)
@given(
    rate=st.floats(0.1, 50.0),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
)
def test_no_span_of_time_sees_more_than_burst_and_rate_allow(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, now, passed = TokenBucket(rate, burst), 0.0, []
    for gap in gaps:
        now += gap
        if take_if_free(bucket, now):
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + rate * (passed[last] - passed[first]) + 1e-6


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["take", "back", "tick"]), max_size=80))
def test_giving_back_never_makes_room_that_was_not_taken(steps: list[str]) -> None:
    bucket, now, out = TokenBucket(1.0, 3), 0.0, 0
    for step in steps:
        if step == "take":
            out += take_if_free(bucket, now)
        elif step == "back" and out:
            bucket.give_back()
            out -= 1
        else:
            now += 0.25
    assert sum(take_if_free(bucket, now) for _ in range(10)) <= 3
