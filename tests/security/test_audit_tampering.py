"""Changes of the audit files by anybody without the key are found; the first bad sequence is named."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import files_in, started_log, verified
from toolhub_service.stores.audit.events import COLUMNS
from toolhub_service.stores.audit.log import WriterTiming

EVENTS = 12
OFTEN = WriterTiming(linger_s=0.0, checkpoint_events=5)


@pytest.fixture
async def closed_log(tmp_path: Path) -> Path:
    """A log of twelve events that ended cleanly."""
    log = await started_log(tmp_path, timing=OFTEN)
    for number in range(1, EVENTS + 1):
        await log.append_durably(called(number))
    await log.close()
    assert verified(tmp_path).ok
    return tmp_path


def tamper(folder: Path, *statements: str, **values: object) -> None:
    connection = sqlite3.connect(files_in(folder)[0])
    for statement in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()


def first_bad(folder: Path, **options: object) -> list[int]:
    verification = verified(folder, **options)
    assert not verification.ok
    return [fault.sequence for fault in verification.faults]


def cells(folder: Path) -> list[tuple[str, int, object]]:
    connection = sqlite3.connect(files_in(folder)[0])
    names = COLUMNS.split(", ")
    rows = connection.execute(f"SELECT {COLUMNS} FROM events ORDER BY sequence").fetchall()
    connection.close()
    return [(name, row[1], value) for row in rows for name, value in zip(names, row, strict=True)]


@pytest.mark.promise("audit.tamper-evident")
async def test_one_changed_byte_in_any_column_of_any_row_is_found_there(closed_log: Path) -> None:
    database = files_in(closed_log)[0]
    original = database.read_bytes()
    dice = random.Random(7)
    writer = cells(closed_log)[0][2]
    for column, sequence, value in cells(closed_log):
        if column == "sequence":
            continue
        if isinstance(value, int):
            changed: object = value + 1
        else:
            text = str(value)
            at = dice.randrange(len(text))
            changed = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        tamper(closed_log, f"UPDATE events SET {column} = :to WHERE sequence = :at", to=changed, at=sequence)
        own = [fault.sequence for fault in verified(closed_log).faults if fault.writer == writer]
        assert own == [sequence], (column, sequence)
        database.write_bytes(original)
    assert verified(closed_log).ok


@pytest.mark.parametrize("column", ["body", "mac", "principal", "at_unix_ms", "key_id"])
@pytest.mark.parametrize("garbage", [b"\xff\x00", "", "é", "9999999999999999999999", -1])
async def test_garbage_of_any_type_in_a_column_is_found_and_does_not_stop_the_check(
    closed_log: Path, column: str, garbage: object
) -> None:
    tamper(closed_log, f"UPDATE events SET {column} = :to WHERE sequence = 6", to=garbage)
    assert first_bad(closed_log) == [6]


async def test_lines_of_the_checkpoint_file_that_are_not_genuine_are_named_by_their_numbers(closed_log: Path) -> None:
    checkpoints = files_in(closed_log)[1]
    first, second, *others = checkpoints.read_text().splitlines(keepends=True)
    checkpoints.write_text("".join([first, "no line\n", second.replace('"count":', '"count": 1'), *others]))
    reasons = [fault.reason for fault in verified(closed_log).faults]
    assert "line 2 of the checkpoint file is not genuine" in reasons
    assert "line 3 of the checkpoint file is not genuine" in reasons


async def test_text_that_is_no_longer_utf8_is_found(closed_log: Path) -> None:
    tamper(closed_log, "UPDATE events SET body = CAST(x'7bff7d' AS TEXT) WHERE sequence = 9")
    assert first_bad(closed_log) == [9]


@pytest.mark.promise("audit.tamper-evident")
@pytest.mark.parametrize("sequence", range(1, EVENTS + 1))
async def test_a_deleted_event_is_found_wherever_it_was(closed_log: Path, sequence: int) -> None:
    tamper(closed_log, "DELETE FROM events WHERE sequence = :at", at=sequence)
    assert first_bad(closed_log) == [sequence]


@pytest.mark.promise("audit.tamper-evident")
async def test_two_swapped_events_are_found_at_the_first(closed_log: Path) -> None:
    tamper(
        closed_log,
        "UPDATE events SET sequence = -1 WHERE sequence = 4",
        "UPDATE events SET sequence = 4 WHERE sequence = 7",
        "UPDATE events SET sequence = 7 WHERE sequence = -1",
    )
    assert first_bad(closed_log) == [4]


async def test_deleting_one_and_closing_the_gap_is_found(closed_log: Path) -> None:
    tamper(
        closed_log,
        "DELETE FROM events WHERE sequence = 5",
        "UPDATE events SET sequence = -sequence WHERE sequence > 5",
        "UPDATE events SET sequence = -sequence - 1 WHERE sequence < 0",
    )
    assert first_bad(closed_log) == [5]


@pytest.mark.promise("audit.tamper-evident")
@pytest.mark.parametrize("copied", [1, EVENTS])
async def test_an_inserted_event_is_found_in_the_middle_and_at_the_end(closed_log: Path, copied: int) -> None:
    rest = COLUMNS.replace("writer, sequence, ", "")
    tamper(
        closed_log,
        "UPDATE events SET sequence = -sequence WHERE sequence >= 8",
        "UPDATE events SET sequence = 1 - sequence WHERE sequence < 0",
        f"INSERT INTO events ({COLUMNS}) SELECT writer, 8, {rest} FROM events WHERE sequence = {copied} LIMIT 1",
    )
    assert first_bad(closed_log) == [8]


async def test_an_event_added_after_the_end_is_found(closed_log: Path) -> None:
    rest = COLUMNS.replace("writer, sequence, ", "")
    tamper(
        closed_log,
        f"INSERT INTO events ({COLUMNS}) SELECT writer, 13, {rest} FROM events WHERE sequence = 12",
    )
    assert first_bad(closed_log) == [13]


async def test_a_chain_without_an_opening_is_found(closed_log: Path) -> None:
    rest = COLUMNS.replace("writer, sequence, ", "")
    tamper(
        closed_log,
        f"INSERT INTO events ({COLUMNS}) SELECT 'ghost', 1, {rest} FROM events WHERE sequence = 1",
    )
    (fault,) = verified(closed_log).faults
    assert (fault.writer, fault.sequence) == ("ghost", 1)


@pytest.mark.promise("audit.tamper-evident")
@pytest.mark.parametrize("kept", [0, 3, 5, 9, 11])
async def test_a_cut_tail_is_found_to_the_last_event_after_a_clean_end(closed_log: Path, kept: int) -> None:
    tamper(closed_log, "DELETE FROM events WHERE sequence > :kept", kept=kept)
    assert first_bad(closed_log) == [kept + 1]


async def test_an_older_copy_of_the_whole_database_is_found(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=OFTEN)
    for number in range(1, 8):
        await log.append_durably(called(number))
    await log.close()
    database = files_in(tmp_path)[0]
    old = database.read_bytes()
    log = await started_log(tmp_path, timing=OFTEN)
    for number in range(8, 12):
        await log.append_durably(called(number))
    await log.close()
    database.write_bytes(old)
    (fault,) = verified(tmp_path).faults
    assert (fault.writer, fault.sequence) == (log.writer, 1)


async def test_a_missing_database_is_found(closed_log: Path) -> None:
    files_in(closed_log)[0].unlink()
    assert first_bad(closed_log) == [1]


async def test_a_missing_checkpoint_file_is_found(closed_log: Path) -> None:
    files_in(closed_log)[1].unlink()
    assert first_bad(closed_log) == [1]


async def test_a_missing_checkpoint_file_is_found_even_when_the_copies_went_with_it(closed_log: Path) -> None:
    files_in(closed_log)[1].unlink()
    tamper(closed_log, "DELETE FROM checkpoints", "DELETE FROM events WHERE sequence > 9")
    assert first_bad(closed_log) == [10]


async def test_a_cut_tail_with_a_cut_checkpoint_file_is_found(closed_log: Path) -> None:
    checkpoints = files_in(closed_log)[1]
    lines = checkpoints.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4  # open, at 5, at 10, close at 12
    checkpoints.write_bytes(b"".join(lines[:2]))
    tamper(closed_log, "DELETE FROM events WHERE sequence > 7")
    assert first_bad(closed_log) == [6]  # Attested by the file: 5. The copy in the database has 10.


async def rolled_back(folder: Path) -> str:
    """Both files put back to one earlier moment; the checkpoint line that had left the machine by then."""
    carried: list[str] = []
    log = await started_log(folder, timing=OFTEN, witness=carried.append)
    for number in range(1, 6):
        await log.append_durably(called(number))
    await log.close()
    database, checkpoints, _ = files_in(folder)
    kept = [(path, path.read_bytes()) for path in (database, checkpoints)]
    log = await started_log(folder, timing=OFTEN, witness=carried.append)
    for number in range(6, 9):
        await log.append_durably(called(number))
    await log.close()
    for path, data in kept:
        path.write_bytes(data)
    return carried[-1]


async def test_rolling_back_both_files_together_is_found_by_a_line_that_was_carried_elsewhere(tmp_path: Path) -> None:
    witness = await rolled_back(tmp_path)
    assert verified(tmp_path).ok  # Nothing in these two files shows it; the threat model says so.
    assert first_bad(tmp_path, witnesses=[witness]) == [1]
    assert not verified(tmp_path, witnesses=[witness.replace('"count":3', '"count":2')]).ok


async def test_a_running_hub_remembers_what_it_wrote(tmp_path: Path) -> None:
    log = await started_log(tmp_path, timing=WriterTiming(linger_s=0.0))
    for number in range(1, 6):
        await log.append_durably(called(number))
    tamper(tmp_path, "DELETE FROM events WHERE sequence > 3")
    assert verified(tmp_path).ok  # Not attested yet: within one checkpoint interval only the writer knows.
    assert [fault.sequence for fault in (await log.verify()).faults] == [4]
    await log.close()
    assert first_bad(tmp_path) == [4]


def edit_line(number: int, edit: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [edit(line) if at == number else line for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[1:],
        lambda lines: lines[:1] + lines[2:],
        lambda lines: lines[:-1],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        edit_line(1, lambda line: line.replace(b'"count":5', b'"count":4')),
        edit_line(3, lambda line: line.replace(b'"kind":"close"', b'"kind":"prune"')),
        edit_line(2, lambda _: b"not json\n"),
        edit_line(2, lambda _: b"[]\n"),
    ],
)
async def test_any_change_to_the_checkpoint_file_is_found(
    closed_log: Path, edit: Callable[[list[bytes]], list[bytes]]
) -> None:
    checkpoints = files_in(closed_log)[1]
    lines = checkpoints.read_bytes().splitlines(keepends=True)
    checkpoints.write_bytes(b"".join(edit(lines)))
    assert not verified(closed_log).ok


@pytest.mark.parametrize(
    ("damaged", "named"),
    [
        (lambda line: line.replace(b'"count":5', b'"count":6'), "the writer itself"),
        (lambda _: b'{"number":2,"writer":"hub-9","count":5}\n', "hub-9"),
        (lambda _: b'"writer":"hub-9"\n', "hub-9"),
        (lambda _: b'{"number":2,"writer":"hub-9\n', "hub-9"),
        (lambda _: b'{"number":2,"writer":"h\xff"}\n', "h\ufffd"),
        (lambda _: b"not json\n", ""),
    ],
    ids=["edited", "forged", "cut at the left", "cut at the right", "no UTF-8", "nobody named"],
)
async def test_damaged_checkpoint_is_reported_for_the_writer_that_its_line_names(
    closed_log: Path, damaged: Callable[[bytes], bytes], named: str
) -> None:
    writer = cells(closed_log)[0][2]
    checkpoints = files_in(closed_log)[1]
    lines = checkpoints.read_bytes().splitlines(keepends=True)
    checkpoints.write_bytes(b"".join(edit_line(1, damaged)(lines)))
    reasons = {fault.writer: fault.reason for fault in verified(closed_log).faults}
    reported = str(writer) if named == "the writer itself" else named
    assert reasons[reported] == "line 2 of the checkpoint file is not genuine"
    assert set(reasons) <= {reported, writer}


async def test_a_changed_copy_of_a_checkpoint_is_found(closed_log: Path) -> None:
    tamper(closed_log, "UPDATE checkpoints SET line = replace(line, 'open', 'opeN') WHERE number = 1")
    assert not verified(closed_log).ok


async def test_a_writer_whose_events_checkpoints_and_copies_were_all_removed_leaves_a_hole(tmp_path: Path) -> None:
    writers = []
    for _ in range(3):
        log = await started_log(tmp_path)
        await log.append_durably(called(1))
        await log.close()
        writers.append(log.writer)
    checkpoints = files_in(tmp_path)[1]
    lines = [line for line in checkpoints.read_text().splitlines(keepends=True) if writers[1] not in line]
    checkpoints.write_text("".join(lines))
    tamper(tmp_path, "DELETE FROM events WHERE writer = :w", w=writers[1])
    tamper(tmp_path, "DELETE FROM checkpoints WHERE line LIKE '%' || :w || '%'", w=writers[1])
    assert not verified(tmp_path).ok


async def test_flipped_bytes_in_the_database_file_never_go_unnoticed_where_they_change_an_event(
    closed_log: Path,
) -> None:
    database = files_in(closed_log)[0]
    original = database.read_bytes()
    expected = cells(closed_log)
    dice = random.Random(11)
    noticed = 0
    for _ in range(120):
        at = dice.randrange(100, len(original))
        data = bytearray(original)
        data[at] ^= 1 << dice.randrange(8)
        database.write_bytes(data)
        if verified(closed_log).ok:
            assert cells(closed_log) == expected
        else:
            noticed += 1
    assert noticed > 20


async def test_another_key_cannot_seal_a_log(closed_log: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("forger")
    log = await started_log(other, timing=OFTEN)
    for number in range(1, EVENTS + 1):
        await log.append_durably(called(number, principal="innocent"))
    await log.close()
    for ours, theirs in zip(files_in(closed_log)[:2], files_in(other)[:2], strict=True):
        shutil.copyfile(theirs, ours)
    assert not verified(closed_log).ok
