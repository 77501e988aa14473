"""Pages of a table: newest first, and how many rows match in all."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from toolhub_service.stores.record_store import Place, Where


def read_page(
    connection: sqlite3.Connection,
    where: Where,
    *,
    rows: str,
    table: str,
    order: tuple[str, ...],
    after: Place | None,
    limit: int,
) -> tuple[list[Any], int]:
    """Return a page and the count.

    `rows` is a SELECT over `table` without its WHERE; `order` the columns of the cursor.
    """
    matching, parameters = _where_clause(where)
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


def _where_clause(where: Where) -> tuple[str, list[Any]]:
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
