"""Stored credentials on every backend."""

from __future__ import annotations

import pytest

from tests.ports.credential_store_suite import CredentialStoreSuite
from tests.unit.stores.postgres.postgres_links import link as postgres
from tests.unit.stores.postgres.postgres_links import other_link as other_postgres
from tests.unit.stores.redis.redis_links import link as redis
from tests.unit.stores.redis.redis_links import other_link as other_redis
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.credential import CredentialStore
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresRecords
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.record_layouts import CREDENTIAL_LAYOUT
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords

__all__ = ["file", "other_file", "other_postgres", "other_redis", "postgres", "redis"]


class TestMemoryCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self) -> CredentialStore:
        return Credentials(MemoryRecords(CREDENTIALS))

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestSqliteCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> CredentialStore:
        return Credentials(SqliteRecords(file, CREDENTIALS))

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> CredentialStore:
        return Credentials(SqliteRecords(other_file, CREDENTIALS))


class TestRedisCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self, redis: RedisLink) -> CredentialStore:
        return Credentials(RedisRecords(redis, CREDENTIALS, CREDENTIAL_LAYOUT))

    @pytest.fixture
    def other(self, other_redis: RedisLink) -> CredentialStore:
        return Credentials(RedisRecords(other_redis, CREDENTIALS, CREDENTIAL_LAYOUT))


class TestPostgresCredentials(CredentialStoreSuite):
    @pytest.fixture
    def store(self, postgres: PostgresLink) -> CredentialStore:
        return Credentials(PostgresRecords(postgres, CREDENTIALS))

    @pytest.fixture
    def other(self, other_postgres: PostgresLink) -> CredentialStore:
        return Credentials(PostgresRecords(other_postgres, CREDENTIALS))
