"""Statements over many rows at once: to insert them, and to find them by their keys.

Each step of SQLite releases the GIL, and the event loop may then keep it for milliseconds, so a group of changes takes
a few statements and not a few for each change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

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
