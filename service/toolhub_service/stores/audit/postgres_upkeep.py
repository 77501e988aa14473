"""What the audit log's upkeep needs of PostgreSQL: a lock that one hub holds, export cursors, each chain's old end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, LiteralString

import psycopg

from toolhub_service.stores.audit.events import UpkeepLock

_LOCK_UPKEEP: Final = "SELECT pg_try_advisory_lock(hashtext('toolhub audit upkeep'), hashtext(current_schema()))"
_CURSORS: Final = "CREATE TABLE IF NOT EXISTS audit_cursors (sink text PRIMARY KEY, cursor text NOT NULL)"
_HAS_CURSORS: Final = "SELECT to_regclass('audit_cursors') IS NOT NULL"
_KEEP_CURSOR: Final = """
INSERT INTO audit_cursors VALUES (%s, %s) ON CONFLICT (sink) DO UPDATE SET cursor = excluded.cursor"""
# Chains that have any of the oldest events; and the last old event of one chain.
_OLD_WRITERS: Final = """
SELECT DISTINCT writer FROM (
    SELECT writer FROM audit_events WHERE at_unix_ms < %s ORDER BY at_unix_ms, writer, sequence LIMIT 50000) oldest"""
_OLD_END: Final = """
SELECT sequence, mac FROM audit_events WHERE writer = %(writer)s AND sequence < coalesce(
    (SELECT min(sequence) FROM audit_events WHERE writer = %(writer)s AND sequence < %(until)s
        AND (at_unix_ms >= %(before)s OR arrival > %(max_row)s)), %(until)s)
ORDER BY sequence DESC LIMIT 1"""
_ROW_MAX: Final = 2**63 - 1


class _SessionLock:
    """Implements `UpkeepLock` by an advisory lock, which ends with its connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def is_held(self) -> bool:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        self._connection.close()


class SharedUpkeep(ABC):
    """Part of `EventStore`."""

    @abstractmethod
    def connect(self) -> psycopg.Connection: ...

    def take_upkeep_lock(self) -> UpkeepLock | None:
        connection = self.connect()
        try:
            row = connection.execute(_LOCK_UPKEEP).fetchone()
        except BaseException:
            connection.close()
            raise
        if row is not None and row[0]:
            return _SessionLock(connection)
        connection.close()
        return None

    def cursor(self, sink: str) -> str:
        with closing(self.connect()) as connection:
            if connection.execute(_HAS_CURSORS).fetchone() != (True,):
                return ""
            row = connection.execute("SELECT cursor FROM audit_cursors WHERE sink = %s", (sink,)).fetchone()
            return "" if row is None else str(row[0])

    def keep_cursor(self, sink: str, cursor: str) -> None:
        """The table is created with the first cursor."""
        with closing(self.connect()) as connection:
            if connection.execute(_HAS_CURSORS).fetchone() != (True,):
                connection.execute(_CURSORS)
            connection.execute(_KEEP_CURSOR, (sink, cursor))


class OldEvents(ABC):
    """Part of `EventTable`."""

    @abstractmethod
    def _fetch_all(self, statement: LiteralString, parameters: Any = ()) -> list[Any]: ...

    def old_ends(self, before_unix_ms: int, limit: int, max_row: int | None = None) -> Sequence[tuple[str, int, str]]:
        ends: list[tuple[str, int, str]] = []
        for (writer,) in self._fetch_all(_OLD_WRITERS, (before_unix_ms,)):
            terms = {"writer": writer, "until": self.first_of(writer) + limit, "before": before_unix_ms}
            terms["max_row"] = _ROW_MAX if max_row is None else max_row
            ends += [(writer, *end) for end in self._fetch_all(_OLD_END, terms)]
        return ends

    def first_of(self, writer: str) -> int:
        ((first,),) = self._fetch_all("SELECT min(sequence) FROM audit_events WHERE writer = %s", (writer,))
        return 1 if first is None else int(first)

    def tag_at(self, row: int) -> str | None:
        found = self._fetch_all("SELECT mac FROM audit_events WHERE arrival = %s", (row,))
        return str(found[0][0]) if found else None
