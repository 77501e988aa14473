"""Remembered items in their own SQLite file, which is created when something is first remembered.

They have their own file because forgotten content must leave it: SQLite overwrites deleted rows (`secure_delete`), the
write-ahead log is emptied after each removal, and the next tidying rewrites the file, because moving rows between pages
leaves copies in the gaps. The hub's other records do not pay for that, nor its start for the opening.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.memory import MemoryQuota
from toolhub_service.domain.storage import disk_full
from toolhub_service.search.item_index import Posting, Term
from toolhub_service.stores.items import ItemRow, Items, Lookup, run_lookup
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.migrations import Migrations
from toolhub_service.stores.sqlite.rows import insert
from toolhub_service.stores.sqlite.writer import DISK_FULL, Change, connect, one_by_one, unavailable

T = TypeVar("T")

_ITEMS: Final = (
    """CREATE TABLE memory_items (
        number INTEGER PRIMARY KEY AUTOINCREMENT, item_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, terms BLOB NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX memory_items_expiring ON memory_items (expires_at_unix_ms) WHERE expires_at_unix_ms > 0",
    """CREATE TABLE memory_postings (
        term INTEGER NOT NULL, number INTEGER NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (term, number)
        ) WITHOUT ROWID""",
    "CREATE TABLE memory_terms (term INTEGER PRIMARY KEY, items INTEGER NOT NULL)",
    """CREATE TABLE memory_usage (
        owner TEXT PRIMARY KEY, items INTEGER NOT NULL, size_bytes INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE memory_removed (items INTEGER NOT NULL)",
    "INSERT INTO memory_removed VALUES (0)",
)
MIGRATIONS: Final[Migrations] = (_ITEMS,)
"""Each entry migrates the file from version n to n + 1; a released one is never changed."""
# Rewriting the file blocks other writers while it is copied.
_BUSY_TIMEOUT_S: Final = 30.0
# The pause before the next rewrite, as a multiple of the last one's duration.
_REST: Final = 50.0


def connect_items(path: Path, *, busy_timeout_s: float, declared: Sequence[str] = ()) -> sqlite3.Connection:
    """Like `connect`, for the file of the items; deleted content is overwritten."""
    connection = connect(path, busy_timeout_s=busy_timeout_s, migrations=MIGRATIONS, declared=declared)
    connection.execute("PRAGMA secure_delete = 1")
    return connection


class _Adding(NamedTuple):
    row: ItemRow
    quota: MemoryQuota


class _Tables:
    """Implements `ItemTables`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: SqliteFile | None = None
        self._opening = asyncio.Lock()
        self._tidy_after_s = 0.0

    async def add(self, row: ItemRow, quota: MemoryQuota) -> tuple[int, int]:
        try:
            return await (await self._open_file()).change(_ADD, _Adding(row, quota))
        except ToolFailure as failure:
            if failure.error.details.get("cause") != DISK_FULL:
                raise
            raise disk_full() from failure

    async def run(self, lookup: Lookup[T]) -> T:
        if await self._is_there():
            file = await self._open_file()
            return await file.read(
                lambda connection: run_lookup(lookup, lambda ask: _READS[ask.what](connection, *ask.given))
            )
        return run_lookup(lookup, lambda ask: _NOTHING[ask.what])

    async def usage(self, owner: str | None) -> Sequence[tuple[str, int]]:
        if not await self._is_there():
            return ()
        sql = "SELECT owner, size_bytes FROM memory_usage"
        where = ("", ()) if owner is None else (" WHERE owner = ?", (owner,))
        return await (await self._open_file()).read(partial(_read_rows, sql=sql + where[0], given=where[1]))

    async def remove(self, numbers: Collection[int]) -> int:
        removed = await (await self._open_file()).change(_REMOVE, tuple(numbers))
        # Overwritten content is still in the log. If a reader prevents emptying it, tidying does it later.
        with suppress(sqlite3.Error):
            await asyncio.to_thread(_empty_log, self._path)
        return removed

    async def find_expired(self, now_unix_ms: int, limit: int) -> Collection[int]:
        if not await self._is_there():
            return ()
        sql = "SELECT number FROM memory_items WHERE expires_at_unix_ms BETWEEN 1 AND ? LIMIT ?"
        expired = partial(_read_rows, sql=sql, given=(now_unix_ms, limit))
        return [number for (number,) in await (await self._open_file()).read(expired)]

    async def tidy(self) -> None:
        began_s = time.monotonic()
        if began_s < self._tidy_after_s or not await self._is_there():
            return
        ((removed,),) = await (await self._open_file()).read(
            partial(_read_rows, sql="SELECT items FROM memory_removed")
        )
        if not removed:
            return
        try:
            await asyncio.to_thread(_write_anew, self._path)
        except sqlite3.Error as error:
            raise unavailable(error) from None
        ended_s = time.monotonic()
        self._tidy_after_s = ended_s + _REST * (ended_s - began_s)

    async def start(self) -> None:
        """Do nothing: the file is opened when it is first needed."""

    async def close(self) -> None:
        async with self._opening:
            file, self._file = self._file, None
            if file is not None:
                await file.close()

    async def _is_there(self) -> bool:
        """Return whether anything was ever remembered."""
        return self._file is not None or await asyncio.to_thread(self._path.exists)

    async def _open_file(self) -> SqliteFile:
        async with self._opening:
            if self._file is None:
                file = SqliteFile(self._path, busy_timeout_s=_BUSY_TIMEOUT_S, connecting=connect_items)
                try:
                    await file.start()
                except ToolFailure as failure:
                    # The message names the path, is for the operator, and is complete: no trace is needed.
                    logging.getLogger("toolhub").error("%s", failure.error.message)  # noqa: TRY400
                    raise unavailable(cause="start") from None
                self._file = file
            return self._file


class SqliteItems(Items):
    """Remembered items in a SQLite file: its folder must exist, and no other store uses it."""

    def __init__(self, path: Path) -> None:
        super().__init__(_Tables(path))


def _json(values: Collection[int]) -> str:
    return orjson.dumps(list(values)).decode()


# In a reader's thread


def _read_rows(connection: sqlite3.Connection, sql: str, given: Sequence[Any] = ()) -> list[Any]:
    return connection.execute(sql, given).fetchall()


def _number(connection: sqlite3.Connection, item_id: str) -> int:
    rows = _read_rows(connection, "SELECT number FROM memory_items WHERE item_id = ?", (item_id,))
    return int(rows[0][0]) if rows else 0


def _records(connection: sqlite3.Connection, numbers: Collection[int]) -> Mapping[int, bytes]:
    sql = "SELECT number, record FROM memory_items WHERE number IN (SELECT value FROM json_each(?))"
    return dict(_read_rows(connection, sql, (_json(numbers),)))


def _counts(connection: sqlite3.Connection, terms: Collection[Term]) -> Mapping[Term, int]:
    sql = "SELECT term, items FROM memory_terms WHERE term IN (SELECT value FROM json_each(?))"
    return dict(_read_rows(connection, sql, (_json(terms),)))


def _newest(connection: sqlite3.Connection, wanted: Sequence[tuple[Term, int]], before: int) -> list[Posting]:
    sql = "SELECT term, number, weight FROM memory_postings WHERE term = ? AND number < ? ORDER BY number DESC LIMIT ?"
    postings: list[Posting] = []
    for term, most in wanted:
        postings += _read_rows(connection, sql, (term, before or 2**62, most))
    return postings


def _among(connection: sqlite3.Connection, terms: Collection[Term], numbers: Collection[int]) -> list[Posting]:
    sql = """SELECT term, number, weight FROM json_each(?) AS t CROSS JOIN json_each(?) AS n
        CROSS JOIN memory_postings ON term = t.value AND number = n.value"""
    return _read_rows(connection, sql, (_json(terms), _json(numbers)))


_READS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": _number,
    "records": _records,
    "counts": _counts,
    "newest": _newest,
    "among": _among,
}
_NOTHING: Final[Mapping[str, Any]] = {"number": 0, "records": {}, "counts": {}, "newest": (), "among": ()}


# In the writer's thread


def _add(connection: sqlite3.Connection, adding: _Adding) -> tuple[int, int]:
    (row, quota), size_bytes = adding, len(adding.row.record)
    kept = connection.execute("SELECT items, size_bytes FROM memory_usage WHERE owner = ?", (row.owner,)).fetchone()
    items, used_bytes = kept or (0, 0)
    usage = items + 1, used_bytes + size_bytes
    if usage[0] > quota.max_items or usage[1] > quota.max_bytes:
        return usage
    terms = struct.pack(f"<{len(row.terms)}q", *row.terms)
    values = (row.item_id, row.owner, row.expires_at_unix_ms, terms, row.record)
    into = "memory_items (item_id, owner, expires_at_unix_ms, terms, record)"
    number = connection.execute(f"INSERT INTO {into} VALUES (?, ?, ?, ?, ?)", values).lastrowid  # noqa: S608 — fixed
    insert(connection, "memory_postings", [(term, number, weight) for term, weight in row.terms.items()])
    once_more = "ON CONFLICT (term) DO UPDATE SET items = items + 1"
    insert(connection, "memory_terms", [(term, 1) for term in row.terms], on_conflict=once_more)
    connection.execute("INSERT OR REPLACE INTO memory_usage VALUES (?, ?, ?)", (row.owner, *usage))
    return usage


def _remove(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    sql = """DELETE FROM memory_items WHERE number IN (SELECT value FROM json_each(?))
        RETURNING number, owner, length(record), terms"""
    rows = connection.execute(sql, (_json(numbers),)).fetchall()
    for number, owner, size_bytes, packed in rows:
        terms = [term for (term,) in struct.iter_unpack("<q", packed)]
        connection.executemany(
            "DELETE FROM memory_postings WHERE term = ? AND number = ?", [(term, number) for term in terms]
        )
        connection.execute(
            "UPDATE memory_terms SET items = items - 1 WHERE term IN (SELECT value FROM json_each(?))", (_json(terms),)
        )
        connection.execute(
            "DELETE FROM memory_terms WHERE items = 0 AND term IN (SELECT value FROM json_each(?))", (_json(terms),)
        )
        connection.execute(
            "UPDATE memory_usage SET items = items - 1, size_bytes = size_bytes - ? WHERE owner = ?",
            (size_bytes, owner),
        )
    connection.execute("DELETE FROM memory_usage WHERE items = 0")
    connection.execute("UPDATE memory_removed SET items = items + ?", (len(rows),))
    return len(rows)


_ADD: Final[Change[_Adding, tuple[int, int]]] = Change(one_by_one(_add))
_REMOVE: Final[Change[Sequence[int], int]] = Change(one_by_one(_remove))


# In a thread, by their own connection


def _empty_log(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _write_anew(path: Path) -> None:
    """Rewrite the file without the gaps, which may hold copies of removed content."""
    with closing(connect_items(path, busy_timeout_s=_BUSY_TIMEOUT_S)) as connection:
        (seen,) = connection.execute("SELECT items FROM memory_removed").fetchone()
        connection.execute("VACUUM")
        connection.execute("UPDATE memory_removed SET items = items - ?", (seen,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
