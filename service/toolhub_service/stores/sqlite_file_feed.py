"""The news of one append-only table of the file, in its order, whoever appended.

What this process committed lies in memory and is told from there while nobody else has written; else the file is read
from the last row told, which gives both in order. Rows are AUTOINCREMENT: never used twice, and without a gap between
the commits of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from toolhub_service.stores.codec import UnreadableRecord

T = TypeVar("T")
_AT_ONCE: Final = 500


class Feed(Generic[T]):
    """Implements `Watch`. All methods but the constructor run in the writer's thread."""

    def __init__(
        self,
        table: str,
        columns: str,
        decode: Callable[[Sequence[Any]], T],
        *,
        gap: T,
        heard: Callable[[T], None],
        after_row: int,
    ) -> None:
        """`gap` is told for an entry that this version cannot read; `heard` runs on the loop."""
        self._next = f"SELECT row, {columns} FROM {table} WHERE row > ? ORDER BY row LIMIT {_AT_ONCE}"  # noqa: S608 — fixed names
        self._decode = decode
        self._gap = gap
        self._heard = heard
        self._row = after_row
        self._own: list[T] = []

    def added(self, news: T) -> None:
        """This process has committed one more row; called in the order of rows."""
        self._own.append(news)

    def look(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        own, self._own = self._own, []
        if foreign:
            own = self._read(connection)
        else:
            self._row += len(own)
        return partial(_each, self._heard, own) if own else None

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


def last_row(table: str) -> Callable[[sqlite3.Connection], int]:
    """Reads the number of the table's latest row, forgotten or not."""

    def look(connection: sqlite3.Connection) -> int:
        found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return found[0] if found else 0

    return look


def _each(heard: Callable[[T], None], news: list[T]) -> None:
    for one in news:
        heard(one)
