"""News of one append-only table of the SQLite file, in its order, whichever process appended.

Rows that this process committed are delivered from memory while no other process has written; otherwise the file is
read from the last row delivered, which returns both in order. Row numbers are AUTOINCREMENT: never reused, and
without a gap between the commits of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from toolhub_service.stores.codec import UnreadableRecord
from toolhub_service.stores.sqlite.file import SqliteFile

T = TypeVar("T")
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

    def note_own_rows(self, news: Iterable[T]) -> None:
        """Note rows that this process has committed, one for each news; called in the order of rows."""
        if self._is_watching:
            self._own.extend(news)

    def after_commits(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        own, self._own = self._own, []
        if foreign:
            own = self._read_news(connection)
        else:
            self._row += len(own)
        return partial(_call_for_each, self._on_event, own) if own and self._on_event is not None else None

    def _read_news(self, connection: sqlite3.Connection) -> list[T]:
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


def _call_for_each(on_event: Callable[[T], None], news: list[T]) -> None:
    for one in news:
        on_event(one)
