"""Uses of tools in the hub's own file, with another process's beside; what outlives the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports.usage_store_suite import KEEP, UsageStoreSuite, numbered
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.tool import UsageStore
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.usage import SqliteUsage

__all__ = ["file", "other_file"]


class TestSqliteUsage(UsageStoreSuite):
    @pytest.fixture
    def store(self, file: SqliteFile) -> UsageStore:
        return SqliteUsage(file, KEEP)

    @pytest.fixture
    def other(self, other_file: SqliteFile) -> UsageStore:
        return SqliteUsage(other_file, KEEP)


async def test_uses_and_cursors_outlive_the_process_and_what_was_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    for round_number in range(3):
        file = SqliteFile(path)
        await file.start()
        usage = SqliteUsage(file, 10)
        assert await usage.after(4 * round_number, 10) == ([], 4 * round_number)
        await usage.add(uses := numbered(4))
        assert await usage.after(4 * round_number, 10) == (uses, 4 * round_number + 4)
        if round_number == 1:
            assert await usage.forget(2 * uses[0].at_unix_ms, 100) == 8
        await file.close()


async def test_closed_file_is_unavailable_to_uses(file: SqliteFile) -> None:
    usage = SqliteUsage(file, KEEP)
    await file.close()
    for refused in (usage.add(numbered(1)), usage.after(0, 1), usage.forget(1, 1)):
        with pytest.raises(ToolFailure) as failure:
            await refused
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
