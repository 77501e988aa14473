"""The suite on a real PostgreSQL, with another process's link beside."""

from __future__ import annotations

import pytest

from tests.ports.job_store_suite import JobStoreSuite
from tests.unit.stores.postgres.postgres_links import link, other_link
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.stores.postgres.jobs import PostgresJobs
from toolhub_service.stores.postgres.link import PostgresLink

__all__ = ["link", "other_link"]


class TestPostgresJobs(JobStoreSuite):
    @pytest.fixture
    def store(self, link: PostgresLink) -> JobStore:
        return PostgresJobs(link)

    @pytest.fixture
    def other(self, other_link: PostgresLink) -> JobStore:
        return PostgresJobs(other_link)
