"""Records in PostgreSQL, shared by all hubs of one schema: `RecordStore` for any `Table`.

Each table has the columns of the rows and `record`. A writer holds the table's lock until the commit (`TableWriter`),
so that each change is one statement that decides by the rows it finds. A record has expired when both the hub's clock
and the server's say so: a hub whose clock is ahead expires nothing for the others.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Generic, TypeVar

import orjson

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.pin import Pin
from toolhub_service.stores.codec import UnreadableRecord, readable
from toolhub_service.stores.declared_table import postgres_statements
from toolhub_service.stores.postgres.column_text import escape_text, escape_texts, unescape_text
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.writer import TableWriter
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
    Table,
    Where,
)

R = TypeVar("R")
# Stable within a statement, so that an index is used.
SERVER_UNIX_MS: Final = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
# Records that have expired by both clocks.
_EXPIRED: Final = f"expires_at_unix_ms {{}} least(%s, {SERVER_UNIX_MS})"
# A NOTIFY payload has less than 8000 bytes: a record is announced in parts, which the server keeps together and in
# order.
_PART: Final = 7_900
_PAYLOAD: Final = re.compile(r"\d+ (?P<left>\d+) (?P<part>[A-Za-z0-9+/=]*)")
_ANNOUNCED: Final = """announced AS (
                SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload WHERE EXISTS (SELECT FROM changed))"""


class PostgresRecords(Generic[R]):
    """The link is closed by its owner, after the store."""

    def __init__(self, link: PostgresLink, table: Table[R], *, is_announced: bool = False) -> None:
        """`is_announced`: whether changes are announced to listeners."""
        link.declare(postgres_statements(table))
        self._link = link
        self._table = table
        self._is_announced = is_announced
        self._writer = TableWriter(link, table.name)
        self._keys = ", ".join(table.key)
        self._is_key = " AND ".join(f"{column} = %s" for column in table.key)
        version = "version" if table.has_version else "0"
        self._columns = f"{self._keys}, {version}, record"
        self._kept = f"SELECT {self._columns} FROM {table.name}"  # noqa: S608 — fixed names
        self._given = f"given AS MATERIALIZED (SELECT * FROM json_populate_recordset(NULL::{table.name}, %s::json))"  # noqa: S608 — fixed names
        self._counted = f"""counted AS (
            INSERT INTO record_revisions SELECT '{table.name}', 1 WHERE EXISTS (SELECT FROM changed)
            ON CONFLICT (name) DO UPDATE SET revision = record_revisions.revision + 1)"""  # noqa: S608 — fixed names
        self._numbers = count()
        self._unlisten: Callable[[], None] | None = None

    async def create(self, record: R) -> R | None:
        name, unique = self._table.name, self._table.unique
        existing = f"SELECT kept.* FROM {name} AS kept JOIN given USING ({unique}) WHERE kept.is_open LIMIT 1"  # noqa: S608 — fixed names
        rows = await self._writer.run(
            f"""
            WITH {self._given},
            existing AS MATERIALIZED ({existing if unique else f"SELECT * FROM {name} WHERE FALSE"}),
            changed AS (
                INSERT INTO {name} SELECT * FROM given WHERE NOT EXISTS (SELECT FROM existing)
                ON CONFLICT DO NOTHING RETURNING 1),
            {_ANNOUNCED}
            SELECT {self._columns}, (SELECT count(*) FROM announced)
            FROM (SELECT 1) AS one LEFT JOIN existing ON TRUE""",  # noqa: S608 — fixed names
            (await self._encode_records([record]), *self._statement_of([record])),
        )
        *found, _ = rows[0]
        return None if found[-1] is None else self._table.read(_to_kept(found))

    async def put(self, records: Sequence[R]) -> bool:
        name = self._table.name
        row = self._table.row(records[0])
        changing = ", ".join(
            f"{column} = excluded.{column}" for column in (*row, "record") if column not in self._table.key
        )
        rows = await self._writer.run(
            f"""
            WITH {self._given},
            overtaken AS MATERIALIZED (
                SELECT FROM given LEFT JOIN {name} AS kept USING ({self._keys})
                WHERE coalesce(kept.version, 0) <> given.version - 1),
            changed AS (
                INSERT INTO {name} SELECT * FROM given WHERE NOT EXISTS (SELECT FROM overtaken)
                ON CONFLICT ({self._keys}) DO UPDATE SET {changing} RETURNING 1),
            {self._counted}, {_ANNOUNCED}
            SELECT EXISTS (SELECT FROM changed), (SELECT count(*) FROM announced)""",  # noqa: S608 — fixed names
            (await self._encode_records(records), *self._statement_of(records)),
        )
        return bool(rows[0][0])

    async def get(self, key: Key) -> R | None:
        rows = await self._link.rows(f"{self._kept} WHERE {self._is_key}", *map(escape_text, key))
        return self._table.read(_to_kept(rows[0])) if rows else None

    async def find(self, column: str, value: str) -> Sequence[R]:
        rows = await self._link.rows(f"{self._kept} WHERE {column} = %s", escape_text(value))
        return await asyncio.to_thread(lambda: self._table.read_all(map(_to_kept, rows)))

    async def page(self, where: Where, *, after: Place | None, limit: int) -> tuple[Sequence[R], int]:
        rows, count = await self._link.page(self._kept, self._table.name, self._table.order, where, after, limit)
        return await self._readable(rows), count

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[R]:
        is_open = "is_open AND " if self._table.ends else ""
        order = f"ORDER BY expires_at_unix_ms, {self._keys} LIMIT %s"
        rows = await self._link.rows(f"{self._kept} WHERE {is_open}{_EXPIRED.format('<=')} {order}", now_unix_ms, limit)
        return await self._readable(rows)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        is_open = "NOT is_open AND " if self._table.ends else ""
        name, order = self._table.name, f"ORDER BY expires_at_unix_ms, {self._keys} LIMIT %s"
        return await self._remove(
            f"({self._keys}) IN (SELECT {self._keys} FROM {name} WHERE {is_open}{_EXPIRED.format('<')} {order})",  # noqa: S608 — fixed names
            before_unix_ms,
            limit,
        )

    async def remove(self, key: Key, version: int = 0) -> bool:
        name, shared = self._table.name, self._table.shared
        is_it, values = (f"{self._is_key} AND version = %s", (version,)) if version else (self._is_key, ())
        # The statement still sees the rows that it removes.
        others = f"SELECT FROM {name} AS other JOIN changed USING ({shared}) WHERE other.ctid <> changed.ctid"
        rows = await self._writer.run(
            f"""
            WITH changed AS (DELETE FROM {name} WHERE {is_it} RETURNING ctid, *), {self._counted}
            SELECT {f"NOT EXISTS ({others})" if shared else "TRUE"} FROM changed""",  # noqa: S608 — fixed names
            (*map(escape_text, key), *values),
        )
        return bool(rows and rows[0][0])

    async def remove_all(self, column: str, value: str) -> int:
        return await self._remove(f"{column} = %s", escape_text(value))

    async def totals(self, value: str) -> tuple[int, int]:
        by, summed = self._table.total
        ((number, total),) = await self._link.rows(
            f"SELECT count(*), coalesce(sum({summed}), 0)::bigint FROM {self._table.name} WHERE {by} = %s",  # noqa: S608 — fixed names
            escape_text(value),
        )
        return number, total

    async def all_totals(self) -> Sequence[tuple[str, int, int]]:
        by, summed = self._table.total
        return await self._link.rows(
            f"SELECT {by}, count(*), coalesce(sum({summed}), 0)::bigint FROM {self._table.name} GROUP BY {by}"  # noqa: S608 — fixed names
        )

    async def revision(self) -> int:
        rows = await self._link.rows("SELECT revision FROM record_revisions WHERE name = %s", self._table.name)
        return rows[0][0] if rows else 0

    def listen(self, on_event: Callable[[R | None], None]) -> None:
        parts: list[str] = []

        def on_payload(payload: str | None) -> None:
            if payload is None:
                parts.clear()
                on_event(None)
            elif news := _PAYLOAD.fullmatch(payload):
                parts.append(news["part"])
                if news["left"] == "0":
                    on_event(self._change_of("".join(parts)))
                    parts.clear()

        self._unlisten = self._link.listen(self._table.name, on_payload)

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        await self._writer.close()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    async def _encode_records(self, records: Sequence[R]) -> str:
        """Return JSON, which the server reads as rows of the table."""

        def encode_rows() -> str:
            rows = (({**self._table.row(record)}, self._table.encode(record)) for record in records)
            return orjson.dumps([escape_texts(row) | {"record": rf"\x{data.hex()}"} for row, data in rows]).decode()

        # Many may be large, and would block the event loop.
        return encode_rows() if len(records) == 1 else await asyncio.to_thread(encode_rows)

    def _statement_of(self, records: Sequence[R]) -> tuple[str, list[str]]:
        """Return the channel and its payloads, which are empty if changes are not announced."""
        return self._link.channel(self._table.name), [
            payload
            for record in records
            if self._is_announced
            for payload in self._payloads(self._table.encode(record))
        ]

    def _payloads(self, record: bytes) -> list[str]:
        # The number distinguishes equal parts: the server sends equal payloads of a transaction only once.
        whole, number = b64encode(record).decode(), next(self._numbers)
        last = (len(whole) - 1) // _PART
        return [f"{number} {last - at} {whole[at * _PART : (at + 1) * _PART]}" for at in range(last + 1)]

    def _change_of(self, whole: str) -> R | None:
        """Return the record; None when it cannot be read, upon which listeners read the store."""
        try:
            return self._table.decode(b64decode(whole))
        except (UnreadableRecord, ValueError):
            return None

    async def _remove(self, which: str, *values: Any) -> int:
        """Delete the matching records; return how many there were."""
        rows = await self._writer.run(
            f"""
            WITH changed AS (DELETE FROM {self._table.name} WHERE {which} RETURNING 1), {self._counted}
            SELECT count(*) FROM changed""",  # noqa: S608 — fixed names
            values,
        )
        return int(rows[0][0])

    async def _readable(self, rows: Sequence[Sequence[Any]]) -> list[R]:
        return await asyncio.to_thread(readable, map(_to_kept, rows), self._table.read) if rows else []


def _to_kept(columns: Sequence[Any]) -> Kept:
    *key, version, record = columns
    return Kept(tuple(map(unescape_text, key)), version, record)


class PostgresApprovals(Approvals):
    def __init__(self, link: PostgresLink) -> None:
        super().__init__(PostgresRecords[Approval](link, APPROVALS, is_announced=True))


class PostgresArtifacts(Artifacts):
    def __init__(self, link: PostgresLink) -> None:
        super().__init__(PostgresRecords[Artifact](link, ARTIFACTS))


class PostgresPins(Pins):
    def __init__(self, link: PostgresLink) -> None:
        super().__init__(PostgresRecords[Pin](link, PINS))
