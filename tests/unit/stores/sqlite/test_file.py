"""The file that the embedded stores share: groups, neighbours, processes, and reports to the operator."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import stat
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.ports.job_records import a_job, kept, running
from tests.ports.recording_listener import JobListener
from tests.unit.stores.sqlite.sqlite_files import file, other_file
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.stores.sqlite.feed import Feed
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.jobs import SqliteJobs
from toolhub_service.stores.sqlite.migrations import MIGRATIONS
from toolhub_service.stores.sqlite.writer import Change, FileWriter, QueuedChange, connect

__all__ = ["file", "other_file"]


class NameWriter:
    """A kind of change that writes names into a table where no name may stand twice, and can be held up."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.change: Change[str, int] = Change(self._apply)

    def _apply(self, connection: sqlite3.Connection, names: Sequence[str]) -> list[int]:
        self.entered.set()
        assert self.go.wait(60)
        self.runs.append(list(names))
        connection.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT UNIQUE, size BLOB)")
        for name in names:
            connection.execute("INSERT INTO notes VALUES (?, NULL)", (name,))
        return [len(name) for name in names]


def names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM notes ORDER BY rowid")]


async def test_changes_requested_during_a_commit_go_together_into_the_next(file: SqliteFile) -> None:
    notes = NameWriter()
    notes.go.clear()
    first = asyncio.create_task(file.change(notes.change, "first"))
    await asyncio.to_thread(notes.entered.wait, 60)
    others = [asyncio.create_task(file.change(notes.change, "x" * size)) for size in range(50)]
    await asyncio.sleep(0)
    notes.go.set()
    assert await first == 5
    assert await asyncio.gather(*others) == list(range(50))
    assert [len(run) for run in notes.runs] == [1, 50]
    assert len(await file.read(names)) == 51


async def test_change_that_fails_fails_alone_and_leaves_nothing(file: SqliteFile) -> None:
    notes = NameWriter()
    asked = ["a", "b", "a", "c"]
    answers = await asyncio.gather(*(file.change(notes.change, name) for name in asked), return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == [1, 1, 1]
    assert isinstance(answers[2], ToolFailure)
    assert await file.read(names) == ["a", "b", "c"]


async def test_defect_in_a_change_reaches_its_caller_as_it_is(file: SqliteFile) -> None:
    def apply(connection: sqlite3.Connection, items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    inverse: Change[int, float] = Change(apply)
    answers = await asyncio.gather(*(file.change(inverse, item) for item in (1, 0, 2)), return_exceptions=True)
    assert answers[::2] == [1.0, 0.5]
    assert isinstance(answers[1], ZeroDivisionError)


async def test_changes_of_different_kinds_keep_the_order_of_asking(file: SqliteFile) -> None:
    first, second = NameWriter(), NameWriter()
    kinds = [first, second, second, first]
    await asyncio.gather(*(file.change(kind.change, str(number)) for number, kind in enumerate(kinds)))
    assert await file.read(names) == ["0", "1", "2", "3"]


async def test_reads_do_not_wait_for_a_writer(file: SqliteFile) -> None:
    notes = NameWriter()
    await file.change(notes.change, "a")
    notes.entered.clear()
    notes.go.clear()
    writing = asyncio.create_task(file.change(notes.change, "b"))
    await asyncio.to_thread(notes.entered.wait, 60)
    assert await file.read(names) == ["a"]
    notes.go.set()
    await writing
    assert await file.read(names) == ["a", "b"]


async def test_slow_read_delays_neither_the_loop_nor_another_read(file: SqliteFile) -> None:
    notes = NameWriter()
    await file.change(notes.change, "a")
    go = threading.Event()
    slow = asyncio.create_task(file.read(lambda connection: go.wait(60)))
    assert await file.read(names) == ["a"]
    await file.change(notes.change, "b")
    go.set()
    assert await slow


async def test_a_cancelled_caller_does_not_affect_others(file: SqliteFile) -> None:
    notes = NameWriter()
    leaving, staying = (asyncio.create_task(file.change(notes.change, name)) for name in ("a", "b"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1
    assert await file.change(notes.change, "c") == 1


async def test_closing_makes_what_was_asked_for_and_then_refuses(tmp_path: Path) -> None:
    file, notes = SqliteFile(tmp_path / "hub.db"), NameWriter()
    await file.start()
    asked = [asyncio.create_task(file.change(notes.change, str(number))) for number in range(20)]
    await asyncio.sleep(0)
    await file.close()
    assert await asyncio.gather(*asked) == [1] * 10 + [2] * 10
    for refused in (file.change(notes.change, "late"), file.read(names)):
        with pytest.raises(ToolFailure) as failure:
            await refused
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert failure.value.error.details["cause"] == "closed"
    await file.close()
    await file.start()
    assert len(await file.read(names)) == 20
    await file.close()


async def test_file_is_its_owners_only(file: SqliteFile) -> None:
    await file.change(NameWriter().change, "a")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in file.path.parent.iterdir()}
    assert modes == {0o600}


def test_processes_that_start_together_on_a_new_file_all_open_it(tmp_path: Path) -> None:
    for attempt in range(10):
        path, together = tmp_path / f"hub{attempt}.db", threading.Barrier(8)

        def start(path: Path = path, together: threading.Barrier = together) -> tuple[Any, Any]:
            together.wait()
            connection = connect(path, busy_timeout_s=60.0)
            mode, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "user_version")
            )
            connection.close()
            return mode, version

        with ThreadPoolExecutor(8) as threads:
            opened = [future.result() for future in [threads.submit(start) for _ in range(8)]]
        assert opened == [("wal", len(MIGRATIONS))] * 8


@pytest.mark.parametrize("damage", ["newer", "no database", "no folder"])
async def test_file_that_cannot_be_used_is_named_to_the_operator(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "data" / "hub.db"
    if damage == "no folder":
        path.parent.write_text("a file")
    else:
        path.parent.mkdir()
        path.write_bytes(b"no database" * 500 if damage == "no database" else b"")
    if damage == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    with pytest.raises(ToolFailure) as refused:
        await SqliteFile(path).start()
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert str(path) in refused.value.error.message
    assert "Traceback" not in refused.value.error.message


async def test_file_that_another_holds_is_unavailable_until_it_is_let_go(tmp_path: Path) -> None:
    file, notes = SqliteFile(tmp_path / "hub.db", busy_timeout_s=0.02), NameWriter()
    await file.start()
    holder = sqlite3.connect(file.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ToolFailure) as refused:
        await file.change(notes.change, "a")
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert refused.value.error.is_retryable
    holder.execute("ROLLBACK")
    assert await file.change(notes.change, "a") == 1
    holder.close()
    await file.close()


@pytest.mark.promise("store.outage")
async def test_full_disk_is_unavailable_and_what_was_written_stays(file: SqliteFile) -> None:
    notes = NameWriter()
    await file.change(notes.change, "a")

    def fill(connection: sqlite3.Connection, sizes: Sequence[int]) -> list[int]:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        connection.executemany("INSERT INTO notes VALUES (NULL, zeroblob(?))", [(size,) for size in sizes])
        return [0] * len(sizes)

    filling: Change[int, int] = Change(fill)
    answers = await asyncio.gather(
        file.change(notes.change, "b"),
        file.change(filling, 1_000_000),
        file.change(notes.change, "c"),
        return_exceptions=True,
    )
    assert isinstance(answers[1], ToolFailure)
    assert answers[1].error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert answers[1].error.details["cause"] == "disk_full"
    written = {name for name, answer in zip("bc", answers[::2], strict=True) if answer == 1}
    assert set(await file.read(names)) == {"a"} | written
    assert await file.change(notes.change, "d") == 1


async def test_file_that_cannot_be_opened_again_is_tried_when_asked_and_not_all_the_time() -> None:
    tries: list[float] = []

    def connect_in_vain() -> sqlite3.Connection:
        tries.append(0)
        raise sqlite3.OperationalError("unable to open database file")

    gone = sqlite3.connect(":memory:", check_same_thread=False)
    gone.close()
    loop = asyncio.get_running_loop()
    writer, notes = FileWriter(connect_in_vain, gone, loop, poll_s=3_600), NameWriter()
    writer.watch(Feed(SqliteFile(Path("hub.db")), "notes", "name", str, gap=""))
    for _ in range(5):
        answer: asyncio.Future[int] = loop.create_future()
        writer.put(QueuedChange(notes.change, "a", answer))
        with pytest.raises(ToolFailure):
            await answer
    await asyncio.to_thread(writer.stop)
    assert len(tries) <= 2 * (5 + 2), "a change and a look for each time it woke"


async def test_entry_that_cannot_be_read_is_a_gap_and_those_after_it_are_heard(
    file: SqliteFile, other_file: SqliteFile
) -> None:
    def spoil(connection: sqlite3.Connection, jobs: Sequence[str]) -> list[None]:
        connection.execute("INSERT INTO job_entries (job_id, sequence, status) VALUES ('bad', 1, x'00')")
        return [None]

    listener, jobs = JobListener(), SqliteJobs(file)
    jobs.listen(listener)
    await jobs.start()
    await other_file.change(Change(spoil), "bad")
    await kept(SqliteJobs(other_file), a_job(), running(a_job()))
    await listener.until(lambda: listener.sequences("job-1") == [1, 2])
    assert listener.sequences("") == [0]
    await jobs.close()


async def test_record_that_cannot_be_read_is_unavailable(file: SqliteFile) -> None:
    jobs = SqliteJobs(file)
    await jobs.create(a_job())

    def spoil(connection: sqlite3.Connection, jobs: Sequence[str]) -> list[None]:
        connection.execute("UPDATE jobs SET frame = x'00'")
        return [None]

    await file.change(Change(spoil), "job-1")
    with pytest.raises(ToolFailure) as refused:
        await jobs.get("job-1")
    assert refused.value.error.details["cause"] == "record"


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.ports.job_records import a_job
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.jobs import SqliteJobs

async def main():
    file = SqliteFile(Path(sys.argv[1]))
    await file.start()
    jobs = SqliteJobs(file)
    async def create(number):
        await jobs.create(a_job(f"job-{number}"))
        print(number, flush=True)
    for first in range(0, 1_000_000, 20):
        await asyncio.gather(*(create(number) for number in range(first, first + 20)))

asyncio.run(main())
"""


@pytest.mark.promise("store.durable")
async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    root = Path(__file__).parents[4]
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, str(path), stdout=asyncio.subprocess.PIPE, cwd=root
    )
    assert writer.stdout is not None
    answered = [int(await writer.stdout.readline()) for _ in range(200)]
    writer.kill()
    answered += [int(line) for line in (await writer.stdout.read()).split(b"\n")[:-1]]
    assert await writer.wait() == -signal.SIGKILL
    file = SqliteFile(path)
    await file.start()
    found = await asyncio.gather(*(SqliteJobs(file).get(f"job-{number}") for number in answered))
    assert all(job is not None for job in found)
    assert await file.read(lambda connection: connection.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
    await file.close()
