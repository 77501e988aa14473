from __future__ import annotations

import pytest

from tests.ports.job_store_suite import JobStoreSuite
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.stores.memory.jobs import MemoryJobs


class TestMemoryJobs(JobStoreSuite):
    @pytest.fixture
    def store(self) -> JobStore:
        return MemoryJobs()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
