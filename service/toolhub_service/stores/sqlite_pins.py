"""Pins in the hub's own file, shared by its processes. Records are written and read in threads: they may be large."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.stores.codec import encode_pin, readable
from toolhub_service.stores.codec_pins import KeptPin, are_distinct, pin_of, pins_of
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_file_pages import Where
from toolhub_service.stores.sqlite_file_rows import insert
from toolhub_service.stores.sqlite_file_writer import Change

_KEPT: Final = "SELECT source, tool, digest, version, record FROM pins"
_ORDER: Final = ("seen_at_unix_ms", "source", "tool", "digest")
_REPLACE: Final = (
    "ON CONFLICT (source, tool, digest) DO UPDATE SET version = excluded.version, state = excluded.state, "
    "seen_at_unix_ms = excluded.seen_at_unix_ms, record = excluded.record"
)
_OVERTAKEN: Final = """
    SELECT 1 FROM json_each(?) AS wanted LEFT JOIN pins
        ON source = json_extract(value, '$[0]') AND tool = json_extract(value, '$[1]')
        AND digest = json_extract(value, '$[2]')
    WHERE coalesce(version, 0) != json_extract(value, '$[3]') - 1 LIMIT 1"""
"""Whether any key holds another version than the one before."""


class _Batch(NamedTuple):
    keys: str
    """JSON: source, tool, digest and version of each."""
    rows: list[Sequence[Any]]


class SqlitePins:
    """Implements `PinStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def of_source(self, source: str) -> Sequence[Pin]:
        return await self._file.read(partial(_of_source, source=source))

    async def put(self, pins: Sequence[Pin]) -> bool:
        if not are_distinct(pins):
            return False
        return not pins or await self._file.change(_PUTTING, await asyncio.to_thread(_batch, pins))

    async def page(
        self, where: PinFilter, *, after: tuple[int, str, str, str] | None, limit: int
    ) -> tuple[Sequence[Pin], int]:
        return await self._file.read(partial(_page, where=where, after=after, limit=limit))

    async def revision(self) -> int:
        return await self._file.read(_revision)

    async def forget_source(self, source: str) -> int:
        return await self._file.change(_FORGETTING, source)

    async def start(self) -> None:
        """The file is open."""

    async def close(self) -> None:
        """The file is closed by its owner."""


def _batch(pins: Sequence[Pin]) -> _Batch:
    keys = orjson.dumps([[*pin.key, pin.version] for pin in pins]).decode()
    return _Batch(
        keys, [(*pin.key, pin.version, pin.state.value, pin.seen_at_unix_ms, encode_pin(pin)) for pin in pins]
    )


def _put_all(connection: sqlite3.Connection, batches: Sequence[_Batch]) -> list[bool]:
    return [_put(connection, batch) for batch in batches]


def _put(connection: sqlite3.Connection, batch: _Batch) -> bool:
    if connection.execute(_OVERTAKEN, (batch.keys,)).fetchone() is not None:
        return False
    columns = "pins (source, tool, digest, version, state, seen_at_unix_ms, record)"
    insert(connection, columns, batch.rows, on_conflict=_REPLACE)
    _changed(connection)
    return True


def _forget_all(connection: sqlite3.Connection, sources: Sequence[str]) -> list[int]:
    return [_forget(connection, source) for source in sources]


def _forget(connection: sqlite3.Connection, source: str) -> int:
    forgotten = connection.execute("DELETE FROM pins WHERE source = ?", (source,)).rowcount
    if forgotten:
        _changed(connection)
    return forgotten


def _changed(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE pin_revision SET revision = revision + 1")


def _revision(connection: sqlite3.Connection) -> int:
    (revision,) = connection.execute("SELECT revision FROM pin_revision").fetchone()
    return int(revision)


def _of_source(connection: sqlite3.Connection, source: str) -> list[Pin]:
    return pins_of(KeptPin(*row) for row in connection.execute(f"{_KEPT} WHERE source = ?", (source,)))


def _page(
    connection: sqlite3.Connection, where: PinFilter, after: tuple[int, str, str, str] | None, limit: int
) -> tuple[list[Pin], int]:
    terms = Where()
    terms.among("state", (state.value for state in where.states))
    terms.equals("source", where.source)
    terms.like("tool", where.tool)
    rows, count = terms.page(connection, _KEPT, "pins", _ORDER, after, limit)
    return readable((KeptPin(*row) for row in rows), pin_of), count


_PUTTING: Change[_Batch, bool] = Change(_put_all)
_FORGETTING: Change[str, int] = Change(_forget_all)
