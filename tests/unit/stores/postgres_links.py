"""Links to the test's PostgreSQL: fixtures of the tests of its stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolhub_service.stores.postgres_link import PostgresLink


@pytest.fixture
async def link(postgres_url: str) -> AsyncIterator[PostgresLink]:
    """Of this process."""
    made = PostgresLink(postgres_url)
    yield made
    await made.close()


@pytest.fixture
async def other_link(postgres_url: str) -> AsyncIterator[PostgresLink]:
    """As another process has it."""
    made = PostgresLink(postgres_url)
    yield made
    await made.close()
