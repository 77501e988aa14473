"""A table that is declared by its columns alone is stored, listed and expired alike by every backend."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.unit.stores.postgres.postgres_links import link as postgres
from tests.unit.stores.redis.redis_links import link as redis
from toolhub_service.stores.credential_records import CREDENTIALS
from toolhub_service.stores.declared_table import declare_table, postgres_statements, sqlite_statements
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresRecords
from toolhub_service.stores.record_store import APPROVALS, Column, RecordStore, Table, Where
from toolhub_service.stores.redis.derived_layout import derive_layout
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords

__all__ = ["postgres", "redis"]
FIRST_CREDENTIALS = """CREATE TABLE credentials (
    credential_id TEXT PRIMARY KEY, version INTEGER NOT NULL, owner TEXT NOT NULL, source TEXT NOT NULL,
    changed_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL)"""
"""As hubs created it before tables were declared."""


class Lease(msgspec.Struct, frozen=True):
    room: str
    guest: str
    expires_at_unix_ms: int
    version: int = 1


LEASES: Final = declare_table(
    "leases",
    Column[Lease]("room", str, lambda lease: lease.room.lower(), list_name="of"),
    Column("guest", str),
    Column("version", int),
    Column("expires_at_unix_ms", int),
    key=("room", "guest"),
    order=("expires_at_unix_ms", "room", "guest"),
    encode=msgspec.json.encode,
    decode=lambda data: msgspec.json.decode(data, type=Lease),
)


class DeclaredTableSuite:
    """Fixture of the subclass: `leases`, a store of that table, not started."""

    async def test_records_are_listed_by_columns_and_expire(self, leases: RecordStore[Lease]) -> None:
        await leases.start()
        first, second, third = Lease("A", "ann", 10), Lease("A", "bob", 20), Lease("B", "ann", 30)
        assert [await leases.put([each]) for each in (first, second, third, first)] == [True, True, True, False]
        assert await leases.get(("a", "bob")) == second
        assert await leases.page(Where({"room": "a"}), after=None, limit=9) == ([second, first], 2)
        assert await leases.page(Where(), after=(30, "b", "ann"), limit=1) == ([second], 3)
        assert list(await leases.read_expired(20, 9)) == [first, second]
        assert await leases.put([msgspec.structs.replace(first, expires_at_unix_ms=40, version=2)])
        assert list(await leases.read_expired(20, 9)) == [second]
        assert await leases.remove_all("room", "a") == 2
        assert await leases.page(Where(), after=None, limit=9) == ([third], 1)
        await leases.close()


class TestInMemory(DeclaredTableSuite):
    @pytest.fixture
    def leases(self) -> RecordStore[Lease]:
        return MemoryRecords(LEASES)


class TestInSqlite(DeclaredTableSuite):
    @pytest.fixture
    async def leases(self, tmp_path: Path) -> AsyncIterator[RecordStore[Lease]]:
        file = SqliteFile(tmp_path / "hub.db")
        records = SqliteRecords(file, LEASES)
        await file.start()
        yield records
        await file.close()


class TestInRedis(DeclaredTableSuite):
    @pytest.fixture
    def leases(self, redis: RedisLink) -> RecordStore[Lease]:
        return RedisRecords(redis, LEASES)


class TestInPostgres(DeclaredTableSuite):
    @pytest.fixture
    def leases(self, postgres: PostgresLink) -> RecordStore[Lease]:
        return PostgresRecords(postgres, LEASES)


async def test_a_table_of_an_earlier_hub_stays_and_keeps_its_records(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "hub.db")
    connection.execute(FIRST_CREDENTIALS)
    connection.execute("INSERT INTO credentials VALUES ('c-1', 1, 'ann', 'notes', 5, x'00')")
    connection.commit()
    for statement in sqlite_statements(CREDENTIALS):
        connection.execute(statement)
    assert connection.execute("SELECT credential_id, source FROM credentials").fetchall() == [("c-1", "notes")]
    connection.close()


async def test_tables_are_declared_before_the_file_is_started(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "hub.db")
    await file.start()
    with pytest.raises(RuntimeError, match="before"):
        SqliteRecords(file, LEASES)
    await file.close()


def test_a_table_with_migrations_has_no_statements_and_no_derived_layout() -> None:
    assert sqlite_statements(APPROVALS) == postgres_statements(APPROVALS) == ()
    with pytest.raises(ValueError, match="give its layout"):
        derive_layout(APPROVALS)


@pytest.mark.parametrize(("name", "key"), [("lease", ("room",)), ("leases", ("house",))])
def test_a_declaration_names_its_key_among_the_columns_and_is_a_plural(name: str, key: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="with columns"):
        declare(name, key)


def declare(name: str, key: tuple[str, ...]) -> Table[Lease]:
    return declare_table(
        name,
        Column[Lease]("room", str),
        Column("version", int),
        key=key,
        order=("room",),
        encode=LEASES.encode,
        decode=LEASES.decode,
    )
