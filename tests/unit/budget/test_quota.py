"""Quotas of a window, and calls under one request id."""

from __future__ import annotations

from toolhub_service.budget.quota import RequestCalls, WindowQuota


def test_a_window_opens_with_the_first_call_and_closes_after_its_time() -> None:
    quota = WindowQuota(2, 60.0)
    assert quota.wait_s(1_000.0) == 0
    quota.take(1_000.0)
    quota.take(1_030.0)
    assert quota.wait_s(1_030.0) == 30.0
    assert quota.wait_s(1_060.0) == 0
    quota.take(1_060.0)
    assert not quota.is_unused(1_060.0)


def test_a_quota_of_zero_allows_nothing() -> None:
    assert WindowQuota(0, 60.0).wait_s(0.0) == 60.0


def test_returned_quota_can_be_used_again() -> None:
    quota = WindowQuota(1, 60.0)
    opened = quota.take(0.0)
    quota.give_back(opened)
    assert quota.wait_s(0.0) == 0
    assert quota.is_unused(0.0)


def test_quota_returned_late_does_not_reach_into_the_next_window() -> None:
    quota = WindowQuota(1, 60.0)
    opened = quota.take(0.0)
    quota.take(60.0)
    quota.give_back(opened)
    assert quota.wait_s(61.0) > 0


def test_calls_are_counted_by_request_and_the_oldest_request_is_forgotten_first() -> None:
    calls = RequestCalls(max_requests=2)
    calls.take(("ann", "r1"))
    calls.take(("ann", "r2"))
    calls.take(("ann", "r1"))
    calls.take(("bob", "r1"))
    assert [calls.count(key) for key in (("ann", "r1"), ("ann", "r2"), ("bob", "r1"))] == [2, 0, 1]
    assert len(calls) == 2


def test_a_call_given_back_leaves_nothing_behind() -> None:
    calls = RequestCalls(max_requests=2)
    calls.take(("ann", "r1"))
    calls.take(("ann", "r1"))
    calls.give_back(("ann", "r1"))
    assert calls.count(("ann", "r1")) == 1
    calls.give_back(("ann", "r1"))
    calls.give_back(("ann", "r1"))
    assert len(calls) == 0
