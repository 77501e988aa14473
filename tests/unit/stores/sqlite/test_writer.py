"""A file of an earlier version of the hub opens, and keeps its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.approval_store_suite import an_approval
from tests.ports.job_records import a_job
from tests.ports.key_store_suite import a_record, by
from tests.ports.pin_store_suite import a_pin
from tests.ports.usage_store_suite import a_use
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.stores.codec import encode_key_record
from toolhub_service.stores.credential_records import CREDENTIALS
from toolhub_service.stores.declared_table import sqlite_statements
from toolhub_service.stores.sqlite import writer as sqlite_writer
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.jobs import SqliteJobs
from toolhub_service.stores.sqlite.keys import SqliteKeys
from toolhub_service.stores.sqlite.migrations import COUNTED_ADDITION, MIGRATIONS
from toolhub_service.stores.sqlite.records import SqliteApprovals, SqlitePins
from toolhub_service.stores.sqlite.usage import SqliteUsage
from toolhub_service.stores.sqlite.writer import FileTooNew, connect


@pytest.fixture
async def first_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written by a hub that knows the first migration only; with a job and an approval."""
    path = tmp_path / "hub.db"
    with monkeypatch.context() as earlier:
        earlier.setattr(sqlite_writer, "MIGRATIONS", MIGRATIONS[:1])
        file = SqliteFile(path)
        await file.start()
        await SqliteJobs(file).create(a_job())
        await SqliteApprovals(file).create(an_approval())
        await file.close()
    return path


async def test_file_of_the_first_version_keeps_its_jobs_and_approvals_and_takes_pins_and_uses(first_file: Path) -> None:
    file = SqliteFile(first_file)
    await file.start()
    assert await SqliteJobs(file).get("job-1") == a_job()
    assert await SqliteApprovals(file).get("apr-1") == an_approval()
    assert await SqlitePins(file).put([a_pin()])
    await SqliteUsage(file, 10).add([a_use()])
    assert list(await SqlitePins(file).of_source("notes")) == [a_pin()]
    assert await SqliteUsage(file, 10).after(0, 10) == ([a_use()], 1)
    await file.close()


async def test_keys_of_the_first_version_count_to_the_shares_of_their_principals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "hub.db", ManualClock()
    with monkeypatch.context() as earlier:
        earlier.setattr(sqlite_writer, "MIGRATIONS", MIGRATIONS[:1])
        connection = connect(path, busy_timeout_s=60.0)
        record = encode_key_record(a_record(clock))
        rows = [("greedy", "x/y", str(number), "owner-1", 0, 10**15, 2_048, record) for number in range(10)]
        connection.executemany("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.close()
    file = SqliteFile(path)
    await file.start()
    keys = SqliteKeys(file, clock, max_keys=20)
    with pytest.raises(ToolFailure):
        await keys.claim(by("greedy"), a_record(clock))
    assert await keys.claim(by("modest"), a_record(clock)) is None
    await file.close()


def test_migration_that_fails_leaves_the_file_as_it_was(first_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*MIGRATIONS[:1], (*MIGRATIONS[1], "CREATE TABLE pins (twice TEXT)"))
    with monkeypatch.context() as failing:
        failing.setattr(sqlite_writer, "MIGRATIONS", broken)
        with pytest.raises(Exception, match="already exists"):
            connect(first_file, busy_timeout_s=60.0)
    connection = connect(first_file, busy_timeout_s=60.0)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert connection.execute("SELECT job_id FROM jobs").fetchall() == [("job-1",)]
    connection.close()


def test_hub_of_the_first_version_refuses_a_file_of_the_second(
    first_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(first_file, busy_timeout_s=60.0).close()
    monkeypatch.setattr(sqlite_writer, "MIGRATIONS", MIGRATIONS[:1])
    with pytest.raises(FileTooNew):
        connect(first_file, busy_timeout_s=60.0)


@pytest.mark.promise("upgrade.way-back")
def test_a_declared_table_is_created_and_counted_by_no_version_of_the_file(first_file: Path) -> None:
    """So that the hub before opens the file, too; the version that hubs of one day gave such a file is taken back."""
    for _ in range(2):
        connection = connect(first_file, busy_timeout_s=60.0, declared=sqlite_statements(CREDENTIALS))
        assert connection.execute("SELECT count(*) FROM credentials").fetchone() == (0,)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        connection.execute(f"PRAGMA user_version = {COUNTED_ADDITION}")
        connection.close()
