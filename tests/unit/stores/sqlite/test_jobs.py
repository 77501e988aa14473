from __future__ import annotations

import pytest

from tests.ports.job_store_suite import JobStoreSuite
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.jobs import SqliteJobs

__all__ = ["file", "other_file"]


class TestSqliteJobs(JobStoreSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> JobStore:
        return SqliteJobs(file)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> JobStore:
        return SqliteJobs(other_file)
