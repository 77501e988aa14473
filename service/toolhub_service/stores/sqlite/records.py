"""Records in the hub's own file, shared by its processes: `RecordStore` for any `Table`.

A table of the file has the columns of the rows and `record`. Every change is also logged in a second table if there may
be listeners, and counted in a third if the revision is used.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.codec import readable
from toolhub_service.stores.declared_table import sqlite_statements
from toolhub_service.stores.record_store import (
    APPROVALS,
    ARTIFACTS,
    PINS,
    Approvals,
    Artifacts,
    Kept,
    Key,
    Pins,
    Place,
    Row,
    Table,
    Where,
)
from toolhub_service.stores.sqlite.feed import Feed
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.pages import read_page
from toolhub_service.stores.sqlite.rows import insert
from toolhub_service.stores.sqlite.writer import Change, one_by_one

R = TypeVar("R")


class _Written(NamedTuple):
    """A record ready to be written."""

    record: Any
    row: Row
    data: bytes


class SqliteRecords(Generic[R]):
    """The file is started before and closed after it."""

    def __init__(self, file: SqliteFile, table: Table[R], *, changes: str = "", revision: str = "") -> None:
        """`changes` and `revision` name these two tables of the file; empty if there is none."""
        file.declare(sqlite_statements(table))
        self._file = file
        self._table = table
        self._changes = changes
        self._revision = revision
        self._keys = ", ".join(table.key)
        self._is_key = " AND ".join(f"{column} = ?" for column in table.key)
        version = "version" if table.has_version else "0"
        self._kept = f"SELECT {self._keys}, {version}, record FROM {table.name}"  # noqa: S608 — fixed names
        self._open = "is_open = 1 AND " if table.ends else ""
        self._feed: Feed[R | None] = Feed(file, changes, "record", lambda columns: table.decode(columns[0]), gap=None)
        self._creating: Change[_Written, R | None] = Change(one_by_one(self._create), self._announce_new)
        self._putting: Change[Sequence[_Written], bool] = Change(one_by_one(self._put), self._put_done)
        self._forgetting: Change[tuple[int, int], int] = Change(one_by_one(self._forget))
        self._removing: Change[tuple[Key, int], bool] = Change(one_by_one(self._remove))
        self._removing_all: Change[tuple[str, str], int] = Change(one_by_one(self._remove_all))

    async def create(self, record: R) -> R | None:
        return await self._file.change(self._creating, self._encode_record(record))

    async def put(self, records: Sequence[R]) -> bool:
        if len(records) == 1:
            written = [self._encode_record(records[0])]
        else:  # many may be large, and would block the event loop
            written = await asyncio.to_thread(lambda: [self._encode_record(record) for record in records])
        return await self._file.change(self._putting, written)

    async def get(self, key: Key) -> R | None:
        return await self._file.read(partial(self._one, rest=f"WHERE {self._is_key}", parameters=key))

    async def find(self, column: str, value: str) -> Sequence[R]:
        rest = f"WHERE {column} = ?"
        return await self._file.read(lambda connection: self._table.read_all(self._select(connection, rest, (value,))))

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        return await self._file.read(partial(self._page, where=where, after=after, limit=limit))

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        rest = f"WHERE {self._open}expires_at_unix_ms <= ? ORDER BY expires_at_unix_ms, {self._keys} LIMIT ?"
        return await self._file.read(
            lambda connection: readable(self._select(connection, rest, (now_unix_ms, limit)), self._table.read)
        )

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await self._file.change(self._forgetting, (before_unix_ms, limit))

    async def remove(self, key: Key, version: int = 0) -> bool:
        return await self._file.change(self._removing, (key, version))

    async def remove_all(self, column: str, value: str) -> int:
        return await self._file.change(self._removing_all, (column, value))

    async def totals(self, value: str) -> tuple[int, int]:
        by, summed = self._table.total
        sql = f"SELECT count(*), coalesce(sum({summed}), 0) FROM {self._table.name} WHERE {by} = ?"  # noqa: S608 — fixed
        count, total = await self._file.read(lambda connection: connection.execute(sql, (value,)).fetchone())
        return count, total

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        by, summed = self._table.total
        sql = f"SELECT {by}, count(*), coalesce(sum({summed}), 0) FROM {self._table.name} GROUP BY {by}"  # noqa: S608 — fixed
        return await self._file.read(lambda connection: connection.execute(sql).fetchall())

    async def revision(self) -> int:
        sql = f"SELECT revision FROM {self._revision}"  # noqa: S608 — fixed names
        (revision,) = await self._file.read(lambda connection: connection.execute(sql).fetchone())
        return int(revision)

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        self._feed.listen(on_event)

    async def start(self) -> None:
        await self._feed.start()

    async def close(self) -> None:
        self._feed.close()

    def _encode_record(self, record: R) -> _Written:
        return _Written(record, self._table.row(record), self._table.encode(record))

    # In the writer's thread

    def _create(self, connection: sqlite3.Connection, wanted: _Written) -> R | None:
        unique = self._table.unique
        if unique:
            rest, value = f"WHERE {unique} = ? AND is_open = 1", (wanted.row[unique],)
            if (existing := self._one(connection, rest, value)) is not None:
                return existing
        self._insert(connection, [wanted])
        return None

    def _put(self, connection: sqlite3.Connection, batch: Sequence[_Written]) -> bool:
        keys = [[*self._table.key_of(each.row), each.row["version"]] for each in batch]
        if connection.execute(self._overtaken(), (orjson.dumps(keys).decode(),)).fetchone() is not None:
            return False
        changing = [column for column in (*batch[0].row, "record") if column not in self._table.key]
        changes = ", ".join(f"{column} = excluded.{column}" for column in changing)
        self._insert(connection, batch, on_conflict=f"ON CONFLICT ({self._keys}) DO UPDATE SET {changes}")
        self._count_change(connection)
        return True

    def _overtaken(self) -> str:
        """Select one of the keys, given as JSON, whose stored version is not the one before."""
        key = self._table.key
        same = " AND ".join(f"{column} = json_extract(value, '$[{at}]')" for at, column in enumerate(key))
        return (
            f"SELECT 1 FROM json_each(?) AS wanted LEFT JOIN {self._table.name} ON {same} "  # noqa: S608 — fixed names
            f"WHERE coalesce(version, 0) != json_extract(value, '$[{len(key)}]') - 1 LIMIT 1"
        )

    def _insert(self, connection: sqlite3.Connection, batch: Sequence[_Written], on_conflict: str = "") -> None:
        into = f"{self._table.name} ({', '.join(batch[0].row)}, record)"
        insert(connection, into, [(*each.row.values(), each.data) for each in batch], on_conflict=on_conflict)
        if self._changes:
            logged = [(*self._table.key_of(each.row), each.data) for each in batch]
            insert(connection, f"{self._changes} ({self._keys}, record)", logged)

    def _forget(self, connection: sqlite3.Connection, bounds: tuple[int, int]) -> int:
        (key,) = self._table.key
        expired = connection.execute(
            f"SELECT {key} FROM {self._table.name} WHERE is_open = 0 AND expires_at_unix_ms < ? "  # noqa: S608 — fixed
            f"ORDER BY expires_at_unix_ms, {key} LIMIT ?",
            bounds,
        ).fetchall()
        ids = orjson.dumps([name for (name,) in expired]).decode()
        for table in filter(None, (self._changes, self._table.name)):
            connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))", (ids,))  # noqa: S608 — fixed
        return len(expired)

    def _remove(self, connection: sqlite3.Connection, which: tuple[Key, int]) -> bool:
        name, shared = self._table.name, self._table.shared
        key, version = which
        is_it, values = (f"{self._is_key} AND version = ?", (*key, version)) if version else (self._is_key, key)
        removed = connection.execute(f"DELETE FROM {name} WHERE {is_it} RETURNING {shared or '0'}", values)  # noqa: S608 — fixed
        row = removed.fetchone()
        removed.close()
        if row is None:
            return False
        self._count_change(connection)
        if not shared:
            return True
        return connection.execute(f"SELECT 1 FROM {name} WHERE {shared} = ? LIMIT 1", row).fetchone() is None  # noqa: S608 — fixed

    def _remove_all(self, connection: sqlite3.Connection, which: tuple[str, str]) -> int:
        column, value = which
        removed = connection.execute(f"DELETE FROM {self._table.name} WHERE {column} = ?", (value,)).rowcount  # noqa: S608 — fixed
        if removed:
            self._count_change(connection)
        return removed

    def _count_change(self, connection: sqlite3.Connection) -> None:
        if self._revision:
            connection.execute(f"UPDATE {self._revision} SET revision = revision + 1")  # noqa: S608 — fixed names

    def _announce_new(self, wanted: Sequence[_Written], existing: Sequence[R | None]) -> None:
        self._feed.note_own_rows(each.record for each, other in zip(wanted, existing, strict=True) if other is None)

    def _put_done(self, batches: Sequence[Sequence[_Written]], done: Sequence[bool]) -> None:
        put = (batch for batch, was_put in zip(batches, done, strict=True) if was_put)
        self._feed.note_own_rows(each.record for batch in put for each in batch)

    # In a reader's thread, or the writer's

    def _select(self, connection: sqlite3.Connection, rest: str, parameters: Sequence[Any]) -> list[Kept]:
        return [self._to_kept(row) for row in connection.execute(f"{self._kept} {rest}", parameters)]

    def _one(self, connection: sqlite3.Connection, rest: str, parameters: Sequence[Any]) -> R | None:
        found = self._select(connection, rest, parameters)
        return self._table.read(found[0]) if found else None

    def _page(
        self, connection: sqlite3.Connection, where: Where, after: Place | None, limit: int
    ) -> tuple[list[R], int]:
        table, order = self._table.name, self._table.order
        rows, count = read_page(connection, where, rows=self._kept, table=table, order=order, after=after, limit=limit)
        return readable(map(self._to_kept, rows), self._table.read), count

    def _to_kept(self, row: Sequence[Any]) -> Kept:
        *key, version, record = row
        return Kept(tuple(key), version, record)


class SqliteApprovals(Approvals):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(SqliteRecords[Approval](file, APPROVALS, changes="approval_changes"))


class SqliteArtifacts(Artifacts):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(SqliteRecords[Artifact](file, ARTIFACTS))


class SqlitePins(Pins):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(SqliteRecords[Pin](file, PINS, revision="pin_revision"))
