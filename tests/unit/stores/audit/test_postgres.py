"""The audit log in PostgreSQL: shared by machines, through outages and kills, against a writer with the password."""

from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.services import PostgresServer
from tests.unit.stores.audit.logs_in import files_in, kill_after, start_victim
from tests.unit.stores.audit.postgres_logs import execute, postgres_log, postgres_verified, started_postgres_log
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.event import EventFilter
from toolhub_service.stores.audit.events import COLUMNS, Row
from toolhub_service.stores.audit.log import WriterTiming
from toolhub_service.stores.audit.postgres import PostgresAuditLog, PostgresEvents, postgres_events

VICTIM = "tests.unit.stores.audit.postgres_victim"

EVENTS = 12
OFTEN = WriterTiming(linger_s=0.0, checkpoint_events=5)
AT_ONCE = WriterTiming(linger_s=0.0)
REST = COLUMNS.replace("writer, sequence, ", "")


@pytest.fixture
async def log(postgres_url: str, tmp_path: Path) -> PostgresAuditLog:
    return await started_postgres_log(postgres_url, tmp_path, timing=AT_ONCE)


@pytest.fixture
async def closed_log(postgres_url: str, tmp_path: Path) -> Path:
    """The folder of a log of twelve events that ended cleanly."""
    log = await started_postgres_log(postgres_url, tmp_path, timing=OFTEN)
    for number in range(1, EVENTS + 1):
        await log.append_durably(called(number))
    await log.close()
    assert postgres_verified(postgres_url, tmp_path).ok
    return tmp_path


def first_bad(url: str, folder: Path) -> list[int]:
    return [fault.sequence for fault in postgres_verified(url, folder).faults]


def second_machine(folder: Path) -> Path:
    """A folder with the same key and a checkpoint file of its own."""
    other = folder / "other"
    files_in(other)[2].parent.mkdir(parents=True)
    shutil.copy(files_in(folder)[2], files_in(other)[2])
    return other


def tables_of(url: str) -> list[str]:
    """The tables in the schema, in the order in which they were made."""
    return [
        name
        for (name,) in execute(
            url,
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = "
            "current_schema()::regnamespace ORDER BY oid",
        )
    ]


class TestTampering:
    @pytest.mark.promise("audit.tamper-evident")
    @pytest.mark.parametrize("column", [name for name in COLUMNS.split(", ") if name != "sequence"])
    async def test_a_changed_column_is_found_at_its_event(
        self, postgres_url: str, closed_log: Path, column: str
    ) -> None:
        changed = "at_unix_ms + 1" if column == "at_unix_ms" else f"overlay({column} placing 'x' from 2 for 1)"
        (writer,) = execute(postgres_url, "SELECT DISTINCT writer FROM audit_events")[0]
        execute(postgres_url, f"UPDATE audit_events SET {column} = {changed} WHERE sequence = 6")
        faults = postgres_verified(postgres_url, closed_log).faults
        assert [fault.sequence for fault in faults if fault.writer == writer] == [6]

    @pytest.mark.promise("audit.tamper-evident")
    @pytest.mark.parametrize("sequence", [1, 5, 6, EVENTS])
    async def test_a_deleted_event_is_found_wherever_it_was(
        self, postgres_url: str, closed_log: Path, sequence: int
    ) -> None:
        execute(postgres_url, "DELETE FROM audit_events WHERE sequence = %(at)s", at=sequence)
        assert first_bad(postgres_url, closed_log) == [sequence]

    @pytest.mark.promise("audit.tamper-evident")
    async def test_two_swapped_events_are_found_at_the_first(self, postgres_url: str, closed_log: Path) -> None:
        execute(
            postgres_url,
            "UPDATE audit_events SET sequence = -1 WHERE sequence = 4",
            "UPDATE audit_events SET sequence = 4 WHERE sequence = 7",
            "UPDATE audit_events SET sequence = 7 WHERE sequence = -1",
        )
        assert first_bad(postgres_url, closed_log) == [4]

    @pytest.mark.promise("audit.tamper-evident")
    @pytest.mark.parametrize("kept", [0, 5, 11])
    async def test_a_cut_tail_is_found_to_the_last_event(self, postgres_url: str, closed_log: Path, kept: int) -> None:
        execute(postgres_url, "DELETE FROM audit_events WHERE sequence > %(kept)s", kept=kept)
        assert first_bad(postgres_url, closed_log) == [kept + 1]

    async def test_an_event_added_after_the_end_is_found(self, postgres_url: str, closed_log: Path) -> None:
        execute(
            postgres_url,
            f"INSERT INTO audit_events ({COLUMNS}) SELECT writer, 13, {REST} FROM audit_events WHERE sequence = 12",
        )
        assert first_bad(postgres_url, closed_log) == [13]

    async def test_a_chain_without_an_opening_is_found(self, postgres_url: str, closed_log: Path) -> None:
        execute(
            postgres_url,
            f"INSERT INTO audit_events ({COLUMNS}) SELECT 'ghost', 1, {REST} FROM audit_events WHERE sequence = 1",
        )
        (fault,) = postgres_verified(postgres_url, closed_log).faults
        assert (fault.writer, fault.sequence) == ("ghost", 1)

    async def test_a_missing_or_cut_checkpoint_file_is_found(self, postgres_url: str, closed_log: Path) -> None:
        checkpoints = files_in(closed_log)[1]
        lines = checkpoints.read_bytes().splitlines(keepends=True)
        checkpoints.write_bytes(b"".join(lines[:-1]))
        assert first_bad(postgres_url, closed_log)
        checkpoints.unlink()
        assert first_bad(postgres_url, closed_log) == [1]

    async def test_a_changed_copy_of_a_checkpoint_is_found(self, postgres_url: str, closed_log: Path) -> None:
        execute(postgres_url, "UPDATE audit_checkpoints SET line = replace(line, 'open', 'opeN') WHERE number = 1")
        assert first_bad(postgres_url, closed_log)

    async def test_a_table_that_is_gone_is_found(self, postgres_url: str, closed_log: Path) -> None:
        execute(postgres_url, "DROP TABLE audit_events")
        assert first_bad(postgres_url, closed_log) == [1]

    async def test_a_column_that_is_gone_is_found_and_reported_to_who_reads(
        self, postgres_url: str, log: PostgresAuditLog
    ) -> None:
        await log.append_durably(called(1))
        execute(postgres_url, "ALTER TABLE audit_events RENAME COLUMN body TO bodies")
        with pytest.raises(HubFailure) as caught:
            await log.read(EVERYTHING, after=None, limit=1)
        assert caught.value.reason.name == "AUDIT_DAMAGED"
        assert "damaged" in (await log.verify()).faults[0].reason
        execute(postgres_url, "ALTER TABLE audit_events RENAME COLUMN bodies TO body")
        await log.close()


class TestSeveralMachines:
    async def test_both_write_and_each_verifies_the_chains_of_both(
        self, postgres_url: str, tmp_path: Path, log: PostgresAuditLog
    ) -> None:
        folder = second_machine(tmp_path)
        other = await started_postgres_log(postgres_url, folder, timing=AT_ONCE)
        for number in range(1, 6):
            await log.append_durably(called(number))
            await other.append_durably(called(number))
        for one in (log, other):
            verification = await one.verify()
            assert (verification.faults, verification.writers, verification.events_checked) == ((), 2, 10)
        await log.close()
        await other.close()
        assert postgres_verified(postgres_url, tmp_path).ok
        assert postgres_verified(postgres_url, folder).ok
        execute(postgres_url, "DELETE FROM audit_events WHERE writer = %(w)s AND sequence = 5", w=other.writer)
        assert [fault.writer for fault in postgres_verified(postgres_url, tmp_path).faults] == [other.writer]

    async def test_a_hub_without_the_shared_key_does_not_start(
        self, postgres_url: str, tmp_path: Path, log: PostgresAuditLog
    ) -> None:
        await log.append_durably(called(1))
        with pytest.raises(HubFailure) as caught:
            await started_postgres_log(postgres_url, tmp_path / "stranger")
        assert caught.value.reason.name == "AUDIT_KEY_MISSING"
        await log.close()

    async def test_a_watcher_sees_the_events_of_other_processes_in_the_order_of_commits(
        self, postgres_url: str, tmp_path: Path, log: PostgresAuditLog
    ) -> None:
        others = [await started_postgres_log(postgres_url, tmp_path, timing=AT_ONCE) for _ in range(3)]

        async def write(other: PostgresAuditLog) -> None:
            for number in range(1, 31):
                await other.append_durably(called(number))

        async with aclosing(log.tail(EVERYTHING)) as tail:
            writing = asyncio.gather(*map(write, others))
            seen = [await asyncio.wait_for(anext(tail), 60) for _ in range(90)]
            await writing
        for other in others:
            assert [event.sequence for event in seen if event.writer == other.writer] == list(range(1, 31))
            await other.close()
        await log.close()

    async def test_a_watcher_is_notified_of_the_events_of_other_processes(
        self, postgres_url: str, tmp_path: Path, log: PostgresAuditLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("poll_s", "check_s"):
            monkeypatch.setattr(PostgresEvents, name, 3_600.0)
        other = await started_postgres_log(postgres_url, tmp_path, timing=AT_ONCE)
        async with aclosing(log.tail(EVERYTHING)) as tail, asyncio.timeout(30):
            await log.append_durably(called(1))  # from now on its writer knows that somebody watches
            assert (await anext(tail)).event.at_unix_ms == 1
            await other.append_durably(called(2))
            assert (await anext(tail)).event.at_unix_ms == 2
        await other.close()
        await log.close()

    async def test_processes_that_start_together_on_a_new_database_all_start(
        self, postgres_url: str, tmp_path: Path
    ) -> None:
        logs = await asyncio.gather(*(started_postgres_log(postgres_url, tmp_path) for _ in range(6)))
        for each in logs:
            await each.append_durably(called(1))
            await each.close()
        verification = postgres_verified(postgres_url, tmp_path)
        assert (verification.faults, verification.writers) == ((), 6)

    async def test_schemas_of_one_database_are_logs_of_their_own(self, postgres_url: str, tmp_path: Path) -> None:
        urls = []
        for name in ("one", "two"):
            execute(postgres_url, f"CREATE SCHEMA {name}")
            urls.append(f"{postgres_url}?options=-csearch_path%3D{name}")
        one, two = [await started_postgres_log(url, tmp_path / url[-3:], timing=AT_ONCE) for url in urls]
        async with aclosing(one.tail(EVERYTHING)) as tail:
            for number in range(1, 4):
                await two.append_durably(called(number, principal="elsewhere"))
            await one.append_durably(called(9))
            assert (await anext(tail)).event == called(9)
        assert (await one.verify()).events_checked == 1
        await one.close()
        await two.close()


class TestVanishedTables:
    @pytest.mark.parametrize("table", ["audit_events", "audit_checkpoints"])
    @pytest.mark.parametrize("vanished", ["DROP TABLE {}", "ALTER TABLE {} RENAME TO moved"])
    @pytest.mark.parametrize("joins", [False, True], ids=["the same machine", "a machine that joins"])
    async def test_table_that_vanished_between_two_runs_is_never_made_anew(
        self, postgres_url: str, closed_log: Path, table: str, vanished: str, joins: bool
    ) -> None:
        execute(postgres_url, vanished.format(table))
        left = tables_of(postgres_url)
        for _ in range(2):
            with pytest.raises(HubFailure, match=r"audit log.*`toolhub audit begin`") as raised:
                await started_postgres_log(postgres_url, second_machine(closed_log) if joins else closed_log)
            assert raised.value.reason.name == "AUDIT_LOG_CHANGED"
            shutil.rmtree(closed_log / "other", ignore_errors=True)
        assert tables_of(postgres_url) == left

    async def test_table_that_vanishes_under_a_running_log_is_waited_for_and_not_made_anew(
        self, postgres_url: str, tmp_path: Path, log: PostgresAuditLog
    ) -> None:
        await log.append_durably(called(1))
        execute(postgres_url, "ALTER TABLE audit_events RENAME TO moved")
        left = tables_of(postgres_url)
        for number in (2, 3):
            with pytest.raises(ToolFailure):
                await log.append_durably(called(number))
        with pytest.raises(HubFailure) as raised:
            postgres_events(postgres_url, files_in(tmp_path)[1]).open(create=False)
        assert raised.value.reason.name == "AUDIT_LOG_CHANGED"
        assert tables_of(postgres_url) == left
        execute(postgres_url, "ALTER TABLE moved RENAME TO audit_events")
        await log.close()
        verification = postgres_verified(postgres_url, tmp_path)
        assert (verification.faults, verification.writers, verification.events_checked) == ((), 1, 2)


class TestOutages:
    async def test_a_connection_that_died_while_nobody_wrote_loses_no_event(
        self, own_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        log = await started_postgres_log(own_postgres.url, tmp_path, timing=AT_ONCE)
        await log.append_durably(called(1))
        own_postgres.restart()
        await log.append_durably(called(2))
        await log.close()
        verification = postgres_verified(own_postgres.url, tmp_path)
        assert (verification.faults, verification.events_checked) == ((), 2)

    async def test_while_the_database_is_gone_effects_are_refused_and_afterwards_the_chain_goes_on(
        self, own_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        log = await started_postgres_log(own_postgres.url, tmp_path, timing=AT_ONCE)
        await log.append_durably(called(1))
        own_postgres.stop()
        with pytest.raises(ToolFailure) as refused:
            await log.append_durably(called(2))
        assert refused.value.error.kind is ErrorKind.IO_ERROR
        assert refused.value.error.is_retryable
        with pytest.raises(ToolFailure):
            log.append(called(3))
        with pytest.raises(HubFailure) as unread:
            await log.read(EVERYTHING, after=None, limit=1)
        assert (unread.value.reason.code, unread.value.reason.name) == (Code.UNAVAILABLE, "AUDIT_UNREACHABLE")
        own_postgres.start()
        await log.close()
        verification = postgres_verified(own_postgres.url, tmp_path)
        assert (verification.faults, verification.events_checked) == ((), 2)  # The refused one was queued and is kept.

    async def test_a_full_queue_refuses_and_what_is_in_it_is_written_when_the_database_goes_on(
        self, postgres_url: str, tmp_path: Path
    ) -> None:
        log = await started_postgres_log(postgres_url, tmp_path, timing=WriterTiming(linger_s=0.0, queue_limit=3))
        with psycopg.connect(postgres_url) as blocker:
            blocker.execute("LOCK TABLE audit_events IN SHARE MODE")
            for number in range(1, 4):
                log.append(called(number))
            with pytest.raises(ToolFailure) as caught:
                log.append(called(4))
            assert caught.value.error.details["cause"] == "queue_full"
        await log.flush()
        log.append(called(4))
        await log.close()
        assert postgres_verified(postgres_url, tmp_path).events_checked == 4

    def test_a_lock_that_is_never_given_up_is_not_waited_for_without_end(self, postgres_url: str) -> None:
        table = PostgresEvents(postgres_url, "site", patience_s=0.05).open(create=True)
        with psycopg.connect(postgres_url) as blocker:
            blocker.execute("LOCK TABLE audit_events IN SHARE MODE")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                table.insert([("w", 1, 7, "RETRY", "p", "t", "c", "r", "{}", "0", "1", "k")])
        assert table.is_empty()
        table.close()

    async def test_a_group_whose_confirmation_was_lost_is_not_written_twice(
        self, postgres_url: str, tmp_path: Path
    ) -> None:
        table = postgres_events(postgres_url, tmp_path / "checkpoints").open(create=True)
        row: Row = ("w", 1, 7, "RETRY", "p", "t", "c", "r", "{}", "0", "1", "k")
        table.insert([row])
        table.insert([row, ("w", 2, *row[2:])])
        with pytest.raises(psycopg.IntegrityError):
            table.insert([(*row[:10], "another", "k")])
        assert [news[1:3] for news in table.news(0, 10)] == [("w", 1), ("w", 2)]
        table.close()

    async def test_a_watcher_goes_on_after_the_database_was_gone(
        self, own_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        log = await started_postgres_log(own_postgres.url, tmp_path, timing=AT_ONCE)
        async with aclosing(log.tail(EVERYTHING)) as tail:
            await log.append_durably(called(1))
            assert (await anext(tail)).sequence == 1
            own_postgres.restart()
            other = await started_postgres_log(own_postgres.url, tmp_path, timing=AT_ONCE)
            await other.append_durably(called(2))
            assert (await asyncio.wait_for(anext(tail), 60)).writer == other.writer
        await other.close()
        await log.close()

    async def test_a_hub_without_its_database_does_not_start_and_names_the_place_without_the_password(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(HubFailure) as caught:
            await started_postgres_log("postgresql://hub:t0psecret@127.0.0.1:1/audit", tmp_path)
        assert "127.0.0.1:1/audit" in caught.value.message
        assert "t0psecret" not in caught.value.message

    @pytest.mark.parametrize("url", ["postgresql//hub:t0psecret@db/audit", "postgresql://hub:t0psecret@db/x?colour=1"])
    def test_a_url_that_cannot_be_read_is_not_repeated(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(HubFailure) as caught:
            postgres_log(url, tmp_path)
        assert caught.value.reason.name == "POSTGRES_URL_INVALID"
        assert "t0psecret" not in repr(caught.value.message)
        assert caught.value.__suppress_context__


async def test_pruned_events_are_gone_and_the_rest_still_verifies(postgres_url: str, tmp_path: Path) -> None:
    old = await started_postgres_log(postgres_url, tmp_path, name="old")
    for number in range(1, 6):
        await old.append_durably(called(number))
    await old.close()
    log = await started_postgres_log(postgres_url, tmp_path, name="new")
    for number in range(4, 9):
        await log.append_durably(called(number))
    assert await asyncio.to_thread(log.prune, 6) == 5 + 2
    await log.close()
    verification = postgres_verified(postgres_url, tmp_path)
    assert (verification.faults, verification.events_checked) == ((), 3)


async def test_a_character_that_the_database_cannot_hold_loses_no_event(
    postgres_url: str, tmp_path: Path, log: PostgresAuditLog
) -> None:
    await log.append_durably(called(1, principal="a\0b", purpose="x\0y", call_id="\0"))
    (event,) = await log.read(EventFilter(principal="a\0b"), after=None, limit=2)
    assert event.event == replace(called(1), principal="a�b", purpose="x\0y", call_id="�")
    assert (await log.verify()).ok
    await log.close()


async def test_an_id_too_long_for_an_index_loses_no_event(postgres_url: str, log: PostgresAuditLog) -> None:
    long = os.urandom(20_000).hex()
    await log.append_durably(called(1, call_id=long, request_id=long, principal=long, tool=long))
    assert len(await log.read(EventFilter(call_id=long, request_id=long), after=None, limit=2)) == 1
    await log.close()


@pytest.mark.promise("audit.survives-a-kill")
def test_killed_processes_leave_a_log_that_verifies_and_holds_all_that_was_promised(
    postgres_url: str, tmp_path: Path
) -> None:
    victims = [start_victim(VICTIM, postgres_url, str(tmp_path)) for _ in range(3)]
    with ThreadPoolExecutor() as killers:
        promised = sum(killers.map(kill_after, victims, (1, 9, 40)))
    verification = postgres_verified(postgres_url, tmp_path)
    assert (verification.faults, verification.writers) == ((), 3)
    assert verification.events_checked >= promised


async def test_the_next_process_attests_what_the_killed_one_left(postgres_url: str, tmp_path: Path) -> None:
    await asyncio.to_thread(lambda: kill_after(start_victim(VICTIM, postgres_url, str(tmp_path)), 5))
    ((last,),) = execute(postgres_url, "SELECT max(sequence) FROM audit_events")
    log = await started_postgres_log(postgres_url, tmp_path)
    await log.close()
    execute(postgres_url, "DELETE FROM audit_events WHERE sequence = %(last)s", last=last)
    assert first_bad(postgres_url, tmp_path) == [last]
