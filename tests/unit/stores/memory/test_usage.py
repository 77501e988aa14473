"""Uses of tools in memory: the suite."""

from __future__ import annotations

import pytest

from tests.ports.usage_store_suite import KEEP, UsageStoreSuite
from toolhub_service.domain.tool import UsageStore
from toolhub_service.stores.memory.usage import MemoryUsage


class TestMemoryUsage(UsageStoreSuite):
    @pytest.fixture
    def store(self) -> UsageStore:
        return MemoryUsage(KEEP)

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
