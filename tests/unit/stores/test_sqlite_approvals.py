from __future__ import annotations

import pytest

from tests.ports.approval_store_suite import ApprovalStoreSuite
from tests.unit.stores.sqlite_files import file, other_file
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_records import SqliteApprovals

__all__ = ["file", "other_file"]


class TestSqliteApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> ApprovalStore:
        return SqliteApprovals(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> ApprovalStore:
        return SqliteApprovals(other_file)
