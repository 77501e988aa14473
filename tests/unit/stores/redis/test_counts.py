"""Rate and quota that several processes share."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.counts_suite import QUOTA, RATE, CountsSuite
from tests.unit.stores.redis.redis_links import link, other_link
from toolhub_service.domain.verdict import Limit, Refused, Taken
from toolhub_service.stores.redis.counts import RedisCounts
from toolhub_service.stores.redis.link import RedisLink

__all__ = ["link", "other_link"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def counts(link: RedisLink, clock: ManualClock) -> RedisCounts:
    return RedisCounts(link, clock)


@pytest.fixture
def others(other_link: RedisLink, clock: ManualClock) -> RedisCounts:
    return RedisCounts(other_link, clock)


class TestSuite(CountsSuite):
    pass


async def test_limits_without_rate_and_quota_ask_nobody(counts: RedisCounts, link: RedisLink) -> None:
    taken = await counts.take([Limit("slots", concurrency=3)])
    assert taken == Taken()
    await counts.give_back(Taken())
    assert await link.run("DBSIZE") == 0


async def test_reading_leaves_nothing_behind(counts: RedisCounts, link: RedisLink) -> None:
    assert await counts.take([RATE, QUOTA], spend=False) == Taken()
    assert await link.run("DBSIZE") == 0


async def test_idle_counts_are_forgotten_by_the_server(counts: RedisCounts, link: RedisLink) -> None:
    await counts.take([RATE, QUOTA])
    assert 0 < await link.run("PTTL", link.key("count:rate")) <= 1_100
    assert 60_000 < await link.run("PTTL", link.key("count:quota")) <= 61_000


async def test_server_keeps_the_time_where_no_clock_is_given(link: RedisLink) -> None:
    counts = RedisCounts(link)
    limit = Limit("quota", quota=1, quota_window_s=3_600.0)
    assert isinstance(await counts.take([limit]), Taken)
    refused = await counts.take([limit])
    assert isinstance(refused, Refused)
    assert 3_590 < refused.wait_s <= 3_600
