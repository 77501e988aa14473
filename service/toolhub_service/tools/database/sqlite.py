"""A SQLite file behind an authorizer: SQLite asks it before any access of a statement (sqlite_authorizer.py).

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
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from toolhub_service.aio.threads import to_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import MAX_CHARS, may_use_table, refuse_statement
from toolhub_service.guards.sql.sqlite import lower_ascii
from toolhub_service.tools.database.connection import (
    MAX_COLUMNS,
    MAX_TABLES,
    SAFE_INTEGER,
    Accept,
    Column,
    DatabaseLimits,
    DescribedColumn,
    DescribedTable,
    ForeignKey,
    Parameters,
    Row,
    database_refusal,
    not_usable,
    row_too_large,
    too_slow,
    unreachable,
)
from toolhub_service.tools.database.sqlite_authorizer import StatementAuthorizer

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
        return "" if find_spec("sqlglot") else "sqlglot is not installed: toolhub extras install db"

    @asynccontextmanager
    async def query(
        self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept
    ) -> AsyncIterator[SqliteReading]:
        session = await to_thread(partial(self._begin_session, deadline_s, writes=False))
        try:
            accept(await to_thread(partial(session.prepare, statement, parameters)))
            await to_thread(partial(session.start, statement.text, parameters))
            yield SqliteReading(session)
        finally:
            session.close()

    async def execute(self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept) -> int:
        session = await to_thread(partial(self._begin_session, deadline_s, writes=True))
        try:
            accept(await to_thread(partial(session.prepare, statement, parameters)))
            return await to_thread(partial(session.change, statement.text, parameters))
        finally:
            session.close()

    async def describe(self, table: str, deadline_s: float) -> tuple[list[DescribedTable], bool]:
        return await to_thread(partial(self._describe, table, deadline_s))

    def _begin_session(self, deadline_s: float, stop: threading.Event, *, writes: bool) -> _Session:
        return _Session(self.open(writes=writes), self.terms, deadline_s, writes=writes)

    def open(self, *, writes: bool = False) -> sqlite3.Connection:
        """Return a connection for use in any thread, without an authorizer yet. Raises ToolFailure."""
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
            connection.execute(f"PRAGMA foreign_keys = {'ON' if writes else 'OFF'}")
            # A write takes the lock at once: a read that later becomes a write could otherwise fail in the middle.
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            # SQLite opens lazily: only a read shows whether the file is a database at all.
            _load_modules(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise _failure_of(error, self.terms.name, None, 0.0, threading.Event()) from None
        connection.text_factory = _text
        return connection

    def _describe(self, table: str, deadline_s: float, stop: threading.Event) -> tuple[list[DescribedTable], bool]:
        with closing(self.open()) as connection, _interrupt_when_over(connection, self.terms.name, deadline_s, stop):
            wanted = "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name"
            found = [
                (name, kind)
                for name, kind in connection.execute(wanted)
                if may_use_table(lower_ascii(name), self.terms) and lower_ascii(table) in ("", lower_ascii(name))
            ]
            described: list[DescribedTable] = []
            columns = 0
            for name, kind in found[:MAX_TABLES]:
                one = _describe_table(connection, name, kind)
                columns += len(one.columns)
                if columns > MAX_COLUMNS and described:
                    return described, True
                described.append(one)
            return described, len(found) > len(described)


class _Session:
    """One statement on a connection of its own, which it closes: prepared, and after the call was decided, run."""

    def __init__(
        self, connection: sqlite3.Connection, terms: DatabaseTerms, deadline_s: float, *, writes: bool
    ) -> None:
        self.cursor: sqlite3.Cursor | None = None
        self._connection = connection
        self._terms = terms
        self._deadline_s = deadline_s
        self._authorizer = StatementAuthorizer(terms, writes=writes)

    def prepare(self, parsed: Statement, parameters: Parameters, stop: threading.Event) -> Statement:
        """Return the statement as SQLite reads it; nothing of it runs. Raises ToolFailure."""
        self._connection.set_authorizer(self._authorizer)
        try:
            with self.interrupt_when_over(stop):
                program = self._connection.execute(f"EXPLAIN {parsed.text}", bind_parameters(parameters)).fetchall()
                self._authorizer.settle(self._connection, program)
        except ToolFailure:
            if not self._authorizer.refusal:
                raise
        if self._authorizer.refusal:  # SQLite itself says no more than "not authorized"
            raise refuse_statement(self._authorizer.refusal, self._authorizer.read(parsed), self._terms)
        return self._authorizer.read(parsed)

    def start(self, sql: str, parameters: Parameters, stop: threading.Event) -> None:
        with self.interrupt_when_over(stop):
            self.cursor = self._connection.execute(sql, bind_parameters(parameters))

    def change(self, sql: str, parameters: Parameters, stop: threading.Event) -> int:
        """Run the statement and commit. Return the number of rows that it changed itself."""
        with self.interrupt_when_over(stop):
            self._connection.execute(sql, bind_parameters(parameters)).close()
            # Only the hub's own statements end the transaction.
            self._connection.set_authorizer(None)
            # Not `rowcount`, which Python sets by the first word of the statement: never for one that begins with WITH.
            (changed,) = self._connection.execute("SELECT changes()").fetchone()
            self._connection.execute("COMMIT")
            return int(changed)

    def interrupt_when_over(self, stop: threading.Event) -> AbstractContextManager[None]:
        return _interrupt_when_over(self._connection, self._terms.name, self._deadline_s, stop)

    def close(self) -> None:
        self._connection.close()


class SqliteReading:
    """Implements `Reading` on a session whose statement has started."""

    has_types = False

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._cursor = session.cursor
        self._types: list[dict[str, None]] = [{} for _ in (self._cursor.description if self._cursor else None) or ()]

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
        with self._session.interrupt_when_over(stop):
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


def _load_modules(connection: sqlite3.Connection) -> None:
    """Connect the virtual tables: at its first use each declares its columns as if it created a table, which an
    authorizer would refuse."""
    connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").close()
    virtual = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
    for (name,) in connection.execute(virtual).fetchall():
        # One whose module is not there is refused when a statement uses it.
        with suppress(sqlite3.OperationalError):
            connection.execute("SELECT 1 FROM pragma_table_info(?)", (name,)).close()


@contextmanager
def _interrupt_when_over(
    connection: sqlite3.Connection, name: str, deadline_s: float, stop: threading.Event
) -> Iterator[None]:
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
    return database_refusal(str(error), getattr(error, "sqlite_errorname", ""))


def bind_parameters(parameters: Parameters) -> Any:
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


def _describe_table(connection: sqlite3.Connection, name: str, kind: str) -> DescribedTable:
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
