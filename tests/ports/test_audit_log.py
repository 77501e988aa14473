"""The suite, for the log in SQLite, for the one in PostgreSQL and for the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fakes.audit_log import MemoryAuditLog
from tests.ports.audit_log_suite import REDACTOR, TAIL_LIMIT, AuditLogSuite, called
from tests.unit.stores.audit.logs_in import started_log, unstarted_log
from tests.unit.stores.audit.postgres_logs import started_postgres_log
from toolhub_service.domain.ports import AuditLog
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.postgres import PostgresAuditLog


class TestSqliteAuditLog(AuditLogSuite):
    @pytest.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[SqliteAuditLog]:
        log = await started_log(tmp_path, redactor=REDACTOR, tail_limit=TAIL_LIMIT)
        yield log
        await log.close()


class TestPostgresAuditLog(AuditLogSuite):
    @pytest.fixture
    async def log(self, tmp_path: Path, postgres_url: str) -> AsyncIterator[PostgresAuditLog]:
        log = await started_postgres_log(postgres_url, tmp_path, redactor=REDACTOR, tail_limit=TAIL_LIMIT)
        yield log
        await log.close()


class TestMemoryAuditLog(AuditLogSuite):
    def test_fake_and_real_logs_satisfy_the_port(self, tmp_path: Path) -> None:
        """For mypy more than for pytest: real ones and the fake satisfy the port."""
        logs: list[AuditLog] = [MemoryAuditLog(), unstarted_log(tmp_path)]
        assert len(logs) == 2

    @pytest.fixture
    def log(self) -> MemoryAuditLog:
        return MemoryAuditLog(REDACTOR, tail_limit=TAIL_LIMIT)

    async def test_tampering_with_the_fake_is_found(self, log: MemoryAuditLog) -> None:
        for number in range(1, 6):
            log.append(called(number))
        log.events[2] = replace(log.events[2], event=called(3, principal="agent-x"))
        assert [(fault.sequence) for fault in (await log.verify()).faults] == [3]
