"""Rate and quota that several hubs share in PostgreSQL."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.counts_suite import QUOTA, RATE, CountsSuite
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.verdict import Limit, Refused, Taken
from toolhub_service.stores.postgres import counts as postgres_counts
from toolhub_service.stores.postgres.counts import PostgresCounts
from toolhub_service.stores.postgres.link import PostgresLink

__all__ = ["link", "other_link"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def counts(link: PostgresLink, clock: ManualClock) -> PostgresCounts:
    await link.start()
    return PostgresCounts(link, clock)


@pytest.fixture
async def others(other_link: PostgresLink, clock: ManualClock) -> PostgresCounts:
    await other_link.start()
    return PostgresCounts(other_link, clock)


class TestSuite(CountsSuite):
    pass


async def rows(link: PostgresLink) -> int:
    return (await link.execute("SELECT FROM counts"))[0]


async def test_limits_without_rate_and_quota_ask_nobody(counts: PostgresCounts, link: PostgresLink) -> None:
    await link.close()
    assert await counts.take([Limit("slots", concurrency=3)]) == Taken()
    await counts.give_back(Taken())


async def test_reading_leaves_nothing_behind(counts: PostgresCounts, link: PostgresLink) -> None:
    assert await counts.take([RATE, QUOTA], spend=False) == Taken()
    assert await rows(link) == 0


async def test_idle_counts_are_forgotten(
    counts: PostgresCounts, link: PostgresLink, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_counts, "_FORGET_EVERY", 1)
    await counts.take([RATE, QUOTA])
    clock.advance(30)
    await counts.take([Limit("other", quota=1)])
    assert await rows(link) == 2, "the rate was idle, the window of the quota is not"


async def test_server_keeps_the_time_where_no_clock_is_given(link: PostgresLink) -> None:
    await link.start()
    counts = PostgresCounts(link)
    limit = Limit("quota", quota=1, quota_window_s=3_600.0)
    assert isinstance(await counts.take([limit]), Taken)
    refused = await counts.take([limit])
    assert isinstance(refused, Refused)
    assert 3_500 < refused.wait_s <= 3_600


async def test_limits_written_as_whole_numbers_count_beside_others(counts: PostgresCounts) -> None:
    whole = Limit("whole", rate_per_s=2, burst=1, quota=10**12, quota_window_s=60)
    assert isinstance(await counts.take([whole, QUOTA, RATE]), Taken)
    assert isinstance(await counts.take([QUOTA, whole]), Refused)
