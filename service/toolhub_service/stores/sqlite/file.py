"""The SQLite file that the embedded stores share with each other and with the hub's other processes.

Changes go to one thread, which commits them in groups (`sqlite_writer`). Reads go to a few threads with their own
connections, which in WAL mode neither wait for the writer nor block it. The event loop itself never touches the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import orjson

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.stores.codec import UnreadableRecord
from toolhub_service.stores.record_store import Place, Where
from toolhub_service.stores.sqlite.writer import (
    Change,
    FileTooNew,
    FileWriter,
    QueuedChange,
    Watch,
    connect,
    connect_to_read,
    unavailable,
)

I = TypeVar("I")  # noqa: E741 — an item
A = TypeVar("A")
T = TypeVar("T")

# Pages of a table: newest first, and how many rows match in all.


def page(
    connection: sqlite3.Connection,
    where: Where,
    rows: str,
    table: str,
    order: tuple[str, ...],
    after: Place | None,
    limit: int,
) -> tuple[list[Any], int]:
    """Return a page and the count.

    `rows` is a SELECT over `table` without its WHERE; `order` the columns of the cursor.
    """
    matching, parameters = _terms(where)
    for column, passes in where.checked.items():
        if passes is None:
            continue
        # A loose index scan from value to value, instead of over all rows.
        values = [value for (value,) in connection.execute(_VALUES.format(table=table, column=column)) if passes(value)]
        matching += f" AND {column} IN (SELECT value FROM json_each(?))"  # noqa: S608 — fixed names
        parameters.append(orjson.dumps(values).decode())
    (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {matching}", parameters).fetchone()  # noqa: S608 — fixed names
    columns, places = ", ".join(order), ", ".join("?" * len(order))
    behind = "" if after is None else f" AND ({columns}) < ({places})"
    newest_first = ", ".join(f"{column} DESC" for column in order)
    sql = f"{rows} WHERE {matching}{behind} ORDER BY {newest_first} LIMIT ?"
    return connection.execute(sql, [*parameters, *(after or ()), limit]).fetchall(), count


_VALUES: Final = """
WITH RECURSIVE found AS (
    SELECT min({column}) AS value FROM {table}
    UNION ALL
    SELECT (SELECT min(t.{column}) FROM {table} t WHERE t.{column} > found.value) FROM found WHERE value IS NOT NULL)
SELECT value FROM found WHERE value IS NOT NULL"""


def _terms(where: Where) -> tuple[str, list[Any]]:
    """Return the filter as a WHERE clause, and its parameters."""
    globs = {column: glob for column, glob in where.like.items() if any(sign in glob for sign in "*?[")}
    terms: list[tuple[str, Sequence[str]]] = [(f"matches_glob({column}, ?)", [glob]) for column, glob in globs.items()]
    # A name is found by an index; a glob reads every row that the other terms leave.
    for column, value in (*where.equals.items(), *where.like.items()):
        if value and column not in globs:
            terms.append((f"{column} = ?", [value]))
    for column, values in where.among.items():
        if values:
            terms.append((f"{column} IN ({', '.join('?' * len(values))})", sorted(values)))
    return " AND ".join(term for term, _ in terms) or "1", [value for _, values in terms for value in values]


# Many rows a statement: each step of SQLite releases the GIL, and the event loop may then keep it for milliseconds, so
# a group of changes takes a few statements and not a few for each change.

_CHUNKS: Final = (256, 64, 16, 4, 1)


def insert(connection: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], *, on_conflict: str = "") -> None:
    """Insert the rows; `into` is `table (columns)`, `on_conflict` the rest of the statement. Raises sqlite3.Error."""
    done = 0
    for size in _CHUNKS:
        while len(rows) - done >= size:
            chunk = rows[done : done + size]
            done += size
            connection.execute(
                _insert(into, size, len(chunk[0]), on_conflict), [column for row in chunk for column in row]
            )


def look_up(connection: sqlite3.Connection, table: str, columns: str, key: str, keys: Iterable[str]) -> list[list[Any]]:
    """Return the `columns` (no blobs) of the rows with these keys, in one step however many there are."""
    sql = (
        f"SELECT json_group_array(json_array({columns})) FROM {table} "  # noqa: S608 — fixed names
        f"WHERE {key} IN (SELECT value FROM json_each(?))"
    )
    (found,) = connection.execute(sql, (orjson.dumps(list(keys)).decode(),)).fetchone()
    rows: list[list[Any]] = orjson.loads(found)
    return rows


@lru_cache(maxsize=256)
def _insert(into: str, rows: int, columns: int, on_conflict: str) -> str:
    one = "(" + ", ".join("?" * columns) + ")"
    return f"INSERT INTO {into} VALUES {', '.join([one] * rows)} {on_conflict}"  # noqa: S608 — fixed names


# News of one append-only table of the file, in its order, whichever process appended.
#
# Rows that this process committed are delivered from memory while no other process has written; otherwise the file is
# read from the last row delivered, which returns both in order. Row numbers are AUTOINCREMENT: never reused, and
# without a gap between the commits of others.

_AT_ONCE: Final = 500


class Feed(Generic[T]):
    """Implements `Watch` for the one listener of a store."""

    def __init__(
        self, file: SqliteFile, table: str, columns: str, decode: Callable[[Sequence[Any]], T], *, gap: T
    ) -> None:
        """`gap` is delivered for an entry that this version cannot read."""
        self._file = file
        self._table = table
        self._next = f"SELECT row, {columns} FROM {table} WHERE row > ? ORDER BY row LIMIT {_AT_ONCE}"  # noqa: S608 — fixed names
        self._decode = decode
        self._gap = gap
        self._on_event: Callable[[T], None] | None = None
        self._is_watching = False
        self._row = 0
        self._own: list[T] = []

    def listen(self, on_event: Callable[[T], None]) -> None:
        """Register the listener, which runs on the loop. Call before `start`."""
        self._on_event = on_event

    async def start(self) -> None:
        """Deliver news from now on, if there is a listener."""
        if self._on_event is not None:
            self._row = await self._file.read(self._last_row)
            self._is_watching = True
            self._file.watch(self)

    def close(self) -> None:
        self._is_watching = False
        self._file.unwatch(self)

    # In the writer's thread

    def added(self, news: Iterable[T]) -> None:
        """Note rows that this process has committed, one for each news; called in the order of rows."""
        if self._is_watching:
            self._own.extend(news)

    def after_commits(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        own, self._own = self._own, []
        if foreign:
            own = self._read(connection)
        else:
            self._row += len(own)
        return partial(_each, self._on_event, own) if own and self._on_event is not None else None

    def _read(self, connection: sqlite3.Connection) -> list[T]:
        news: list[T] = []
        last = self._row
        while rows := connection.execute(self._next, (last,)).fetchall():
            for last, *columns in rows:  # noqa: B007 — the next query begins after it
                try:
                    news.append(self._decode(columns))
                except UnreadableRecord:
                    news.append(self._gap)
        self._row = last
        return news

    def _last_row(self, connection: sqlite3.Connection) -> int:
        """Return the number of the table's latest row, even if that was removed."""
        found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (self._table,)).fetchone()
        return found[0] if found else 0


def _each(on_event: Callable[[T], None], news: list[T]) -> None:
    for one in news:
        on_event(one)


_DAMAGED = (
    "It is damaged: restore it from a backup; or move it away with its -wal and -shm, and what it held is forgotten: "
    "open jobs and approvals, idempotency keys, pins."
)


class SqliteFile:
    """Start it before the stores that share it; close it after them."""

    def __init__(
        self,
        path: Path,
        *,
        readers: int = 2,
        busy_timeout_s: float = 5.0,
        poll_s: float = 0.03,
        connecting: Callable[..., sqlite3.Connection] = connect,
    ) -> None:
        """`poll_s`: how often to look for other processes' changes while somebody listens.

        `connecting` replaces `connect` for a file with another layout.
        """
        self.path = path
        self._connecting = connecting
        self._readers = readers
        self._busy_timeout_s = busy_timeout_s
        self._poll_s = poll_s
        self._writer: FileWriter | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []

    async def start(self) -> None:
        """Make or migrate the file. Raises ToolFailure TOOL_UNAVAILABLE with a message for the operator."""
        try:
            opened = await asyncio.to_thread(self._connect)
        except FileTooNew as error:
            raise self._cannot_start(f"{error}. Start the newer hub, or move the file away.") from None
        except (sqlite3.OperationalError, OSError) as error:
            raise self._cannot_start(f"{error}. Look at the folder, its owner and the disk.") from None
        except sqlite3.Error as error:
            raise self._cannot_start(f"{error}. {_DAMAGED}") from None
        self._reading = ThreadPoolExecutor(self._readers, "hub-db-reader")
        self._writer = FileWriter(self._connect, opened, asyncio.get_running_loop(), self._poll_s)

    async def close(self) -> None:
        """Make the changes that are queued, then close the file."""
        writer, self._writer = self._writer, None
        reading, self._reading = self._reading, None
        if writer is not None and reading is not None:
            await asyncio.to_thread(writer.stop)
            await asyncio.to_thread(reading.shutdown)
            for connection in self._opened:
                connection.close()
            self._opened.clear()
            self._own = threading.local()

    async def change(self, change: Change[I, A], item: I) -> A:
        """Return the change's answer, once the change is durable.

        Raises ToolFailure TOOL_UNAVAILABLE, and what the change raises.
        """
        if self._writer is None:
            raise unavailable(cause="closed")
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._writer.put(QueuedChange(change, item, answer))
        return await answer

    async def read(self, find: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `find` returns for one snapshot of the file. Raises ToolFailure TOOL_UNAVAILABLE."""
        if self._reading is None:
            raise unavailable(cause="closed")
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read, find)

    def watch(self, watch: Watch) -> None:
        """Look for news, first at once, until `unwatch`; does nothing when closed."""
        if self._writer is not None:
            self._writer.watch(watch)

    def unwatch(self, watch: Watch) -> None:
        if self._writer is not None:
            self._writer.unwatch(watch)

    def _connect(self) -> sqlite3.Connection:
        return self._connecting(self.path, busy_timeout_s=self._busy_timeout_s)

    def _read(self, find: Callable[[sqlite3.Connection], T]) -> T:
        """Run `find` in a reader's thread."""
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return find(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._drop_connection()
            raise unavailable(error) from None
        except UnreadableRecord:
            raise unavailable(cause="record") from None

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = connect_to_read(self.path, busy_timeout_s=self._busy_timeout_s)
            self._opened.append(connection)
        return connection

    def _drop_connection(self) -> None:
        """Drop this thread's connection, so that its next read opens a new one."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is not None:
            self._own.connection = None
            self._opened.remove(connection)
            connection.close()

    def _cannot_start(self, why: str) -> ToolFailure:
        message = f"The hub's own store {self.path} cannot be opened: {why}"
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, component="store", cause="start")
