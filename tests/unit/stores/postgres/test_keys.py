"""The suite on a real PostgreSQL, and what only keys that several hubs share can do."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from tests.fakes.clock import ManualClock
from tests.ports.key_store_suite import (
    AT_ONCE,
    CAPACITY,
    KEY,
    LONG_S,
    RESULT,
    TTL_S,
    KeyStoreSuite,
    SharedKeysSuite,
    a_record,
    in_ttl,
)
from tests.services import PostgresServer
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.postgres.keys import PostgresKeys
from toolhub_service.stores.postgres.link import PostgresLink

__all__ = ["link", "other_link"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestPostgresKeys(KeyStoreSuite, SharedKeysSuite):
    @pytest.fixture
    async def store(self, link: PostgresLink, clock: ManualClock) -> KeyStore:
        store = PostgresKeys(link, clock, max_keys=CAPACITY)
        await link.start()
        return store


@pytest.fixture
async def keys(link: PostgresLink, clock: ManualClock) -> PostgresKeys:
    store = PostgresKeys(link, clock)
    await link.start()
    return store


@pytest.fixture
async def others(other_link: PostgresLink, clock: ManualClock) -> PostgresKeys:
    store = PostgresKeys(other_link, clock)
    await other_link.start()
    return store


async def usage(link: PostgresLink) -> list[tuple[int, int]]:
    return await link.rows("SELECT keys, size_bytes FROM key_usage WHERE keys <> 0 OR size_bytes <> 0")


async def test_nothing_is_left_of_keys_that_were_given_back(
    keys: PostgresKeys, link: PostgresLink, clock: ManualClock
) -> None:
    for _ in range(3):
        assert await keys.claim(KEY, a_record(clock)) is None
        assert await keys.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
        assert len(await usage(link)) == 2
        assert await keys.release(KEY, "owner-2")
    assert await usage(link) == []


async def test_expired_records_are_dropped_without_a_request(
    keys: PostgresKeys, link: PostgresLink, clock: ManualClock
) -> None:
    for number in range(30):
        await keys.claim(KEY._replace(key=f"k-{number}"), a_record(clock))
    clock.advance(10 * TTL_S)
    await keys.claim(KEY, a_record(clock))
    assert await link.rows("SELECT count(*) FROM keys") == [(1,)]


async def test_answers_are_counted_in_bytes_and_refuse_more(link: PostgresLink, clock: ManualClock) -> None:
    keys = PostgresKeys(link, clock, max_bytes=8_000)
    await link.start()
    assert await keys.claim(KEY, a_record(clock)) is None
    assert await keys.settle(KEY, "owner-1", RESULT._replace(value="x" * 9_000), in_ttl(clock))
    with pytest.raises(ToolFailure) as refused:
        await keys.claim(KEY._replace(principal="other"), a_record(clock))
    assert refused.value.error.details["whose"] == "all"


async def test_a_hub_whose_clock_is_ahead_forgets_no_key_of_another(link: PostgresLink) -> None:
    keys, ahead = PostgresKeys(link), ManualClock()
    await link.start()
    now_ms = time.time_ns() // 1_000_000
    lasting = replace(a_record(ahead), expires_at_unix_ms=now_ms + 3_600_000)
    assert await keys.claim(KEY, lasting) is None
    assert await keys.claim(KEY, a_record(ahead, "owner-2")) == lasting
    assert await keys.settle(KEY, "owner-1", RESULT, now_ms - 1)
    assert await keys.claim(KEY, replace(lasting, owner="owner-3")) is None, "over by the server's clock"


async def test_lost_connection_lets_those_who_wait_look_again(own_postgres: PostgresServer, clock: ManualClock) -> None:
    link = PostgresLink(own_postgres.url, patience_s=15.0)
    keys = PostgresKeys(link, clock)
    await link.start()
    await keys.claim(KEY, a_record(clock))
    waiting = asyncio.create_task(keys.wait_for_end(KEY, "owner-1", LONG_S))
    assert not await keys.wait_for_end(KEY, "owner-1", AT_ONCE)
    own_postgres.restart()
    assert await keys.release(KEY, "owner-1")
    assert await waiting
    await link.close()
