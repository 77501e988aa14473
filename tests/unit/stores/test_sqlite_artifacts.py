from __future__ import annotations

import pytest

from tests.ports.artifact_records_suite import ArtifactRecordsSuite
from tests.unit.stores.sqlite_files import file, other_file
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_records import SqliteArtifacts

__all__ = ["file", "other_file"]


class TestSqliteArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> ArtifactRecords:
        return SqliteArtifacts(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> ArtifactRecords:
        return SqliteArtifacts(other_file)
