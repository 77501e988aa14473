"""Links to the test's Redis: fixtures of the tests of its stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.stores.redis.link import RedisLink


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    """Of this process."""
    async for made in _open(redis_url):
        yield made


@pytest.fixture
async def other_link(redis_url: str) -> AsyncIterator[RedisLink]:
    """As another process has it."""
    async for made in _open(redis_url):
        yield made


async def _open(url: str) -> AsyncIterator[RedisLink]:
    made = RedisLink(url, SystemRandomness())
    yield made
    await made.close()


async def data_keys(link: RedisLink) -> set[str]:
    """Everything that is kept under the link's prefix, but for the feed, which bounds itself."""
    keys = {key.decode().removeprefix(link.prefix) for key in await link.run("KEYS", f"{link.prefix}*")}
    return keys - {"feed", "feed:count"}
