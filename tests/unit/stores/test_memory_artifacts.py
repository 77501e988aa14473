from __future__ import annotations

import pytest

from tests.ports.artifact_records_suite import ArtifactRecordsSuite
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.stores.memory import MemoryArtifacts


class TestMemoryArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self) -> ArtifactRecords:
        return MemoryArtifacts()

    @pytest.fixture
    def other(self) -> None:
        """Memory is shared with nobody."""
