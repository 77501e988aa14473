"""The log of inner calls on every backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest

from tests.ports.inner_log_suite import InnerLogSuite, a_call
from tests.unit.stores.postgres.postgres_links import link as postgres
from tests.unit.stores.postgres.postgres_links import other_link as other_postgres
from tests.unit.stores.redis.redis_links import data_keys
from tests.unit.stores.redis.redis_links import link as redis
from tests.unit.stores.redis.redis_links import other_link as other_redis
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.inner_log import InnerLogStore
from toolhub_service.stores.inner_log_records import INNER_CALLS, InnerLogs
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresRecords
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.record_layouts import INNER_CALL_LAYOUT
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords
from toolhub_service.stores.sqlite.writer import Change

__all__ = ["file", "other_file", "other_postgres", "other_redis", "postgres", "redis"]


class TestMemoryInnerLogs(InnerLogSuite):
    @pytest.fixture
    def store(self) -> InnerLogStore:
        return InnerLogs(MemoryRecords(INNER_CALLS))

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestSqliteInnerLogs(InnerLogSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> InnerLogStore:
        return InnerLogs(SqliteRecords(file, INNER_CALLS))

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> InnerLogStore:
        return InnerLogs(SqliteRecords(other_file, INNER_CALLS))


class TestRedisInnerLogs(InnerLogSuite):
    @pytest.fixture
    def store(self, redis: RedisLink) -> InnerLogStore:
        return InnerLogs(RedisRecords(redis, INNER_CALLS, INNER_CALL_LAYOUT))

    @pytest.fixture
    def other(self, other_redis: RedisLink) -> InnerLogStore:
        return InnerLogs(RedisRecords(other_redis, INNER_CALLS, INNER_CALL_LAYOUT))

    async def test_nothing_is_left_of_what_was_forgotten(self, redis: RedisLink) -> None:
        store = InnerLogs(RedisRecords(redis, INNER_CALLS, INNER_CALL_LAYOUT))
        assert await store.put(a_call())
        assert await store.forget_job("job-1") == 1
        assert await data_keys(redis) == set()


class TestPostgresInnerLogs(InnerLogSuite):
    @pytest.fixture
    def store(self, postgres: PostgresLink) -> InnerLogStore:
        return InnerLogs(PostgresRecords(postgres, INNER_CALLS))

    @pytest.fixture
    def other(self, other_postgres: PostgresLink) -> InnerLogStore:
        return InnerLogs(PostgresRecords(other_postgres, INNER_CALLS))


async def test_a_log_that_is_damaged_is_an_unknown_outcome(file: SqliteFile) -> None:
    store = InnerLogs(SqliteRecords(file, INNER_CALLS))
    assert await store.put(a_call())

    def damage(connection: sqlite3.Connection, records: Sequence[bytes]) -> list[int]:
        return [connection.execute("UPDATE inner_calls SET record = ?", (each,)).rowcount for each in records]

    assert await file.change(Change(damage), b"\x00") == 1
    with pytest.raises(ToolFailure) as refused:
        await store.of_job("job-1")
    assert refused.value.error.kind is ErrorKind.OUTCOME_UNKNOWN
