"""Records in memory: the suites."""

from __future__ import annotations

import pytest

from tests.ports.approval_store_suite import ApprovalStoreSuite
from tests.ports.artifact_records_suite import ArtifactRecordsSuite
from tests.ports.pin_store_suite import PinStoreSuite
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.memory.records import MemoryApprovals, MemoryArtifacts, MemoryPins


class TestMemoryApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self) -> ApprovalStore:
        return MemoryApprovals()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestMemoryArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self) -> ArtifactRecords:
        return MemoryArtifacts()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""


class TestMemoryPins(PinStoreSuite):
    @pytest.fixture
    def store(self) -> PinStore:
        return MemoryPins()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
