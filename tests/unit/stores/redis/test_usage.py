"""Uses of tools on a real Redis, with another process's link beside; what forgotten ones leave, and outages."""

from __future__ import annotations

import pytest

from tests.ports.usage_store_suite import KEEP, UsageStoreSuite, a_use, numbered
from tests.ports.usage_store_suite import T0 as USED_AT
from tests.unit.stores.redis.redis_links import data_keys, link, other_link
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import UsageStore
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.usage import RedisUsage

__all__ = ["link", "other_link"]


class TestRedisUsage(UsageStoreSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> UsageStore:
        return RedisUsage(link, KEEP)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> UsageStore:
        return RedisUsage(other_link, KEEP)


async def test_only_the_count_is_left_of_forgotten_uses(link: RedisLink) -> None:
    usage = RedisUsage(link, KEEP)
    await usage.add([*numbered(2 * KEEP), *numbered(KEEP, tenant="agent-b")])
    assert await usage.forget(USED_AT + 1, 100) == 2 * KEEP
    assert await data_keys(link) == {"uses:count"}


async def test_server_that_lost_its_data_is_read_from_the_start(link: RedisLink) -> None:
    usage = RedisUsage(link, KEEP)
    await usage.add(numbered(KEEP))
    _, cursor = await usage.after(0, 100)
    await link.run("FLUSHDB")
    assert await usage.after(cursor, 100) == ([], 0)
    await usage.add([a_use("new")])
    assert await usage.after(cursor, 100) == ([a_use("new")], 1)


async def test_use_that_cannot_be_read_is_passed_over(link: RedisLink) -> None:
    usage = RedisUsage(link, KEEP)
    await usage.add(uses := numbered(3))
    await link.run("HSET", link.key("use:2"), "record", b"\x00")
    assert await usage.after(0, 100) == ([uses[0], uses[2]], 3)


async def test_redis_that_is_away_is_unavailable_to_uses() -> None:
    link = RedisLink("redis://127.0.0.1:1", SystemRandomness(), patience_s=0.05)
    usage = RedisUsage(link, KEEP)
    for refused in (usage.add(numbered(1)), usage.after(0, 1), usage.forget(1, 1)):
        with pytest.raises(ToolFailure) as failure:
            await refused
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    await link.close()
