"""The suite on a real Redis, with another process's link beside; and what is left of forgotten ones."""

from __future__ import annotations

import pytest

from tests.ports.approval_store_suite import ENDED, T0, ApprovalStoreSuite, an_approval, then
from tests.unit.stores.redis_links import data_keys, link, other_link
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_records import RedisApprovals

__all__ = ["link", "other_link"]


class TestRedisApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> ApprovalStore:
        return RedisApprovals(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> ApprovalStore:
        return RedisApprovals(other_link)


async def test_nothing_is_left_of_forgotten_approvals(link: RedisLink) -> None:
    store = RedisApprovals(link)
    for number, state in enumerate(ENDED):
        approval = an_approval(f"apr-{number}", args_summary_json='"canary-4711"')
        await store.create(approval)
        assert await store.put(then(approval, state))
    assert await store.forget(T0 * 2, 100) == len(ENDED)
    assert await data_keys(link) == set()
    assert await link.run("XLEN", link.key("feed")) == 0
