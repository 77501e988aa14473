"""Stored credentials on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.ports.credential_store_suite import CredentialStoreSuite
from tests.unit.stores.postgres.postgres_links import link as postgres
from tests.unit.stores.postgres.postgres_links import other_link as other_postgres
from tests.unit.stores.redis.redis_links import link as redis
from tests.unit.stores.redis.redis_links import other_link as other_redis
from toolhub_service.domain.credential import CredentialStore
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresRecords
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords

__all__ = ["other_postgres", "other_redis", "postgres", "redis"]


@asynccontextmanager
async def in_file(folder: Path) -> AsyncIterator[CredentialStore]:
    file = SqliteFile(folder / "hub.db")
    store = Credentials(SqliteRecords(file, CREDENTIALS))
    await file.start()
    yield store
    await file.close()


class TestMemoryCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self) -> CredentialStore:
        return Credentials(MemoryRecords(CREDENTIALS))

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestSqliteCredentials(CredentialStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[CredentialStore]:
        async with in_file(tmp_path) as store:
            yield store

    @pytest.fixture
    async def other(self, store: CredentialStore, tmp_path: Path) -> AsyncIterator[CredentialStore]:
        async with in_file(tmp_path) as other:
            yield other


class TestRedisCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self, redis: RedisLink) -> CredentialStore:
        return Credentials(RedisRecords(redis, CREDENTIALS))

    @pytest.fixture
    def other(self, other_redis: RedisLink) -> CredentialStore:
        return Credentials(RedisRecords(other_redis, CREDENTIALS))


class TestPostgresCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self, postgres: PostgresLink) -> CredentialStore:
        return Credentials(PostgresRecords(postgres, CREDENTIALS))

    @pytest.fixture
    def other(self, other_postgres: PostgresLink) -> CredentialStore:
        return Credentials(PostgresRecords(other_postgres, CREDENTIALS))
