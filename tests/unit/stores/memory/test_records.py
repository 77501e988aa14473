"""The suites, and what is the own of keys in memory: bytes, and what it forgets."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.approval_store_suite import ApprovalStoreSuite
from tests.ports.artifact_records_suite import ArtifactRecordsSuite
from tests.ports.key_store_suite import CAPACITY, KEY, RESULT, TTL_S, KeyStoreSuite, a_record, in_ttl
from tests.ports.pin_store_suite import PinStoreSuite
from tests.ports.usage_store_suite import KEEP, UsageStoreSuite
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.ports import KeyStore
from toolhub_service.domain.source import PinStore
from toolhub_service.domain.tool import UsageStore
from toolhub_service.stores.memory.records import MemoryApprovals, MemoryArtifacts, MemoryKeys, MemoryPins, MemoryUsage


class TestMemoryApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self) -> ApprovalStore:
        return MemoryApprovals()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestMemoryArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self) -> ArtifactRecords:
        return MemoryArtifacts()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestMemoryPins(PinStoreSuite):
    @pytest.fixture
    def store(self) -> PinStore:
        return MemoryPins()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestMemoryUsage(UsageStoreSuite):
    @pytest.fixture
    def store(self) -> UsageStore:
        return MemoryUsage(KEEP)

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


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
