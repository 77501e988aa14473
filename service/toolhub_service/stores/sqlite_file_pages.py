"""Pages of a table, newest first, and how many rows match in all: a filter that grows into a WHERE clause."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any


class Where:
    """Terms joined by AND; an empty value adds none."""

    def __init__(self) -> None:
        self._terms: list[str] = ["1"]
        self._parameters: list[Any] = []

    def equals(self, column: str, value: str) -> None:
        if value:
            self._terms.append(f"{column} = ?")
            self._parameters.append(value)

    def among(self, column: str, values: Iterable[str]) -> None:
        wanted = sorted(values)
        if wanted:
            self._terms.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            self._parameters.extend(wanted)

    def like(self, column: str, pattern: str) -> None:
        """`pattern` is a name or a glob (fnmatch, case-sensitive)."""
        if not any(sign in pattern for sign in "*?["):
            self.equals(column, pattern)
        else:
            self._terms.append(f"matches_glob({column}, ?)")
            self._parameters.append(pattern)

    def page(
        self,
        connection: sqlite3.Connection,
        rows: str,
        table: str,
        order: tuple[str, ...],
        after: tuple[int | str, ...] | None,
        limit: int,
    ) -> tuple[list[Any], int]:
        """`rows` is a SELECT over `table` without its WHERE; `order` the columns of the cursor."""
        matching = " AND ".join(self._terms)
        (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {matching}", self._parameters).fetchone()  # noqa: S608 — fixed names
        columns, places = ", ".join(order), ", ".join("?" * len(order))
        cursor, parameters = ("", []) if after is None else (f" AND ({columns}) < ({places})", [*after])
        newest_first = ", ".join(f"{column} DESC" for column in order)
        sql = f"{rows} WHERE {matching}{cursor} ORDER BY {newest_first} LIMIT ?"
        return connection.execute(sql, [*self._parameters, *parameters, limit]).fetchall(), count
