"""Links to the test's PostgreSQL: fixtures of the tests of its stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.migrate import migrate


@pytest.fixture
async def link(hub_postgres_url: str) -> AsyncIterator[PostgresLink]:
    """Of this process."""
    made = PostgresLink(hub_postgres_url)
    yield made
    await made.close()


@pytest.fixture
async def other_link(hub_postgres_url: str) -> AsyncIterator[PostgresLink]:
    """As another process has it."""
    made = PostgresLink(hub_postgres_url)
    yield made
    await made.close()


def make_tables(url: str) -> None:
    """Those of a hub, in an empty database."""

    async def made() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await migrate(connection)

    asyncio.run(made())
