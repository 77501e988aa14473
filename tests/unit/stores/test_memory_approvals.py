from __future__ import annotations

import pytest

from tests.ports.approval_store_suite import ApprovalStoreSuite
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.stores.memory import MemoryApprovals


class TestMemoryApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self) -> ApprovalStore:
        return MemoryApprovals()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
