"""Keys that all hubs of one Redis seal with."""

from __future__ import annotations

import pytest

from tests.ports.shared_keys_suite import SharedKeysSuite
from tests.unit.stores.redis.redis_links import link, other_link
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.shared_keys import RedisSharedKeys

__all__ = ["link", "other_link"]


@pytest.fixture
async def keys(link: RedisLink) -> RedisSharedKeys:
    await link.start()
    return RedisSharedKeys(link)


@pytest.fixture
async def others(other_link: RedisLink) -> RedisSharedKeys:
    await other_link.start()
    return RedisSharedKeys(other_link)


class TestSuite(SharedKeysSuite):
    pass
