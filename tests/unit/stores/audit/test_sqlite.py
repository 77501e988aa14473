"""The audit log's file: created once, where a log begins, and never again after a part of it vanished."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import files_in, started_log, verified
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.event import EventFilter
from toolhub_service.stores.audit.log import WriterTiming
from toolhub_service.stores.audit.sqlite import connect, page, transaction

STARTERS = 8


def run_sql(folder: Path, *statements: str) -> list[str]:
    """The tables that are there afterwards."""
    with closing(sqlite3.connect(files_in(folder)[0])) as connection, connection:
        for statement in statements:
            connection.execute(statement)
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def test_writers_that_start_together_on_a_new_database_all_open_it(tmp_path: Path) -> None:
    for attempt in range(30):
        path, together = tmp_path / f"audit{attempt}.db", Barrier(STARTERS)

        def start(path: Path = path, together: Barrier = together) -> str:
            together.wait()
            connection = connect(path)
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            connection.close()
            return str(mode)

        with ThreadPoolExecutor(STARTERS) as threads:
            modes = [future.result() for future in [threads.submit(start) for _ in range(STARTERS)]]
        assert modes == ["wal"] * STARTERS


def test_a_transaction_that_cannot_be_committed_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "any.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("CREATE TABLE one (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE other (id REFERENCES one DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), transaction(connection):
            connection.execute("INSERT INTO other VALUES (1)")
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM other").fetchone() == (0,)


def test_transaction_that_breaks_halfway_is_rolled_back(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "any.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE one (id INTEGER PRIMARY KEY)")

        def insert_twice() -> None:
            with transaction(connection):
                for _ in range(2):
                    connection.execute("INSERT INTO one VALUES (1)")

        with pytest.raises(sqlite3.IntegrityError):
            insert_twice()
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM one").fetchone() == (0,)


async def test_log_of_before_is_read_and_verified_without_the_index_by_principal_and_gets_it_when_opened(
    tmp_path: Path,
) -> None:
    log = await started_log(tmp_path)
    for number, principal in enumerate(("a-1", "b-1", "a-2", "b-1"), start=1):
        await log.append_durably(called(number, principal=principal))
    await log.close()
    run_sql(tmp_path, "DROP INDEX events_by_principal")
    where = EventFilter(owners=lambda owner: owner.startswith("a-"))

    def found() -> list[int]:
        return [each.event.at_unix_ms for each in page(files_in(tmp_path)[0], where, None, 10)]

    assert found() == [1, 3]
    assert verified(tmp_path).ok
    again = await started_log(tmp_path)
    await again.append_durably(called(5, principal="a-1"))
    await again.close()
    with closing(sqlite3.connect(files_in(tmp_path)[0])) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")]
    assert "events_by_principal" in names
    assert found() == [1, 3, 5]
    assert verified(tmp_path).ok


@pytest.mark.parametrize("table", ["events", "checkpoints"])
@pytest.mark.parametrize("vanished", ["DROP TABLE {}", "ALTER TABLE {} RENAME TO moved"])
@pytest.mark.parametrize("also_removed", [(), (1,), (2,), (1, 2)], ids=["nothing", "checkpoints", "key", "both"])
async def test_table_that_vanished_between_two_runs_is_never_made_anew(
    tmp_path: Path, table: str, vanished: str, also_removed: tuple[int, ...]
) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    await log.close()
    left = run_sql(tmp_path, vanished.format(table))
    for place in also_removed:
        files_in(tmp_path)[place].unlink()
    for _ in range(2):
        with pytest.raises(
            HubFailure, match=rf"table {table} of the audit log is missing.*`toolhub audit begin`"
        ) as raised:
            await started_log(tmp_path)
        assert raised.value.reason.name == "AUDIT_LOG_CHANGED"
    assert run_sql(tmp_path) == left


async def test_database_that_vanished_is_not_made_anew_though_the_key_vanished_with_it(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    await log.close()
    database, _, key = files_in(tmp_path)
    key.unlink()
    database.unlink()
    with pytest.raises(HubFailure, match=r"is gone.*`toolhub audit begin`") as raised:
        await started_log(tmp_path)
    assert raised.value.reason.name == "AUDIT_LOG_CHANGED"
    assert not database.exists()


async def test_table_that_vanishes_under_a_running_log_is_waited_for_and_not_made_anew(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0))
    await log.append_durably(called(1))
    left = run_sql(tmp_path, "ALTER TABLE events RENAME TO moved")
    with pytest.raises(ToolFailure):
        await log.append_durably(called(2))
    for _ in range(100):  # each append is refused at once while the writer opens the file again and again
        with pytest.raises(ToolFailure):
            await log.append_durably(called(3))
    assert run_sql(tmp_path) == left
    run_sql(tmp_path, "ALTER TABLE moved RENAME TO events")
    await log.close()  # tries once more what was taken and could not be written
    verification = verified(tmp_path)
    assert (verification.faults, verification.writers, verification.events_checked) == ((), 1, 2)
