"""The counters of one process keep the port's promises too: the oracle of the shared ones is sound."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.fakes.shared_counts import FakeSharedCounts
from tests.ports.counts_suite import CountsSuite
from toolhub_service.budget.limits import Counter, Counters
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import Limit


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def counts(clock: ManualClock) -> FakeSharedCounts:
    return FakeSharedCounts(clock)


@pytest.fixture
def others(counts: FakeSharedCounts) -> FakeSharedCounts:
    return counts


class TestSuite(CountsSuite):
    pass


def test_where_hubs_share_the_counts_a_counter_keeps_its_slots_alone() -> None:
    limit = Limit("l", rate_per_s=1.0, quota=0, concurrency=2)
    counter = Counter(limit, only_slots=True)
    counter.check(0.0)
    counter.retune(Limit("l", rate_per_s=2.0, quota=0, concurrency=3))
    counter.check(0.0)
    assert counter.slots is not None
    assert counter.slots.limit == 3


@pytest.mark.parametrize(
    "limit", [Limit("l", rate_per_s=2.0, burst=1), Limit("l", quota=1, quota_window_s=0.5)], ids=["rate", "quota"]
)
def test_a_wait_of_less_than_a_second_is_a_wait_too(limit: Limit) -> None:
    counter = Counter(limit)
    counter.check(0.0)
    counter.take(0.0)
    with pytest.raises(ToolFailure) as refused:
        counter.check(0.25)
    assert (refused.value.error.kind, refused.value.error.retry_after_s) == (ErrorKind.RATE_LIMITED, 0.25)
    counter.check(0.5)


def test_limits_in_use_keep_no_new_one_out_where_an_idle_one_can_go() -> None:
    busy, idle = tuple(Limit(f"busy-{number}", quota=9) for number in range(64)), Limit("idle", quota=9)
    counters = Counters(len(busy) + 1)
    for counter in counters.of(busy, 0.0):
        counter.take(0.0)
    counters.of((idle,), 0.0)
    counters.of(busy, 1.0)
    counters.of((Limit("new", quota=9),), 1.0)
    assert len(counters) == len(busy) + 1
