"""The end of a log, verified in bounded time: what is found there, and what is not looked at."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.domain.event import Event, EventType
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.sqlite import SqliteEvents
from toolhub_service.stores.audit.verify_recent import RecentVerified, verify_recent

EVENTS = 50


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The log of two hubs, one after the other."""
    clock = SystemClock()
    for _ in range(2):
        log = SqliteAuditLog(
            tmp_path / "audit.db",
            tmp_path / "audit-checkpoints.jsonl",
            tmp_path / "audit.key",
            clock=clock,
            redactor=Redactor(()),
        )
        await log.start()
        for number in range(EVENTS):
            log.append(Event(EventType.TOOL_RESULT, clock.unix_ms(), tool="core/fs.readText", call_id=f"call_{number}"))
        await log.close()
    return tmp_path


def verified(folder: Path, limit: int, lines_bytes: int = 1 << 20) -> RecentVerified:
    before = sorted(folder.iterdir())
    keyring, events = (
        open_keyring(folder / "audit.key", create=False),
        SqliteEvents(folder / "audit.db", only_looks=True),
    )
    found = verify_recent(events, folder / "audit-checkpoints.jsonl", keyring, limit=limit, lines_bytes=lines_bytes)
    assert sorted(folder.iterdir()) == before
    return found


def reason(found: RecentVerified) -> str:
    (fault,) = found.verification.faults
    return fault.reason


def changed(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "audit.db")) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_short_log_is_verified_whole(folder: Path) -> None:
    found = verified(folder, limit=2 * EVENTS)
    assert (found.are_all, found.verification.events_checked, found.verification.faults) == (True, 2 * EVENTS, ())


@pytest.mark.parametrize(("limit", "writers"), [(10, 1), (EVENTS + 10, 2)])
def test_of_a_long_log_the_newest_events_are_verified(folder: Path, limit: int, writers: int) -> None:
    found = verified(folder, limit)
    assert not found.are_all
    checked = found.verification
    assert (checked.events_checked, checked.writers, checked.faults) == (limit, writers, ())


def test_checkpoints_of_which_only_the_end_was_read_are_not_all(folder: Path) -> None:
    found = verified(folder, limit=2 * EVENTS, lines_bytes=700)
    assert (found.are_all, found.verification.faults) == (False, ())


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "UPDATE events SET body = replace(body, 'call_45', 'call_44') WHERE row = 96",
            "the tag does not fit the event",
        ),
        ("UPDATE events SET tool = 'x' WHERE row = 96", "a column was changed"),
        ("DELETE FROM events WHERE row = 96", "event 46 is missing"),
        ("DELETE FROM events WHERE row > 95", "events after 45 are missing; 50 were attested"),
        ("DELETE FROM events WHERE row BETWEEN 45 AND 50", "events after 44 are missing; 50 were attested"),
        ("UPDATE events SET mac = 'x' WHERE row = 50", "checkpoint at 50 attests another event"),
        ("UPDATE events SET sequence = 'x' || sequence WHERE row > 50", "a column was changed"),
        ("UPDATE events SET writer = 'y' WHERE row > 50", "the tag does not fit the event"),
        ("DELETE FROM checkpoints WHERE number = 4; ", ""),
        (
            "UPDATE checkpoints SET line = replace(line, '50', '49') WHERE number = 4",
            "the copy of checkpoint 4 was changed",
        ),
    ],
)
def test_what_was_done_to_the_end_of_the_log_is_found(folder: Path, statement: str, expected: str) -> None:
    changed(folder, statement)
    faults = verified(folder, limit=10).verification.faults
    assert expected in ([fault.reason for fault in faults] or [""])


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def forged(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"count":50', b'"count":40'))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [(cut, "checkpoint 4 is missing: the checkpoint file was cut or is older"), (forged, "is not genuine")],
)
def test_what_was_done_to_the_checkpoints_is_found(folder: Path, harm: Callable[[Path], None], expected: str) -> None:
    harm(folder / "audit-checkpoints.jsonl")
    faults = verified(folder, limit=10).verification.faults
    assert any(expected in fault.reason for fault in faults)


def test_an_event_before_the_end_is_not_looked_at(folder: Path) -> None:
    changed(folder, "UPDATE events SET tool = 'x' WHERE row = 3")
    assert verified(folder, limit=10).verification.faults == ()
    assert reason(verified(folder, limit=2 * EVENTS)) == "a column was changed"
