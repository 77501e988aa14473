"""The suite on a real Redis, and what sharing adds: another process's claims, waiters there, outages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.ports.key_store_suite import CAPACITY, KeyStoreSuite
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.redis_keys import RedisKeys
from toolhub_service.stores.redis_link import RedisLink


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, FixedRandomness())
    await link.start()
    yield link
    await link.close()


@pytest.fixture
async def store(link: RedisLink, clock: ManualClock) -> KeyStore:
    return RedisKeys(link, clock, max_keys=CAPACITY)


class TestRedisKeys(KeyStoreSuite):
    pass
