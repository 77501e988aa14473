"""Rate and quota that several processes share."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fakes.clock import ManualClock
from tests.unit.stores.redis_links import link, other_link
from toolhub_service.budget.limits import Counter
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.verdict import Limit
from toolhub_service.stores.redis_counts import RedisCounts, Refused, Scarce, Taken
from toolhub_service.stores.redis_link import RedisLink

__all__ = ["link", "other_link"]

RATE = Limit("rate", rate_per_s=10.0, burst=5)
QUOTA = Limit("quota", quota=7, quota_window_s=60.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def counts(link: RedisLink, clock: ManualClock) -> RedisCounts:
    return RedisCounts(link, clock)


@pytest.fixture
def others(other_link: RedisLink, clock: ManualClock) -> RedisCounts:
    return RedisCounts(other_link, clock)


async def test_burst_passes_and_then_the_rate(counts: RedisCounts, clock: ManualClock) -> None:
    for _ in range(5):
        assert isinstance(await counts.take([RATE]), Taken)
    assert await counts.take([RATE]) == Refused(RATE, Scarce.RATE, 0.1)
    clock.advance(0.1)
    assert isinstance(await counts.take([RATE]), Taken)
    assert isinstance(await counts.take([RATE]), Refused)


async def test_processes_spend_one_quota(counts: RedisCounts, others: RedisCounts, clock: ManualClock) -> None:
    answers = await asyncio.gather(*(each.take([QUOTA]) for _ in range(20) for each in (counts, others)))
    assert sum(isinstance(answer, Taken) for answer in answers) == 7
    clock.advance(59)
    assert await others.take([QUOTA]) == Refused(QUOTA, Scarce.QUOTA, 1.0)
    clock.advance(1)
    assert isinstance(await others.take([QUOTA]), Taken)


async def test_refused_call_has_taken_nothing_of_any_limit(counts: RedisCounts) -> None:
    scarce = Limit("scarce", quota=1)
    assert isinstance(await counts.take([RATE, QUOTA, scarce]), Taken)
    for _ in range(10):
        refused = await counts.take([RATE, QUOTA, scarce])
        assert isinstance(refused, Refused)
        assert refused.limit == scarce
    answers = [await counts.take([RATE, QUOTA]) for _ in range(5)]
    assert [isinstance(answer, Taken) for answer in answers] == [True] * 4 + [False]


async def test_what_was_given_back_can_be_taken_again(counts: RedisCounts) -> None:
    both = [Limit("rate", rate_per_s=1.0, burst=1), Limit("quota", quota=1)]
    for _ in range(5):
        taken = await counts.take(both)
        assert isinstance(taken, Taken)
        assert isinstance(await counts.take(both), Refused)
        await counts.give_back(taken)
    assert isinstance(await counts.take(both), Taken)


async def test_giving_back_into_a_window_that_has_closed_changes_nothing(
    counts: RedisCounts, clock: ManualClock
) -> None:
    limit = Limit("quota", quota=1, quota_window_s=10.0)
    early = await counts.take([limit])
    assert isinstance(early, Taken)
    clock.advance(10)
    assert isinstance(await counts.take([limit]), Taken)
    await counts.give_back(early)
    assert isinstance(await counts.take([limit]), Refused)


async def test_quota_of_none_lets_none_pass(counts: RedisCounts) -> None:
    closed = Limit("closed", quota=0, quota_window_s=30.0)
    assert await counts.take([closed]) == Refused(closed, Scarce.QUOTA, 30.0)


async def test_limits_without_rate_and_quota_ask_nobody(counts: RedisCounts, link: RedisLink) -> None:
    taken = await counts.take([Limit("slots", concurrency=3)])
    assert taken == Taken((), ())
    await counts.give_back(Taken((), ()))
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


@pytest.mark.parametrize("seed", range(5))
async def test_it_says_what_one_process_alone_would_say(counts: RedisCounts, clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    limit = Limit("both", rate_per_s=chance.choice([2.0, 8.0]), burst=3, quota=12, quota_window_s=5.0)
    oracle = Counter(limit)
    for _ in range(150):
        clock.advance(chance.choice([0.0, 0.0, 0.125, 0.5]))
        now_s = clock.unix_ms() / 1_000
        answer = await counts.take([limit])
        if isinstance(answer, Refused):
            with pytest.raises(ToolFailure) as refused:
                oracle.check(now_s)
            assert answer.wait_s == pytest.approx(refused.value.error.retry_after_s, abs=0.002)
            continue
        oracle.check(now_s)
        opened_at_s = oracle.take(now_s)
        if chance.random() < 0.2:
            await counts.give_back(answer)
            oracle.give_back(opened_at_s)
