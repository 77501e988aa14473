"""Keys that all hubs of one PostgreSQL seal with."""

from __future__ import annotations

import pytest

from tests.ports.shared_keys_suite import SharedKeysSuite
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.shared_keys import PostgresSharedKeys

__all__ = ["link", "other_link"]


@pytest.fixture
async def keys(link: PostgresLink) -> PostgresSharedKeys:
    made = PostgresSharedKeys(link)
    await link.start()
    return made


@pytest.fixture
async def others(other_link: PostgresLink) -> PostgresSharedKeys:
    made = PostgresSharedKeys(other_link)
    await other_link.start()
    return made


class TestSuite(SharedKeysSuite):
    pass
