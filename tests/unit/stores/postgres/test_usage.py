"""Uses of tools on a real PostgreSQL, with another process's link beside."""

from __future__ import annotations

import asyncio

import pytest

from tests.ports.usage_store_suite import KEEP, UsageStoreSuite, a_use
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.tool import ToolUse, UsageStore
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.usage import PostgresUsage

__all__ = ["link", "other_link"]


class TestPostgresUsage(UsageStoreSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> UsageStore:
        return PostgresUsage(link, KEEP)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> UsageStore:
        return PostgresUsage(other_link, KEEP)


async def test_uses_are_read_in_one_order_from_any_writer(link: PostgresLink, other_link: PostgresLink) -> None:
    await asyncio.gather(link.start(), other_link.start())
    stores = PostgresUsage(link, 100), PostgresUsage(other_link, 100)
    reader, cursor = PostgresUsage(other_link, 100), 0
    read: list[ToolUse] = []
    adding = asyncio.gather(*(stores[n % 2].add([a_use(f"purpose {n}")]) for n in range(60)))
    while not adding.done() or len(read) < 60:
        uses, cursor = await reader.after(cursor, 7)
        read += uses
    assert sorted(use.purpose for use in read) == sorted(f"purpose {number}" for number in range(60))
