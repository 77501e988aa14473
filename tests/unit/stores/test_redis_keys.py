"""The suite on a real Redis, and what sharing adds: another process's claims, waiters there, outages."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.key_store_suite import CAPACITY, KeyStoreSuite
from tests.unit.stores.redis_links import link, other_link
from toolhub_service.domain.ports import KeyStore
from toolhub_service.stores.redis_keys import RedisKeys
from toolhub_service.stores.redis_link import RedisLink

__all__ = ["link", "other_link"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(link: RedisLink, clock: ManualClock) -> KeyStore:
    await link.start()
    return RedisKeys(link, clock, max_keys=CAPACITY)


class TestRedisKeys(KeyStoreSuite):
    pass
