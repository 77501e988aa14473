"""A SQLite file behind an authorizer: SQLite asks it before any access of a statement.

`mode=ro` alone does not protect: from such a connection ATTACH and VACUUM INTO write new files. The authorizer allows
reading listed tables and calling listed functions, and nothing else. Work runs in threads and checks every few thousand
steps whether it should stop. SQLite's own limits bound values.
"""

from __future__ import annotations

import base64
import json
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql import MAX_CHARS, may_call, may_use_table
from toolhub_service.guards.sql_statement import Statement
from toolhub_service.tools.database.connection import (
    MAX_COLUMNS,
    MAX_TABLES,
    SAFE_INTEGER,
    Column,
    DatabaseLimits,
    DescribedColumn,
    DescribedTable,
    ForeignKey,
    Parameters,
    Row,
    not_usable,
    refused_by_database,
    row_too_large,
    too_slow,
    unreachable,
)
from toolhub_service.tools.threads import to_thread

_VALUE_MAX_BYTES: Final = 1024 * 1024
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: _VALUE_MAX_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_CHARS,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 32,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_IN_FROM: Final = frozenset({"json_each", "json_tree"})
# Tables in which full-text search stores its words: SQLite reads them by statements of its own.
_SHADOWS: Final = frozenset("data idx content docsize config segments segdir stat node parent rowid".split())
_STEPS: Final = 5_000
_BATCH_ROWS: Final = 500
_BATCH_BYTES: Final = 1024 * 1024
_BUSY_S: Final = 2.0
_STORED: Final = {int: "integer", float: "real", str: "text", bytes: "blob"}


class SqliteDatabase:
    """Implements `Database`."""

    def __init__(self, terms: DatabaseTerms, limits: DatabaseLimits, file: Path, description: str = "") -> None:
        self.terms = terms
        self.limits = limits
        self.description = description
        self._file = file

    def missing(self) -> str:
        return "" if find_spec("sqlglot") else "sqlglot is not installed: pip install 'tool-hub[db]'"

    @asynccontextmanager
    async def query(
        self, statement: Statement, parameters: Parameters, deadline_s: float
    ) -> AsyncIterator[SqliteReading]:
        session = await to_thread(partial(self._begun, deadline_s))
        try:
            await to_thread(partial(session.start, statement.text, parameters))
            yield session
        finally:
            session.close()

    async def execute(self, statement: Statement, parameters: Parameters, deadline_s: float) -> int:
        return await to_thread(partial(self._execute, statement.text, parameters, deadline_s))

    async def describe(self, table: str, deadline_s: float) -> tuple[list[DescribedTable], bool]:
        return await to_thread(partial(self._describe, table, deadline_s))

    def _begun(self, deadline_s: float, stop: threading.Event) -> SqliteReading:
        return SqliteReading(self.open(), self.terms, deadline_s)

    def open(self, *, writes: bool = False) -> sqlite3.Connection:
        """Return a protected connection for use in any thread. Raises ToolFailure."""
        mode = "rw" if writes else "ro"
        try:
            uri = f"{self._file.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        except sqlite3.Error:
            raise not_usable(self.terms.name, "its file cannot be opened") from None
        try:
            for category, most in _LIMITS.items():
                connection.setlimit(category, most)
            # Views and triggers of the file may then call only functions that are marked innocuous.
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
            # SQLite opens lazily: only a read shows whether the file is a database at all.
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise _failure_of(error, self.terms.name, None, 0.0, threading.Event()) from None
        connection.text_factory = _text
        if writes:
            connection.execute("PRAGMA foreign_keys = ON")
            # Takes the lock at once: a read that later becomes a write could otherwise fail in the middle.
            connection.execute("BEGIN IMMEDIATE")
        # Last, because it would refuse the statements above, which are the hub's own.
        connection.set_authorizer(partial(_authorized, self.terms, writes))
        return connection

    def _execute(self, sql: str, parameters: Parameters, deadline_s: float, stop: threading.Event) -> int:
        with closing(self.open(writes=True)) as connection, _watched(connection, self.terms.name, deadline_s, stop):
            changed = connection.execute(sql, bound(parameters)).rowcount
            # Only the hub's own statements end the transaction.
            connection.set_authorizer(None)
            connection.execute("COMMIT")
            return max(0, changed)

    def _describe(self, table: str, deadline_s: float, stop: threading.Event) -> tuple[list[DescribedTable], bool]:
        with closing(self.open()) as connection, _watched(connection, self.terms.name, deadline_s, stop):
            connection.set_authorizer(None)  # for the hub's own statements
            wanted = "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
            found = [
                (name, kind)
                for name, kind in connection.execute(wanted)
                if may_use_table(name.lower(), self.terms) and table.lower() in ("", name.lower())
            ]
            described: list[DescribedTable] = []
            columns = 0
            for name, kind in found[:MAX_TABLES]:
                one = _described(connection, name, kind)
                columns += len(one.columns)
                if columns > MAX_COLUMNS and described:
                    return described, True
                described.append(one)
            return described, len(found) > len(described)


class SqliteReading:
    """Implements `Reading` on a connection, which it closes."""

    has_types = False

    def __init__(self, connection: sqlite3.Connection, terms: DatabaseTerms, deadline_s: float) -> None:
        self._connection = connection
        self._terms = terms
        self._deadline_s = deadline_s
        self._cursor: sqlite3.Cursor | None = None
        self._types: list[dict[str, None]] = []

    def start(self, sql: str, parameters: Parameters, stop: threading.Event) -> None:
        with _watched(self._connection, self._terms.name, self._deadline_s, stop):
            self._cursor = self._connection.execute(sql, bound(parameters))
        self._types = [{} for _ in self._cursor.description or ()]

    @property
    def columns(self) -> Sequence[Column]:
        names = [entry[0] for entry in (self._cursor.description if self._cursor else None) or ()]
        return [
            Column(name=name, type="|".join(types) or "null") for name, types in zip(names, self._types, strict=True)
        ]

    async def next_rows(self) -> list[Row]:
        return await to_thread(self._next_rows)

    def _next_rows(self, stop: threading.Event) -> list[Row]:
        rows: list[Row] = []
        size = 0
        with _watched(self._connection, self._terms.name, self._deadline_s, stop):
            while self._cursor is not None and len(rows) < _BATCH_ROWS and size < _BATCH_BYTES:
                values = self._cursor.fetchone()
                if values is None:
                    break
                for value, types in zip(values, self._types, strict=True):
                    if value is not None:
                        types[_STORED[type(value)]] = None
                        size += len(value) if isinstance(value, str | bytes) else 8
                rows.append([_json(value) for value in values])
        return rows

    def close(self) -> None:
        self._connection.close()


def _authorized(
    terms: DatabaseTerms,
    writes: bool,
    action: int,
    first: str | None,
    second: str | None,
    database: str | None,
    _by: str | None,
) -> int:
    """Authorize an access, while SQLite prepares a statement. `_by`, the view or trigger that causes it, is no
    justification."""
    if action in _READS:
        allowed = True
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = may_call((second or "").lower(), terms)
    elif action == sqlite3.SQLITE_READ or (writes and action in _WRITES):
        allowed = database in (None, "", "main") and _may_touch((first or "").lower(), terms)
    else:
        allowed = False
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _may_touch(table: str, terms: DatabaseTerms) -> bool:
    if table in _IN_FROM or may_use_table(table, terms):
        return True
    owner, _, part = table.rpartition("_")
    return part in _SHADOWS and bool(owner) and may_use_table(owner, terms)


@contextmanager
def _watched(connection: sqlite3.Connection, name: str, deadline_s: float, stop: threading.Event) -> Iterator[None]:
    """Interrupt SQLite when the call is cancelled or its time is over. Raises ToolFailure for any error of SQLite."""
    started_s = time.monotonic()
    connection.set_progress_handler(lambda: stop.is_set() or time.monotonic() >= deadline_s, _STEPS)
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _failure_of(error, name, deadline_s, started_s, stop) from None
    finally:
        connection.set_progress_handler(None, 0)


def _failure_of(
    error: Exception, name: str, deadline_s: float | None, started_s: float, stop: threading.Event
) -> ToolFailure:
    # The low byte of an extended code is the primary code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if stop.is_set():
        return refuse(ErrorKind.CANCELLED, "The call was cancelled before the statement was done.")
    if code == sqlite3.SQLITE_INTERRUPT and deadline_s is not None:
        return too_slow(max(0.0, deadline_s - started_s))
    if code == sqlite3.SQLITE_AUTH:
        message = f"SQLite refuses the statement: {error}. Use only listed tables and functions, see core/db.describe."
        return refuse(ErrorKind.POLICY_DENIED, message, connection=name)
    if code == sqlite3.SQLITE_TOOBIG:
        return row_too_large(_VALUE_MAX_BYTES)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return unreachable(name, "another program holds its lock")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
        return not_usable(name, "its file is no database that can be read")
    return refused_by_database(str(error), getattr(error, "sqlite_errorname", ""))


def bound(parameters: Parameters) -> Any:
    """Return the values in the form that SQLite binds; arrays and objects as JSON texts."""
    if isinstance(parameters, dict):
        return {key: _bindable(value) for key, value in parameters.items()}
    return [_bindable(value) for value in parameters]


def _bindable(value: JsonValue) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise refuse(ErrorKind.INVALID_INPUT, "A number of `params` has more than 64 bits. Send it as text.")
    return value


def _text(data: bytes) -> str:
    # SQLite stores any bytes as text; one bad value must not make a whole result unreadable.
    return data.decode("utf-8", "replace")


def _json(value: Any) -> JsonValue:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value  # type: ignore[no-any-return] # what is left is what JSON has


def _described(connection: sqlite3.Connection, name: str, kind: str) -> DescribedTable:
    columns = connection.execute('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (name,))
    described: list[DescribedColumn] = []
    keys: list[tuple[int, str]] = []
    for column, type_name, not_null, default, key in columns.fetchall():
        described.append(DescribedColumn(name=column, type=type_name.lower(), nullable=not not_null, default=default))
        if key:
            keys.append((key, column))
    foreign: dict[int, ForeignKey] = {}
    wanted = 'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq'
    for number, target, source, to in connection.execute(wanted, (name,)).fetchall():
        known = foreign.setdefault(number, ForeignKey(columns=[], table=target, target_columns=[]))
        known.columns.append(source)
        if to is not None:
            known.target_columns.append(to)
    return DescribedTable(
        name=name,
        kind=kind,
        columns=described,
        primary_key=[column for _, column in sorted(keys)],
        foreign_keys=list(foreign.values()),
    )
