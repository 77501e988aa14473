"""The suite on a real Redis, and what sharing adds: another process's claims, waiters there, outages."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.key_store_suite import (
    CAPACITY,
    KEY,
    LEASE_S,
    LONG_S,
    RESULT,
    TTL_S,
    KeyStoreSuite,
    SharedKeysSuite,
    a_record,
    in_ttl,
)
from tests.services import RedisServer
from tests.unit.stores.redis.redis_links import data_keys, link, other_link
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.key import EffectKey
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.redis.keys import RedisKeys, _digest_of_key
from toolhub_service.stores.redis.link import RedisLink

__all__ = ["link", "other_link"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def keys(link: RedisLink, clock: ManualClock) -> RedisKeys:
    await link.start()
    return RedisKeys(link, clock, max_keys=CAPACITY)


@pytest.fixture
async def others(other_link: RedisLink, clock: ManualClock) -> RedisKeys:
    await other_link.start()
    return RedisKeys(other_link, clock, max_keys=CAPACITY)


class TestRedisKeys(KeyStoreSuite, SharedKeysSuite):
    @pytest.fixture
    def store(self, keys: RedisKeys) -> KeyStore:
        return keys


@pytest.mark.parametrize("how", ["settle", "release", "replace"])
@pytest.mark.promise("idempotency.shared")
async def test_hundred_waiters_wake_for_what_another_process_did(
    keys: RedisKeys, others: RedisKeys, link: RedisLink, clock: ManualClock, how: str
) -> None:
    await keys.claim(KEY, a_record(clock))
    waiting = await waiters(keys, link)
    if how == "settle":
        assert await others.settle(KEY, "owner-1", RESULT, in_ttl(clock))
    elif how == "release":
        assert await others.release(KEY, "owner-1")
    else:
        assert await others.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
    assert await asyncio.gather(*waiting) == [True] * 100


async def test_waiters_hold_no_connection_and_nothing_is_published_where_nobody_waits(
    keys: RedisKeys, link: RedisLink, clock: ManualClock
) -> None:
    await keys.claim(KEY, a_record(clock))
    await keys.settle(KEY, "owner-1", RESULT, in_ttl(clock))
    assert await link.run("XLEN", link.key("feed")) == 0
    other = KEY._replace(key="k-2")
    await keys.claim(other, a_record(clock))
    waiting = await waiters(keys, link, other)
    assert int((await link.run("INFO", "clients")).decode().partition("blocked_clients:")[2].split()[0]) <= 1
    await keys.release(other, "owner-1")
    await asyncio.gather(*waiting)
    assert await link.run("XLEN", link.key("feed")) == 1
    assert len(keys._awaited) == 0


async def test_waiter_survives_an_outage(own_redis: RedisServer, clock: ManualClock) -> None:
    link = RedisLink(own_redis.url, SystemRandomness())
    await link.start()
    keys = RedisKeys(link, clock)
    await keys.claim(KEY, a_record(clock))
    waiting = await waiters(keys, link)
    await asyncio.to_thread(own_redis.restart)
    assert await keys.settle(KEY, "owner-1", RESULT, in_ttl(clock))
    assert await asyncio.gather(*waiting) == [True] * 100
    await link.close()


async def test_settling_whose_answer_was_lost_is_known_again(
    keys: RedisKeys, link: RedisLink, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = a_record(clock)
    for _ in range(2):
        assert await keys.claim(KEY, record) is None, "the very same claim, sent again"
    with monkeypatch.context() as repeated:
        repeated.setattr(link, "token", lambda: "token-1")
        for _ in range(2):
            assert await keys.settle(KEY, "owner-1", RESULT, in_ttl(clock))
    assert not await keys.settle(KEY, "owner-1", RESULT, in_ttl(clock)), "another settling"


async def test_nothing_is_left_of_released_and_expired_keys(
    keys: RedisKeys, link: RedisLink, clock: ManualClock
) -> None:
    for number in range(CAPACITY):
        await keys.claim(KEY._replace(principal=f"agent-{number}"), a_record(clock))
    clock.advance(LEASE_S + TTL_S)
    await keys.claim(KEY, a_record(clock))
    await keys.release(KEY, "owner-1")
    assert await data_keys(link) == set()


async def waiters(keys: RedisKeys, link: RedisLink, key: EffectKey = KEY) -> list[asyncio.Task[bool]]:
    """A hundred that wait, which the store knows."""
    tasks = [asyncio.create_task(keys.wait_for_end(key, "owner-1", LONG_S)) for _ in range(100)]
    while not await link.run("HEXISTS", link.key(f"key:{_digest_of_key(key).decode()}"), "waited"):
        pass
    return tasks
