"""The tables are created once by the first process, and a hub that is too old refuses to start."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.migrate import migrate, migrations


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = [int(name.split("_")[0]) for name in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_each_migration_is_applied_once_by_processes_that_start_together(postgres_url: str) -> None:
    async def start() -> list[str]:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            return await migrate(connection)

    applied = await asyncio.gather(*(start() for _ in range(8)))
    assert sorted(applied, key=len) == [[]] * 7 + [list(migrations())]


async def test_tables_of_a_newer_hub_are_left_alone(postgres_url: str) -> None:
    link = PostgresLink(postgres_url)
    await link.start()
    await link.close()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("INSERT INTO store_migrations (name) VALUES ('9999_future.sql')")
    link = PostgresLink(postgres_url)
    with pytest.raises(HubFailure) as caught:
        await link.start()
    assert caught.value.reason.name == "STORE_TOO_NEW"
    await link.close()


async def test_migration_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE TABLE job_entries (mine text)")
    link = PostgresLink(postgres_url)
    with pytest.raises(ToolFailure) as caught:
        await link.start()
    assert caught.value.error.details["reason"] == "it answered 42P07"
    await link.close()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        assert admin.execute("SELECT to_regclass('jobs'), to_regclass('store_migrations')").fetchone() == (None, None)
