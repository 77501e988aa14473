"""kill -9, full disks and many processes: the log stays verifiable, and what was promised to be durable is there."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.ports.audit_log_suite import EVERYTHING, called
from tests.unit.stores.audit.logs_in import files_in, kill_after, start_victim, started_log, verified
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.stores.audit.log import WriterTiming

VICTIM = "tests.security.audit_victim"


def stored(folder: Path) -> int:
    connection = sqlite3.connect(files_in(folder)[0])
    (count,) = connection.execute("SELECT max(sequence) FROM events").fetchone()
    connection.close()
    return int(count)


@pytest.mark.promise("audit.survives-a-kill")
@pytest.mark.parametrize("lines", [1, 9, 40])
def test_a_killed_process_leaves_a_log_that_verifies_and_holds_all_that_was_promised(
    tmp_path: Path, lines: int
) -> None:
    promised = kill_after(start_victim(VICTIM, str(tmp_path)), lines)
    verification = verified(tmp_path)
    assert verification.ok, verification.faults
    assert verification.events_checked >= promised


async def test_the_next_process_attests_what_the_killed_one_left(tmp_path: Path) -> None:
    kill_after(start_victim(VICTIM, str(tmp_path)), 5)
    last = stored(tmp_path)
    log = await started_log(tmp_path)
    await log.close()
    connection = sqlite3.connect(files_in(tmp_path)[0])
    connection.execute("DELETE FROM events WHERE sequence = ?", (last,))
    connection.commit()
    connection.close()
    assert [fault.sequence for fault in verified(tmp_path).faults] == [last]


async def test_a_tail_cut_before_the_next_start_is_not_attested_as_if_it_were_whole(tmp_path: Path) -> None:
    kill_after(start_victim(VICTIM, str(tmp_path)), 12)  # Attested at 20, 40, 60, 80.
    connection = sqlite3.connect(files_in(tmp_path)[0])
    connection.execute("DELETE FROM events WHERE sequence > 30")
    connection.commit()
    connection.close()
    log = await started_log(tmp_path)
    await log.close()
    assert [fault.sequence for fault in verified(tmp_path).faults] == [31]


async def test_a_checkpoint_line_that_a_crash_left_in_half_is_no_fault(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    await log.close()
    checkpoints = files_in(tmp_path)[1]
    checkpoints.write_bytes(checkpoints.read_bytes() + b'{"number":3,"kind":"op')
    assert verified(tmp_path).ok
    log = await started_log(tmp_path)
    await log.append_durably(called(2))
    await log.close()
    assert verified(tmp_path).ok


def test_processes_write_one_log_together(tmp_path: Path) -> None:
    victims = [start_victim(VICTIM, str(tmp_path)) for _ in range(3)]
    promised = sum(kill_after(victim, 15) for victim in victims)
    verification = verified(tmp_path)
    assert verification.ok, verification.faults
    assert verification.writers == 3
    assert verification.events_checked >= promised


async def test_a_watcher_sees_the_events_of_other_processes(tmp_path: Path) -> None:
    first = await started_log(tmp_path, name="first")
    second = await started_log(tmp_path, name="second")
    tail = first.tail(EVERYTHING)
    await second.append_durably(called(1))
    assert (await asyncio.wait_for(anext(tail), 60)).writer == second.writer
    await first.close()
    await second.close()


async def test_a_full_disk_refuses_side_effects_and_loses_nothing_when_it_heals(tmp_path: Path) -> None:
    """SQLite's own SQLITE_FULL, through a bound on the database's size that another connection lifts."""
    log = await started_log(tmp_path, max_size_bytes=160_000, timing=WriterTiming(group_limit=10))
    written = 0

    async def fill() -> None:
        nonlocal written
        while True:
            await log.append_durably(called(written + 1))
            written += 1

    with pytest.raises(ToolFailure) as caught:
        await fill()
    assert caught.value.error.kind is ErrorKind.IO_ERROR
    assert caught.value.error.is_retryable
    assert "full" not in caught.value.error.message
    with pytest.raises(ToolFailure) as caught:
        log.append(called(1))
    assert caught.value.error.details["cause"] == "disk"
    assert len(await log.read(EVERYTHING, after=None, limit=10_000)) == written
    with pytest.raises(ToolFailure):
        await log.close()
    assert verified(tmp_path).ok


async def test_a_disk_that_heals_gets_what_was_waiting_in_the_same_chain(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0))
    await log.append_durably(called(1))
    checkpoints = files_in(tmp_path)[1]
    lock = sqlite3.connect(files_in(tmp_path)[0], isolation_level=None)
    lock.execute("ALTER TABLE events RENAME TO elsewhere")
    with pytest.raises(ToolFailure):
        await log.append_durably(called(2))
    lock.execute("DROP TABLE IF EXISTS events")  # The retry made an empty one.
    lock.execute("ALTER TABLE elsewhere RENAME TO events")
    lock.close()
    await log.close()
    assert verified(tmp_path).events_checked == 2
    assert verified(tmp_path).ok
    assert checkpoints.read_text().count("\n") == 2


async def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(queue_limit=3))
    held = sqlite3.connect(files_in(tmp_path)[0], isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    for number in range(1, 4):
        log.append(called(number))
    with pytest.raises(ToolFailure) as caught:
        log.append(called(4))
    assert caught.value.error.details["cause"] == "queue_full"
    held.execute("ROLLBACK")
    held.close()
    await log.flush()
    log.append(called(4))
    await log.close()
    assert verified(tmp_path).events_checked == 4


async def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.close()
    await log.close()
    with pytest.raises(ToolFailure) as caught:
        await log.append_durably(called(1))
    assert caught.value.error.details["cause"] == "closed"


async def test_a_folder_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "audit.db").mkdir()
    with pytest.raises(ToolFailure):
        await started_log(tmp_path)


async def test_a_lost_key_is_not_replaced_while_events_need_it(tmp_path: Path) -> None:
    log = await started_log(tmp_path)
    await log.append_durably(called(1))
    await log.close()
    files_in(tmp_path)[2].unlink()
    with pytest.raises(HubFailure) as caught:
        await started_log(tmp_path)
    assert caught.value.reason.name == "AUDIT_KEY_MISSING"


def test_a_check_while_processes_write_start_and_checkpoint_reports_nothing(tmp_path: Path) -> None:
    victims = [start_victim(VICTIM, str(tmp_path))]
    assert victims[0].stdout is not None
    victims[0].stdout.readline()
    for round_number in range(24):
        if round_number % 8 == 0:
            victims.append(start_victim(VICTIM, str(tmp_path)))
        assert verified(tmp_path).faults == ()
    for victim in victims:
        kill_after(victim, 1)
    assert verified(tmp_path).faults == ()
