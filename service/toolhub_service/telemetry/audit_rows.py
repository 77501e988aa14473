"""How chained events lie in SQLite: tables, rows, and the search over them, which all databases share.

The body column is the canonical event and the only truth; the others repeat parts of it for the indexes, and
verification compares them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from toolhub_service.domain.event import ChainedEvent, Event, EventFilter
from toolhub_service.telemetry.audit_store import COLUMNS, Row
from toolhub_service.telemetry.chain import parse

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS events (
        row INTEGER PRIMARY KEY AUTOINCREMENT, writer TEXT NOT NULL, sequence INTEGER NOT NULL,
        at_unix_ms INTEGER NOT NULL, type TEXT NOT NULL, principal TEXT NOT NULL, tool TEXT NOT NULL,
        call_id TEXT NOT NULL, request_id TEXT NOT NULL, body TEXT NOT NULL,
        previous_mac TEXT NOT NULL, mac TEXT NOT NULL, key_id TEXT NOT NULL, UNIQUE (writer, sequence))""",
    "CREATE INDEX IF NOT EXISTS events_by_time ON events (at_unix_ms, writer, sequence)",
    "CREATE INDEX IF NOT EXISTS events_by_call ON events (call_id)",
    "CREATE INDEX IF NOT EXISTS events_by_request ON events (request_id)",
    "CREATE TABLE IF NOT EXISTS checkpoints (number INTEGER PRIMARY KEY, line TEXT NOT NULL)",
)
_FOR_WHOM: Final = ("user_id", "agent_id", "task_id", "session_id")
"""Fields without a column."""
_TABLES: Final = "SELECT type, name, replace(coalesce(sql, ''), char(34), '') FROM sqlite_master"
"""Without quotes: SQLite adds them when a table is renamed, and leaves them when it is renamed back."""
_ONE: Final = "(" + ", ".join("?" * 12) + ")"
_CHUNKS: Final = (256, 64, 16, 4, 1)
ALONE_MAX: Final = 64
"""Rows that one statement takes, whatever their number."""
_INSERTS: Final = {
    size: f"INSERT INTO events ({COLUMNS}) VALUES " + ", ".join([_ONE] * size)  # noqa: S608 — fixed text
    for size in {*range(1, ALONE_MAX + 1), *_CHUNKS}
}


def connect(path: Path, *, max_size_bytes: int = 0, create: bool = True) -> sqlite3.Connection:
    """A connection that writes: WAL, every commit fsynced, the file for its owner only. Raises sqlite3.Error."""
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    uri = path.absolute().as_uri() + "?mode=rw"  # never makes a file that is gone
    connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
    with _alone_in(path.parent):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages, in a commit: where there was no quiet moment before
    if max_size_bytes:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max_size_bytes // page_bytes}")
    if create:
        with transaction(connection):
            for statement in _SCHEMA:
                connection.execute(statement)
    return connection


def schema_problem(connection: sqlite3.Connection) -> str:
    """What is wrong with the tables: one that is missing or another, a trigger, a view; empty when nothing is."""
    found = set(connection.execute(_TABLES))
    if odd := sorted(f"{kind} {name}" for kind, name, _ in found if kind in {"trigger", "view"}):
        return f"the audit log's database has a {odd[0]}, which this hub did not make"
    missing = sorted(f"{kind} {name}" for kind, name, _ in _expected_schema() - found)
    return f"the {missing[0]} of the audit log is missing or was changed" if missing else ""


@cache
def _expected_schema() -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        return frozenset(connection.execute(_TABLES))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One at a time: SQLite's own timeout does not cover the change to WAL, which fails at once when two make it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that only reads; text that is no longer UTF-8 comes out changed. Raises sqlite3.Error."""
    connection = sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, timeout=5.0, isolation_level=None)
    connection.execute("PRAGMA query_only = 1")
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return connection


class transaction:  # noqa: N801 — used as a statement
    """`with transaction(connection):` one BEGIN IMMEDIATE … COMMIT, rolled back on any exception."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._commit()
        else:
            self._roll_back()

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def insert_alone(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Insert and commit at most `ALONE_MAX` rows by one statement, which is a transaction of its own: the interpreter's
    lock is given up once, not for BEGIN, each INSERT and COMMIT."""
    connection.execute(_INSERTS[len(rows)], [column for row in rows for column in row])


def insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Insert many rows in few statements: the interpreter's lock is given up once a statement, and the event loop
    may keep it for milliseconds each time."""
    done = 0
    for size in _CHUNKS:
        while len(rows) - done >= size:
            chunk = rows[done : done + size]
            connection.execute(_INSERTS[size], [column for row in chunk for column in row])
            done += size


def chained(row: tuple[Any, ...]) -> ChainedEvent:
    """The event of a row. Raises ValueError, KeyError or TypeError when the row was tampered with."""
    writer, sequence, *_, body, previous, tag, key_id = row
    event = parse(body.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return ChainedEvent(event=event, writer=writer, sequence=sequence, previous_mac=previous, mac=tag, key_id=key_id)


def matches(where: EventFilter, chained_event: ChainedEvent) -> bool:
    """Whether an event passes the filter: the same judgement as `condition`, without SQL."""
    event = chained_event.event
    return (
        (not where.principal or where.principal == event.principal)
        and (not where.tool or where.tool == event.tool)
        and (not where.types or event.type in where.types)
        and (not where.call_id or where.call_id == event.call_id)
        and (not where.request_id or where.request_id == event.request_id)
        and is_for(where, event)
        and (not where.writer or where.writer == chained_event.writer)
        and event.at_unix_ms >= where.from_unix_ms
        and (not where.to_unix_ms or event.at_unix_ms < where.to_unix_ms)
    )


def is_for(where: EventFilter, event: Event) -> bool:
    """Whether the event is for whom the filter names."""
    return all(getattr(where, name) in ("", getattr(event, name)) for name in _FOR_WHOM)


def condition(
    where: EventFilter, after: tuple[int, str, int] | None, mark: str = "?", position: str = "instr"
) -> tuple[str, list[Any]]:
    """The filter and the cursor as a WHERE clause with its parameters; `mark` is how the database spells those, and
    `position` its function that looks for a text in another.

    For whom an event is stands in the body alone, where a label may have the same name: see `is_for` for the rest.
    """
    terms: list[str] = [f"at_unix_ms >= {mark}"]
    parameters: list[Any] = [where.from_unix_ms]
    for column in ("principal", "tool", "call_id", "request_id", "writer"):
        wanted = getattr(where, column)
        if wanted:
            terms.append(f"{column} = {mark}")
            parameters.append(wanted)
    for name in _FOR_WHOM:
        if wanted := getattr(where, name):
            terms.append(f"{position}(body, {mark}) > 0")
            parameters.append(f'"{name}":{orjson.dumps(wanted).decode()}')
    if where.to_unix_ms:
        terms.append(f"at_unix_ms < {mark}")
        parameters.append(where.to_unix_ms)
    if where.types:
        terms.append(f"type IN ({', '.join([mark] * len(where.types))})")
        parameters.extend(sorted(type.value for type in where.types))
    if after is not None:
        terms.append(f"(at_unix_ms, writer, sequence) > ({mark}, {mark}, {mark})")
        parameters.extend(after)
    return " AND ".join(terms), parameters
