"""The Redis layout of a declared table, derived from its columns.

A record is on the list of all records and, for each column that has a `list_name`, on the list of the records with its
value; both are ordered by the first column of the table's `order`. One that expires is on the list of expiries, too.
"""

from __future__ import annotations

from typing import Any

from toolhub_service.stores.record_store import Table
from toolhub_service.stores.redis.record_scripts import Layout

_EXPIRES = "expires_at_unix_ms"


def derive_layout(table: Table[Any]) -> Layout:
    """Return the layout. Raises ValueError for a table that is not declared by its columns."""
    if not table.columns:
        raise ValueError(f"{table.name} is not declared by columns: give its layout")
    name = table.name
    listed = {column.name: f"{name}:{column.list_name}:" for column in table.columns if column.list_name}
    expires = [_EXPIRES] if any(column.name == _EXPIRES for column in table.columns) else []
    at, scores = table.order[0], tuple(dict.fromkeys([table.order[0], *expires]))
    lists = [f"'{name}', row.{at}", *(f"'{of}' .. row.{column}, row.{at}" for column, of in listed.items())]
    lists += [f"'{name}:expiry', row.{each}" for each in expires]
    return Layout(
        kind=name.removesuffix("s"),
        stored=tuple(listed),
        others=scores,
        fields=lambda row: tuple(row[column] for column in (*listed, *scores)),
        places=f"""
local function places(name, row)
  return {{{", ".join(f"{{{each}, name}}" for each in lists)}}}
end
""",
        lists={"": name, **listed},
        found=lambda _, facts: dict(zip(listed, facts, strict=True)),
    )
