"""Idempotency keys in memory: the suite, the bound in bytes, and what is forgotten."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.key_store_suite import CAPACITY, KEY, RESULT, TTL_S, KeyStoreSuite, a_record, in_ttl
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.memory.keys import MemoryKeys


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestMemoryKeys(KeyStoreSuite):
    @pytest.fixture
    def store(self, clock: ManualClock) -> KeyStore:
        return MemoryKeys(clock, max_keys=CAPACITY)


async def settled(store: MemoryKeys, clock: ManualClock, key: str, text: str) -> None:
    await store.claim(KEY._replace(key=key), a_record(clock))
    await store.settle(KEY._replace(key=key), "owner-1", RESULT._replace(value=text), in_ttl(clock))


async def test_answers_are_bounded_in_bytes_too(clock: ManualClock) -> None:
    store = MemoryKeys(clock, max_bytes=100_000)
    await settled(store, clock, "large", "x" * 99_000)
    with pytest.raises(ToolFailure) as refused:
        await store.claim(KEY, a_record(clock))
    assert refused.value.error.kind is ErrorKind.RATE_LIMITED
    clock.advance(TTL_S)
    assert await store.claim(KEY, a_record(clock)) is None


async def test_bytes_have_shares_too(clock: ManualClock) -> None:
    store = MemoryKeys(clock, max_bytes=100_000)
    await settled(store, clock, "large", "x" * 60_000)
    with pytest.raises(ToolFailure) as refused:
        await store.claim(KEY, a_record(clock))
    assert refused.value.error.details["whose"] == "yours"
    assert await store.claim(KEY._replace(principal="another"), a_record(clock)) is None


async def test_bytes_of_released_and_replaced_keys_are_given_back(clock: ManualClock) -> None:
    store = MemoryKeys(clock, max_bytes=10_000)
    for _ in range(100):
        assert await store.claim(KEY, a_record(clock)) is None
        assert await store.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
        assert await store.release(KEY, "owner-2")
    assert len(store) == 0


async def test_expired_records_are_dropped_without_a_request(clock: ManualClock) -> None:
    store = MemoryKeys(clock)
    for number in range(100):
        await settled(store, clock, f"k-{number}", "x")
    assert len(store) == 100
    clock.advance(TTL_S)
    await store.claim(KEY, a_record(clock))
    assert len(store) == 1
