"""Tables that are declared once: row, SQL of both dialects and Redis layout are derived from the columns.

A new noun is stored by its declaration alone. Tables of the first versions have migrations and layouts of their own,
because their stored form may not change. The statements create what is absent and change nothing that exists, so a hub
of the version before, which does not know the table, starts beside them; a column that is added later needs a
migration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toolhub_service.stores.record_store import Column, Row, Table

R = TypeVar("R")
_SQLITE_TYPES = {str: "TEXT", int: "INTEGER"}
# Keys and columns that order pages are compared byte by byte, as SQLite and Redis do.
_POSTGRES_TYPES = {str: 'text COLLATE "C"', int: "bigint"}


def declare_table(
    name: str,
    *columns: Column[R],
    key: tuple[str, ...],
    order: tuple[str, ...],
    encode: Callable[[R], bytes],
    decode: Callable[[bytes], R],
) -> Table[R]:
    """Return a table whose every store is derived from its columns.

    `name` is a plural in `s`, and `columns` include `version`. A column `expires_at_unix_ms` makes records expire.
    Raises ValueError when `key` or `order` names no column, or the name has no singular.
    """
    names = [column.name for column in columns]
    if not name.endswith("s") or not {*key, *order, "version"} <= {*names}:
        raise ValueError(f"table {name}: a plural in s, with columns {sorted({*key, *order, 'version'})}")

    def row(record: R) -> Row:
        return {column.name: column.value_of(record) for column in columns}

    return Table(name, key, row, encode, decode, order=order, columns=columns)


def sqlite_statements(table: Table[R]) -> tuple[str, ...]:
    """Return the statements that create the table and its indexes in SQLite; none for a table with a migration."""
    return _statements(table, _SQLITE_TYPES, "BLOB")


def postgres_statements(table: Table[R]) -> tuple[str, ...]:
    """Return the statements that create the table and its indexes in PostgreSQL; none for a table with a migration."""
    return _statements(table, _POSTGRES_TYPES, "bytea")


def _statements(table: Table[R], types: dict[type, str], blob: str) -> tuple[str, ...]:
    if not table.columns:
        return ()
    columns = [f"{column.name} {types[column.type]} NOT NULL" for column in table.columns]
    columns += [f"record {blob} NOT NULL", f"PRIMARY KEY ({', '.join(table.key)})"]
    indexes = {"time": table.order}
    indexes |= {column.name: (column.name, *table.order) for column in table.columns if column.list_name}
    if any(column.name == "expires_at_unix_ms" for column in table.columns):
        indexes["expiry"] = ("expires_at_unix_ms", *table.key)
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(columns)})",
        *(
            f"CREATE INDEX IF NOT EXISTS {table.name}_by_{index} ON {table.name} ({', '.join(dict.fromkeys(of))})"
            for index, of in indexes.items()
        ),
    )
