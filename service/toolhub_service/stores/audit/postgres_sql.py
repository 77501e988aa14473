"""What the audit log says to PostgreSQL.

Ids that callers choose are indexed by hash: a B-tree refuses a long one, and with it the whole group of events.
"""

from __future__ import annotations

from typing import Final, LiteralString, TypeAlias

from toolhub_service.stores.audit.events import COLUMNS

Statement: TypeAlias = LiteralString

_LOCK: Final = "pg_advisory_xact_lock(hashtext('toolhub audit'), hashtext(current_schema()))"
_CHANNEL: Final = "'toolhub_audit_' || left(md5(current_schema()), 16)"

CONFIGURE: Final = """
SELECT set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false),
    set_config('lock_timeout', %s, false)"""

IS_PREPARED: Final = "SELECT to_regclass('audit_events') IS NOT NULL AND to_regclass('audit_checkpoints') IS NOT NULL"

FOUND: Final = """
SELECT name FROM unnest(ARRAY['audit_checkpoints', 'audit_events']) AS name WHERE to_regclass(name) IS NOT NULL"""

ALONE: Final = f"SELECT {_LOCK}"
SCHEMA: Final = (
    """CREATE TABLE audit_events (
        arrival bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        writer text COLLATE "C" NOT NULL, sequence bigint NOT NULL, at_unix_ms bigint NOT NULL, type text NOT NULL,
        principal text NOT NULL, tool text NOT NULL, call_id text NOT NULL, request_id text NOT NULL,
        body text NOT NULL, previous_mac text NOT NULL, mac text NOT NULL, key_id text NOT NULL,
        UNIQUE (writer, sequence))""",
    "CREATE INDEX audit_events_by_time ON audit_events (at_unix_ms, writer, sequence)",
    "CREATE INDEX audit_events_by_call ON audit_events USING hash (call_id)",
    "CREATE INDEX audit_events_by_request ON audit_events USING hash (request_id)",
    """CREATE TABLE audit_checkpoints (
        site text COLLATE "C" NOT NULL, number bigint NOT NULL, line text NOT NULL, PRIMARY KEY (site, number))""",
)

_NUMBERS: Final = frozenset({"sequence", "at_unix_ms"})
_GIVEN: Final = ", ".join(["json_array_elements_text(%s)"] * len(COLUMNS.split(", ")))
_TYPED: Final = ", ".join(f"{name}::bigint" if name in _NUMBERS else name for name in COLUMNS.split(", "))
INSERT: Final = f"""
WITH alone AS MATERIALIZED (SELECT {_LOCK}),
kept AS (
    INSERT INTO audit_events ({COLUMNS})
    SELECT {_TYPED} FROM alone, ROWS FROM ({_GIVEN}) WITH ORDINALITY AS given ({COLUMNS}, place)
    ORDER BY place
    ON CONFLICT (writer, sequence) DO NOTHING
    RETURNING arrival)
SELECT count(*), coalesce(max(arrival), 0) FROM kept"""  # noqa: S608 — fixed text
"""A JSON array for each column: arrays of psycopg's own take four times as long to write."""

SAME: Final = """
SELECT count(*), coalesce(max(arrival), 0)
FROM audit_events JOIN unnest(%s::text[], %s::bigint[], %s::text[]) AS given (writer, sequence, mac)
USING (writer, sequence, mac)"""

ANNOUNCE: Final = f"SELECT set_config('synchronous_commit', 'off', true), pg_notify({_CHANNEL}, %s)"
"""The news need not survive a crash, so nobody waits for the disk while the server holds its queue of news."""

CHANNEL: Final = f"SELECT {_CHANNEL}"
"""Channels belong to the database, tables to a schema."""

OWN: Final = "SELECT count(*), min(sequence), max(sequence) FROM audit_events WHERE writer = %s"
TAG: Final = "SELECT mac FROM audit_events WHERE writer = %s AND sequence = %s"
TRIGGERS: Final = """
SELECT tgname FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid IN (to_regclass('audit_events'), to_regclass('audit_checkpoints'))
UNION ALL SELECT rulename FROM pg_rewrite
WHERE ev_class IN (to_regclass('audit_events'), to_regclass('audit_checkpoints'))"""
"""Triggers and rules: what could swallow a row."""
LAST_ROW: Final = "SELECT coalesce(max(arrival), 0) FROM audit_events"
ANY: Final = "SELECT 1 FROM audit_events LIMIT 1"
PAGE: Final = f"SELECT {COLUMNS} FROM audit_events WHERE {{terms}} ORDER BY at_unix_ms, writer, sequence LIMIT %s"  # noqa: S608 — fixed
NEWS: Final = f"SELECT arrival, {COLUMNS} FROM audit_events WHERE arrival > %s ORDER BY arrival LIMIT %s"  # noqa: S608 — fixed
BEYOND: Final = f"SELECT {COLUMNS} FROM audit_events WHERE writer = %s AND sequence > %s ORDER BY sequence"  # noqa: S608 — fixed
IN_ORDER: Final = f"SELECT {COLUMNS} FROM audit_events ORDER BY writer, sequence"  # noqa: S608 — fixed
REMOVE: Final = "DELETE FROM audit_events WHERE writer = %s AND sequence <= %s"
KEEP_COPY: Final = "INSERT INTO audit_checkpoints VALUES (%s, %s, %s) ON CONFLICT (site, number) DO NOTHING"
COPIES: Final = "SELECT number, line FROM audit_checkpoints WHERE site = %s ORDER BY number"
FOREIGN: Final = "SELECT line FROM audit_checkpoints WHERE site <> %s ORDER BY site, number"

ENDS: Final = """
WITH RECURSIVE writers AS (
    (SELECT writer FROM audit_events ORDER BY writer LIMIT 1)
    UNION ALL
    SELECT (SELECT e.writer FROM audit_events e WHERE e.writer > w.writer ORDER BY e.writer LIMIT 1)
    FROM writers w WHERE w.writer IS NOT NULL)
SELECT writer, (SELECT max(sequence) FROM audit_events e WHERE e.writer = w.writer)
FROM writers w WHERE writer IS NOT NULL"""
"""From writer to writer along the index, instead of over all events."""

OLD_ENDS: Final = """
SELECT e.writer, e.sequence, e.mac FROM audit_events e JOIN (
    SELECT writer, coalesce(min(sequence) FILTER (WHERE at_unix_ms >= %s) - 1, max(sequence)) AS last
    FROM audit_events GROUP BY writer) old
ON e.writer = old.writer AND e.sequence = old.last AND e.at_unix_ms < %s"""
