from __future__ import annotations

import asyncio

import pytest

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
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.keys import SqliteKeys

__all__ = ["file", "other_file"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestSqliteKeys(KeyStoreSuite, SharedKeysSuite):
    @pytest.fixture
    def store(self, file: SqliteFile, clock: ManualClock) -> KeyStore:
        return SqliteKeys(file, clock, max_keys=CAPACITY)


@pytest.fixture
def keys(file: SqliteFile, clock: ManualClock) -> SqliteKeys:
    return SqliteKeys(file, clock)


@pytest.fixture
def others(other_file: SqliteFile, clock: ManualClock) -> SqliteKeys:
    return SqliteKeys(other_file, clock)


async def test_end_of_another_claim_on_the_key_does_not_wake_for_good(keys: SqliteKeys, clock: ManualClock) -> None:
    await keys.claim(KEY, a_record(clock))
    await keys.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1")
    waiting = asyncio.create_task(keys.wait_for_end(KEY, "owner-2", LONG_S))
    assert await keys.wait_for_end(KEY, "owner-1", LONG_S)
    assert not await keys.wait_for_end(KEY, "owner-2", AT_ONCE)
    assert not waiting.done()
    await keys.release(KEY, "owner-2")
    assert await waiting


async def test_answers_are_bounded_in_bytes_and_given_back(file: SqliteFile, clock: ManualClock) -> None:
    keys = SqliteKeys(file, clock, max_bytes=100_000)
    await keys.claim(KEY._replace(key="large"), a_record(clock))
    await keys.settle(KEY._replace(key="large"), "owner-1", RESULT._replace(value="x" * 99_000), in_ttl(clock))
    with pytest.raises(ToolFailure) as refused:
        await keys.claim(KEY, a_record(clock))
    assert refused.value.error.kind is ErrorKind.RATE_LIMITED
    clock.advance(TTL_S)
    assert await keys.claim(KEY, a_record(clock)) is None


async def test_bytes_have_shares_too(file: SqliteFile, clock: ManualClock) -> None:
    keys = SqliteKeys(file, clock, max_bytes=100_000)
    await keys.claim(KEY._replace(key="large"), a_record(clock))
    await keys.settle(KEY._replace(key="large"), "owner-1", RESULT._replace(value="x" * 60_000), in_ttl(clock))
    with pytest.raises(ToolFailure) as refused:
        await keys.claim(KEY, a_record(clock))
    assert refused.value.error.details["whose"] == "yours"
    assert await keys.claim(KEY._replace(principal="another"), a_record(clock)) is None


async def test_released_and_replaced_keys_leave_no_count_behind(file: SqliteFile, clock: ManualClock) -> None:
    keys = SqliteKeys(file, clock, max_bytes=10_000)
    for _ in range(30):
        assert await keys.claim(KEY, a_record(clock)) is None
        assert await keys.claim(KEY, a_record(clock, "owner-2"), replacing="owner-1") is None
        assert await keys.release(KEY, "owner-2")
    usage = await file.read(lambda connection: connection.execute("SELECT * FROM key_usage").fetchone())
    assert usage == (0, 0)
    assert await file.read(lambda connection: connection.execute("SELECT * FROM key_usage_of").fetchall()) == []


async def test_expired_records_are_dropped_without_a_request(file: SqliteFile, clock: ManualClock) -> None:
    keys = SqliteKeys(file, clock)
    for number in range(30):
        await keys.claim(KEY._replace(key=f"k-{number}"), a_record(clock))
    clock.advance(10 * TTL_S)
    await keys.claim(KEY, a_record(clock))
    usage = await file.read(lambda connection: connection.execute("SELECT keys FROM key_usage").fetchone())
    assert usage == (1,)
