"""The suite on a real Redis, with another process's link beside."""

from __future__ import annotations

import pytest

from tests.ports.job_store_suite import JobStoreSuite
from tests.unit.stores.redis_links import link, other_link
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.stores.redis_jobs import RedisJobs
from toolhub_service.stores.redis_link import RedisLink

__all__ = ["link", "other_link"]


class TestRedisJobs(JobStoreSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> JobStore:
        return RedisJobs(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> JobStore:
        return RedisJobs(other_link)
