"""Finds the events of some principals, such as a tenant's, without reading past those of all others.

There is no column for tenants, because the policy in force decides which tenant a principal belongs to
(docs/decisions/0060). So an index by principal leads from name to name; each matching principal contributes its next
few events, and the earliest of these are the page. The index is optional: hubs of earlier versions write beside it, a
log without one is read in the order of time, and verification ignores it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from toolhub_service.domain.event import EventFilter
from toolhub_service.stores.audit.events import COLUMNS, condition

if TYPE_CHECKING:
    import psycopg

INDEXED_MAX: Final = 500_000
"""A log gets the index when it is opened if it has fewer events: a second's work, while nobody else can write."""
_KNOWN_MAX: Final = 10_000
# A page of more principals than that is read in the order of time, where most events match anyway.
_MEANT_MAX: Final = 1_000
_ORDER: Final = "at_unix_ms, writer, sequence"
After = tuple[int, str, int] | None


def _matching(known: Sequence[tuple[Any, ...]], owners: Callable[[str], bool]) -> list[str] | None:
    """Return the known principals that match; None when there are too many to query one by one."""
    if len(known) > _KNOWN_MAX:
        return None
    names = [name for (name,) in known if isinstance(name, str) and owners(name)]
    return names if len(names) <= _MEANT_MAX else None


_SQLITE_INDEX: Final = f"CREATE INDEX IF NOT EXISTS events_by_principal ON events (principal, {_ORDER})"
_SQLITE_HAS: Final = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'events_by_principal'"
_SQLITE_KNOWN: Final = """
WITH RECURSIVE known (name) AS (
    SELECT min(principal) FROM events INDEXED BY events_by_principal
    UNION ALL
    SELECT (SELECT min(principal) FROM events INDEXED BY events_by_principal WHERE principal > name)
    FROM known WHERE name IS NOT NULL)
SELECT name FROM known WHERE name IS NOT NULL LIMIT ?"""
_SQLITE_PAGE: Final = f"""
SELECT {COLUMNS} FROM (SELECT value AS name FROM json_each(?)) AS meant JOIN events ON events.row IN (
    SELECT row FROM events INDEXED BY events_by_principal
    WHERE principal = meant.name AND {{terms}} ORDER BY {_ORDER} LIMIT ?)
ORDER BY {_ORDER} LIMIT ?"""  # noqa: S608 — fixed text


def index_sqlite(connection: sqlite3.Connection) -> None:
    """Create the index if there is none and the log is not large. A failure leaves the log as it is."""
    with suppress(sqlite3.Error):  # without the index pages are read in the order of time: slower and equally right
        if connection.execute(_SQLITE_HAS).fetchone() is None:
            (rows,) = connection.execute("SELECT coalesce(max(row) - min(row), 0) FROM events").fetchone()
            if rows < INDEXED_MAX:
                connection.execute(_SQLITE_INDEX)


def sqlite_page(
    connection: sqlite3.Connection, where: EventFilter, after: After, limit: int
) -> Sequence[tuple[Any, ...]] | None:
    """Like `EventStore.page`, for principals that `where.owners` accepts; None when the log must be read by time."""
    if where.owners is None or connection.execute(_SQLITE_HAS).fetchone() is None:
        return None
    names = _matching(connection.execute(_SQLITE_KNOWN, (_KNOWN_MAX + 1,)).fetchall(), where.owners)
    if names is None:
        return None
    terms, parameters = condition(where, after)
    query = _SQLITE_PAGE.format(terms=terms)
    return connection.execute(query, (json.dumps(names), *parameters, limit, limit)).fetchall()


# No principal has a name longer than a B-tree takes: see `identity`.
_POSTGRES_LENGTH: Final = "octet_length(principal) <= 2048"
_POSTGRES_INDEX: Final = f"""
CREATE INDEX IF NOT EXISTS audit_events_by_principal ON audit_events (principal COLLATE "C", {_ORDER})
WHERE {_POSTGRES_LENGTH}"""
_POSTGRES_HAS: Final = "SELECT 1 FROM pg_class WHERE oid = to_regclass('audit_events_by_principal')"
_POSTGRES_ROWS: Final = "SELECT coalesce(max(arrival) - min(arrival), 0) FROM audit_events"
_POSTGRES_NEXT: Final = f"""
SELECT principal FROM audit_events WHERE {_POSTGRES_LENGTH} {{after}} ORDER BY principal COLLATE "C" LIMIT 1"""  # noqa: S608
_POSTGRES_KNOWN: Final = f"""
WITH RECURSIVE known (name) AS (
    ({_POSTGRES_NEXT.format(after="")})
    UNION ALL
    SELECT ({_POSTGRES_NEXT.format(after='AND principal COLLATE "C" > name')}) FROM known WHERE name IS NOT NULL)
SELECT name FROM known WHERE name IS NOT NULL LIMIT %s"""  # noqa: S608 — fixed text
_POSTGRES_PAGE: Final = f"""
SELECT {COLUMNS} FROM unnest(%s::text[]) AS meant (name) CROSS JOIN LATERAL (
    SELECT * FROM audit_events WHERE {_POSTGRES_LENGTH} AND principal COLLATE "C" = meant.name AND {{terms}}
    ORDER BY {_ORDER} LIMIT %s) AS own
ORDER BY {_ORDER} LIMIT %s"""  # noqa: S608 — fixed text


def index_postgres(connection: psycopg.Connection) -> None:
    """Like `index_sqlite`, but raises psycopg.Error when that is not allowed or the table is in use for too long."""
    if connection.execute(_POSTGRES_HAS).fetchone() is None:
        row = connection.execute(_POSTGRES_ROWS).fetchone()
        if row is not None and row[0] < INDEXED_MAX:
            connection.execute(_POSTGRES_INDEX.encode())


def postgres_page(
    connection: psycopg.Connection, where: EventFilter, after: After, limit: int
) -> Sequence[tuple[Any, ...]] | None:
    """Like `sqlite_page`."""
    if where.owners is None or connection.execute(_POSTGRES_HAS).fetchone() is None:
        return None
    names = _matching(connection.execute(_POSTGRES_KNOWN.encode(), (_KNOWN_MAX + 1,)).fetchall(), where.owners)
    if names is None:
        return None
    terms, parameters = condition(where, after, "%s", "strpos")
    query = _POSTGRES_PAGE.format(terms=terms)
    return connection.execute(query.encode(), (names, *parameters, limit, limit)).fetchall()
