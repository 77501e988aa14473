"""Chained events in SQLite: tables, rows, and the columns to search by, which all databases share.

The body column, the canonical event, is authoritative; the others repeat parts of it for the indexes, and verification
compares them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.stores.audit.by_principal import index_sqlite, sqlite_page
from toolhub_service.stores.audit.events import (
    COLUMNS,
    Row,
    UpkeepLock,
    check_chain,
    condition,
    page_of,
    tampering_error,
)
from toolhub_service.stores.audit.keyring import sync_folder
from toolhub_service.stores.sqlite.writer import alone_in

_SCHEMA: Final = (
    """CREATE TABLE events (
        row INTEGER PRIMARY KEY AUTOINCREMENT, writer TEXT NOT NULL, sequence INTEGER NOT NULL,
        at_unix_ms INTEGER NOT NULL, type TEXT NOT NULL, principal TEXT NOT NULL, tool TEXT NOT NULL,
        call_id TEXT NOT NULL, request_id TEXT NOT NULL, body TEXT NOT NULL,
        previous_mac TEXT NOT NULL, mac TEXT NOT NULL, key_id TEXT NOT NULL, UNIQUE (writer, sequence))""",
    "CREATE INDEX events_by_time ON events (at_unix_ms, writer, sequence)",
    "CREATE INDEX events_by_call ON events (call_id)",
    "CREATE INDEX events_by_request ON events (request_id)",
    "CREATE TABLE checkpoints (number INTEGER PRIMARY KEY, line TEXT NOT NULL)",
)
# Without quotes: SQLite adds them when a table is renamed, and leaves them when it is renamed back.
_TABLES: Final = "SELECT type, name, replace(coalesce(sql, ''), char(34), '') FROM sqlite_master"
_ONE: Final = "(" + ", ".join("?" * 12) + ")"
_CHUNKS: Final = (256, 64, 16, 4, 1)
CURSORS: Final = "audit-export.json"
"""File beside the database with the export cursor of each sink."""
ALONE_MAX: Final = 64
"""Any number of rows up to this is inserted by one statement."""
_INSERTS: Final = {
    size: f"INSERT INTO events ({COLUMNS}) VALUES " + ", ".join([_ONE] * size)  # noqa: S608 — fixed text
    for size in {*range(1, ALONE_MAX + 1), *_CHUNKS}
}


def connect(path: Path, *, max_size_bytes: int = 0, create: bool = True) -> sqlite3.Connection:
    """Return a connection that writes: WAL, every commit fsynced, the file for its owner only. Raises sqlite3.Error."""
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    uri = path.absolute().as_uri() + "?mode=rw"  # never recreates a missing file
    connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
    with alone_in(path.parent):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages; applies if no quiet moment came before
    if max_size_bytes:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max_size_bytes // page_bytes}")
    if create:
        with transaction(connection):
            # A file with any table is no new log: a missing table has been removed, which `schema_problem` reports.
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                for statement in _SCHEMA:
                    connection.execute(statement)
    return connection


def schema_problem(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the tables: a missing or different one, a trigger, a view; empty when nothing is."""
    found = set(connection.execute(_TABLES))
    if odd := sorted(f"{kind} {name}" for kind, name, _ in found if kind in {"trigger", "view"}):
        return f"the audit log's database has a {odd[0]}, which this hub did not make"
    # A table before its indexes, which are removed with it.
    missing = sorted((kind != "table", f"{kind} {name}") for kind, name, _ in _expected_schema() - found)
    return f"the {missing[0][1]} of the audit log is missing or was changed" if missing else ""


@cache
def _expected_schema() -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        return frozenset(connection.execute(_TABLES))


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads; text that is no longer UTF-8 is returned changed. Raises sqlite3.Error."""
    connection = sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, timeout=5.0, isolation_level=None)
    connection.execute("PRAGMA query_only = 1")
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return connection


def connect_to_look(path: Path) -> sqlite3.Connection:
    """Like `connect_to_read`, for a log that nobody else may write: no file is made beside it. Raises sqlite3.Error."""
    # Without a -wal file no hub runs: `immutable` then reads it without making -wal and -shm (sqlite.org/uri.html).
    if path.with_name(f"{path.name}-wal").exists():
        return connect_to_read(path)
    connection = sqlite3.connect(path.absolute().as_uri() + "?immutable=1", uri=True, isolation_level=None)
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return connection


class transaction:  # noqa: N801 — used as a statement
    """Run the block in BEGIN IMMEDIATE … COMMIT; roll back on any exception."""

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
    """Insert and commit at most `ALONE_MAX` rows by one statement, which is its own transaction.

    The GIL is released once, not for BEGIN, each INSERT and COMMIT.
    """
    connection.execute(_INSERTS[len(rows)], [column for row in rows for column in row])


def insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Insert many rows in few statements.

    Each statement releases the GIL once, and the event loop may then keep it for milliseconds.
    """
    done = 0
    for size in _CHUNKS:
        while len(rows) - done >= size:
            chunk = rows[done : done + size]
            connection.execute(_INSERTS[size], [column for row in chunk for column in row])
            done += size


# The events of the audit log in one SQLite file.

_NEWS: Final = f"SELECT row, {COLUMNS} FROM events WHERE row > ? ORDER BY row LIMIT ?"  # noqa: S608 — fixed text
_BEYOND: Final = f"SELECT {COLUMNS} FROM events WHERE writer = ? AND sequence > ? ORDER BY sequence"  # noqa: S608 — fixed
_OWN: Final = "SELECT count(*), min(sequence), max(sequence) FROM events WHERE writer = ?"
_TAG: Final = "SELECT mac FROM events WHERE writer = ? AND sequence = ?"
_IN_ORDER: Final = f"SELECT {COLUMNS} FROM events ORDER BY writer, sequence"  # noqa: S608 — fixed text
# Chains that have any of the oldest events; and the last old event of one chain.
_OLD_WRITERS: Final = """SELECT DISTINCT writer FROM (
    SELECT writer FROM events WHERE at_unix_ms < ? ORDER BY at_unix_ms, writer, sequence LIMIT 50000)"""
_OLD_END: Final = """SELECT sequence, mac FROM events WHERE writer = :writer AND sequence < coalesce(
    (SELECT min(sequence) FROM events WHERE writer = :writer AND sequence < :until
        AND (at_unix_ms >= :before OR row > :max_row)), :until)
ORDER BY sequence DESC LIMIT 1"""
_ROW_MAX: Final = 2**63 - 1
_NEWEST: Final = f"""SELECT {COLUMNS} FROM (SELECT * FROM events ORDER BY row DESC LIMIT ?)
ORDER BY writer, sequence"""  # noqa: S608 — fixed text
# A loose index scan from writer to writer, instead of over all rows.
_ENDS: Final = """
WITH RECURSIVE found AS (
    SELECT min(writer) AS writer FROM events
    UNION ALL
    SELECT (SELECT min(e.writer) FROM events e WHERE e.writer > found.writer) FROM found WHERE writer IS NOT NULL)
SELECT e.writer, e.sequence, e.mac FROM found JOIN events e ON e.writer = found.writer
    AND e.sequence = (SELECT max(l.sequence) FROM events l WHERE l.writer = found.writer)"""


class SqliteEvents:
    """Implements `EventStore`. `max_size_bytes` 0: limited by the disk only."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
    damage: tuple[type[Exception], ...] = (sqlite3.DatabaseError, ValueError)
    """ValueError: a damaged name in the schema."""
    poll_s = 0.25
    check_s = 5.0
    is_made_with_key = True

    def __init__(self, database: Path, *, max_size_bytes: int = 0, only_looks: bool = False) -> None:
        """`only_looks`: for commands that change no byte, whether a hub runs or not."""
        self._connect_to_read = connect_to_look if only_looks else connect_to_read
        self._database = database
        self._max_size_bytes = max_size_bytes
        self._cursors = database.with_name(CURSORS)
        self._cursors_lock = threading.Lock()

    def open(self, *, create: bool) -> SqliteEventTable:
        if not create:
            self._check_exists()
        connection = connect(self._database, max_size_bytes=self._max_size_bytes, create=create)
        try:
            table = SqliteEventTable(connection, self._database)
            index_sqlite(connection)
            return table
        except BaseException:
            connection.close()
            raise

    def _check_exists(self) -> None:
        if not self._database.exists():
            raise tampering_error(f"The audit log's database {self._database} is gone")

    def has_tables(self) -> bool:
        """Return whether the file exists and holds anything. Raises sqlite3.Error."""
        if not self._database.exists():
            return False
        with closing(self._connect_to_read(self._database)) as connection:
            return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None

    def check_tables(self) -> bool:
        """Return whether they hold no event. Raises HubFailure AUDIT_LOG_CHANGED as `open` does, and sqlite3.Error."""
        self._check_exists()
        with closing(self._connect_to_read(self._database)) as connection:
            if problem := schema_problem(connection):
                raise tampering_error(problem[:1].upper() + problem[1:])
            return connection.execute("SELECT 1 FROM events LIMIT 1").fetchone() is None

    def has_more_than(self, limit: int) -> bool:
        """Return whether there are more events than that, whatever their number. Raises sqlite3.Error."""
        with closing(self._connect_to_read(self._database)) as connection:
            return connection.execute("SELECT 1 FROM events LIMIT 1 OFFSET ?", (limit,)).fetchone() is not None

    def last_row(self) -> int:
        """Return the latest row's number, in a fraction of a millisecond."""
        with closing(self._connect_to_read(self._database)) as connection:
            (row,) = connection.execute("SELECT coalesce(max(row), 0) FROM events").fetchone()
            return int(row)

    def newest_unix_ms(self) -> int:
        with closing(self._connect_to_read(self._database)) as connection:
            (newest,) = connection.execute("SELECT coalesce(max(at_unix_ms), 0) FROM events").fetchone()
            return int(newest)

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        terms, parameters = condition(where, after)
        query = f"SELECT {COLUMNS} FROM events WHERE {terms} ORDER BY at_unix_ms, writer, sequence LIMIT ?"  # noqa: S608 — bound
        with closing(self._connect_to_read(self._database)) as connection:
            found = sqlite_page(connection, where, after, limit)
            return connection.execute(query, (*parameters, limit)).fetchall() if found is None else found

    def exists(self) -> bool:
        return self._database.exists()

    def take_upkeep_lock(self) -> UpkeepLock | None:
        path = self._database.with_name(f".{self._database.name}.upkeep")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return _FileLock(descriptor)

    def cursor(self, sink: str) -> str:
        try:
            return str(orjson.loads(self._cursors.read_bytes()).get(sink, ""))
        except (FileNotFoundError, ValueError, AttributeError):
            return ""  # a damaged cursor starts over: everything is sent again

    def keep_cursor(self, sink: str, cursor: str) -> None:
        """Store the cursor, whole or not at all.

        It is not in the database, which nobody but the log's writer may change while that checks it.
        """
        with self._cursors_lock:
            try:
                known = orjson.loads(self._cursors.read_bytes())
            except (FileNotFoundError, ValueError):
                known = {}
            draft = self._cursors.with_name(f".{self._cursors.name}.{os.getpid()}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(orjson.dumps({**known, sink: cursor}))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._cursors)
            sync_folder(self._cursors.parent)

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        with closing(self._connect_to_read(self._database)) as connection:
            connection.execute("BEGIN")
            yield _Snapshot(connection)


class SqliteEventTable:
    """Implements `EventTable`.

    Each commit checks the file before and after: rows in an unlinked file, or in changed tables, are no record.
    """

    def __init__(self, connection: sqlite3.Connection, database: Path) -> None:
        self._connection = connection
        self._check_schema()
        names = (database.name, f"{database.name}-wal", f"{database.name}-shm")
        self._places = {path: _place(path) for path in map(database.with_name, names)}
        self._others_seen = -1

    def check(self, writer: str, count: int, head: str) -> None:
        self._check_files()
        self._check_schema()
        others_seen = self._pragma("data_version")
        if count:
            changed = others_seen != self._others_seen  # another process has committed since
            own = self._connection.execute(_OWN, (writer,)).fetchone() if changed else None
            tag = self._connection.execute(_TAG, (writer, count)).fetchone()
            check_chain(writer, count, head, own, tag and tag[0])
        self._others_seen = others_seen

    def _check_files(self) -> None:
        for path, place in self._places.items():
            if _place(path) != place:
                raise tampering_error(f"The audit log's file {path} was removed or replaced while the hub writes it")

    def _check_schema(self) -> None:
        if problem := schema_problem(self._connection):
            raise tampering_error(problem[:1].upper() + problem[1:])
        self._schema_seen = self._pragma("schema_version")

    def _pragma(self, name: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(value)

    def is_empty(self) -> bool:
        return self._connection.execute("SELECT 1 FROM events LIMIT 1").fetchone() is None

    def insert(self, rows: list[Row]) -> None:
        self._check_files()
        if self._pragma("schema_version") != self._schema_seen:
            self._check_schema()
        if len(rows) <= ALONE_MAX:
            insert_alone(self._connection, rows)
        else:
            with transaction(self._connection):
                insert(self._connection, rows)
        self._check_files()

    def announce(self) -> None:
        """Do nothing: other processes poll the file."""

    def tidy(self) -> None:
        """Copy the write-ahead log into the database; otherwise a commit would do it, in ten times its time."""
        with suppress(sqlite3.Error):  # as in a commit: the rest is copied later
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def keep_copy(self, number: int, line: str) -> None:
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO checkpoints VALUES (?, ?)", (number, line))

    def ends(self) -> Sequence[tuple[Any, Any]]:
        return self._connection.execute("SELECT writer, max(sequence) FROM events GROUP BY writer").fetchall()

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        return self._connection.execute(_BEYOND, (writer, sequence))

    def old_ends(self, before_unix_ms: int, limit: int, max_row: int | None = None) -> Sequence[tuple[str, int, str]]:
        ends: list[tuple[str, int, str]] = []
        for (writer,) in self._connection.execute(_OLD_WRITERS, (before_unix_ms,)).fetchall():
            terms = {"writer": writer, "until": self.first_of(writer) + limit, "before": before_unix_ms}
            terms["max_row"] = _ROW_MAX if max_row is None else max_row
            ends += [(writer, *end) for end in self._connection.execute(_OLD_END, terms)]
        return ends

    def first_of(self, writer: str) -> int:
        (first,) = self._connection.execute("SELECT min(sequence) FROM events WHERE writer = ?", (writer,)).fetchone()
        return 1 if first is None else int(first)

    def tag_at(self, row: int) -> str | None:
        found = self._connection.execute("SELECT mac FROM events WHERE row = ?", (row,)).fetchone()
        return None if found is None else str(found[0])

    def remove(self, writer: str, sequence: int) -> int:
        with transaction(self._connection):
            statement = "DELETE FROM events WHERE writer = ? AND sequence <= ?"
            return self._connection.execute(statement, (writer, sequence)).rowcount

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        return self._connection.execute(_NEWS, (after_row, limit)).fetchall()

    def close(self) -> None:
        self._connection.close()


class _FileLock:
    """Implements `UpkeepLock`: a lock (flock(2)) that ends with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_held(self) -> bool:
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _place(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the path; None when it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class _Snapshot:
    """Implements `EventSnapshot`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def last_rows(self, limit: int) -> list[tuple[Any, ...]]:
        """Return the newest events, by writer and sequence."""
        return self._connection.execute(_NEWEST, (limit,)).fetchall()

    def last_copies(self, limit: int) -> list[tuple[Any, Any]]:
        """Return the copies of the newest checkpoints, in their order."""
        query = "SELECT number, line FROM checkpoints ORDER BY number DESC LIMIT ?"
        return self._connection.execute(query, (limit,)).fetchall()[::-1]

    def ends(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield writer, sequence and tag of each chain's last event, by a step from writer to writer."""
        return self._connection.execute(_ENDS)

    def tag_of(self, writer: str, sequence: int) -> Any:
        """Return the tag of that event; None when it is missing."""
        found = self._connection.execute(_TAG, (writer, sequence)).fetchone()
        return found and found[0]

    def copies(self) -> list[tuple[Any, Any]]:
        return self._connection.execute("SELECT number, line FROM checkpoints ORDER BY number").fetchall()

    def foreign(self) -> list[Any]:
        """Return nothing: processes that share the file share the checkpoint file, too."""
        return []

    def rows(self) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(_IN_ORDER)

    def problems(self) -> Iterator[str]:
        for (problem,) in self._connection.execute("PRAGMA integrity_check(1)"):
            if problem != "ok":
                yield str(problem)


def page(database: Path, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> list[ChainedEvent]:
    """Return `page_of` a database file."""
    return page_of(SqliteEvents(database), where, after, limit)
