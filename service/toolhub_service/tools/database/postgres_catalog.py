"""The contents of a PostgreSQL database that its role may read and its terms allow: tables, columns, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import may_use_table
from toolhub_service.tools.database.connection import (
    MAX_COLUMNS,
    MAX_TABLES,
    DescribedColumn,
    DescribedTable,
    ForeignKey,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_KINDS: Final = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}
_TABLES: Final = b"""
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema') AND n.nspname NOT LIKE 'pg\\_temp%'
    AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
ORDER BY n.nspname <> $1, n.nspname, c.relname"""
_COLUMNS: Final = b"""
SELECT a.attrelid::bigint, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
    CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
    coalesce(col_description(a.attrelid, a.attnum), '')
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY($1::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    AND has_column_privilege(a.attrelid, a.attnum, 'SELECT')
ORDER BY a.attrelid, a.attnum LIMIT $2"""
_KEYS: Final = b"""
SELECT k.conrelid::bigint, k.contype::text, n.nspname, t.relname,
    ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u(num, at)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.num ORDER BY u.at),
    ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u(num, at)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.num ORDER BY u.at)
FROM pg_catalog.pg_constraint k LEFT JOIN pg_catalog.pg_class t ON t.oid = k.confrelid
    LEFT JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE k.conrelid = ANY($1::bigint[]::oid[]) AND k.contype IN ('p', 'f') ORDER BY k.conrelid, k.conname"""


async def describe_tables(
    connection: AsyncConnection[Any], terms: DatabaseTerms, table: str
) -> tuple[list[DescribedTable], bool]:
    """Return the tables, or the one that `table` names with or without its schema; and whether there are more."""
    found = [
        row
        for row in await fetch_rows(connection, _TABLES, terms.schema)
        if may_use_table(f"{row[1]}.{row[2]}", terms)
        and table in ("", f"{row[1]}.{row[2]}", _qualified_name(row, terms))
    ]
    numbers = [row[0] for row in found[:MAX_TABLES]]
    columns: dict[int, list[DescribedColumn]] = {number: [] for number in numbers}
    listed = await fetch_rows(connection, _COLUMNS, numbers, MAX_COLUMNS + 1)
    for number, name, kind, nullable, default, comment in listed[:MAX_COLUMNS]:
        columns[number].append(
            DescribedColumn(name=name, type=kind, nullable=nullable, default=default, comment=comment)
        )
    keys = await fetch_rows(connection, _KEYS, numbers)
    tables = [
        DescribedTable(
            name=_qualified_name(row, terms),
            kind=_KINDS[row[3]],
            columns=columns[row[0]],
            primary_key=next((key[4] for key in keys if key[0] == row[0] and key[1] == "p"), []),
            foreign_keys=[_foreign(key, terms) for key in keys if key[0] == row[0] and key[1] == "f"],
            comment=row[4],
        )
        for row in found[:MAX_TABLES]
    ]
    return tables, len(found) > MAX_TABLES or len(listed) > MAX_COLUMNS


def _qualified_name(row: Any, terms: DatabaseTerms) -> str:
    return str(row[2]) if row[1] == terms.schema else f"{row[1]}.{row[2]}"


def _foreign(key: Any, terms: DatabaseTerms) -> ForeignKey:
    target = _qualified_name((0, key[2], key[3]), terms)
    return ForeignKey(columns=key[4], table=target, target_columns=key[5])


async def fetch_rows(connection: AsyncConnection[Any], sql: bytes, *parameters: Any) -> list[Any]:
    """Return the rows of one of the hub's own queries."""
    from psycopg import AsyncRawCursor

    cursor = AsyncRawCursor(connection)
    await cursor.execute(sql, parameters)
    return await cursor.fetchall()
