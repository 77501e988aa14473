"""Reading the audit log: pages in the order of time, news in the order of arrival, lines for export."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import orjson

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.telemetry.audit_rows import COLUMNS, chained, condition, connect_to_read
from toolhub_service.telemetry.chain import canonical

_NEWS_LIMIT: Final = 1_000
_ILLEGIBLE: Final = (ValueError, KeyError, TypeError)
_NEWS: Final = f"SELECT row, {COLUMNS} FROM events WHERE row > ? ORDER BY row LIMIT {_NEWS_LIMIT}"  # noqa: S608 — fixed


def page(database: Path, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> list[ChainedEvent]:
    """At most `limit` events after the cursor. Raises HubFailure AUDIT_DAMAGED when one cannot be read."""
    terms, parameters = condition(where, after)
    query = f"SELECT {COLUMNS} FROM events WHERE {terms} ORDER BY at_unix_ms, writer, sequence LIMIT ?"  # noqa: S608 — bound
    try:
        with closing(connect_to_read(database)) as connection:
            return [chained(row) for row in connection.execute(query, (*parameters, max(0, limit)))]
    except (sqlite3.DatabaseError, *_ILLEGIBLE) as error:
        message = "The audit log is damaged. Run `toolhub audit verify`: it names the first bad event."
        raise HubFailure(HubStatus.INTERNAL, "AUDIT_DAMAGED", message) from error


def last_row(database: Path) -> int:
    """Where news begin now; a fraction of a millisecond."""
    with closing(connect_to_read(database)) as connection:
        (row,) = connection.execute("SELECT coalesce(max(row), 0) FROM events").fetchone()
        return int(row)


def news(connection: sqlite3.Connection, after_row: int) -> Iterator[tuple[int, list[tuple[int, ChainedEvent]]]]:
    """What was committed since, by any process, in pages: the last row looked at, and the events with their rows.

    An event that cannot be read is passed over; verification names it.
    """
    while rows := connection.execute(_NEWS, (after_row,)).fetchall():
        after_row = rows[-1][0]
        yield after_row, [(row[0], event) for row in rows if (event := _legible(row[1:])) is not None]


def export_line(each: ChainedEvent) -> bytes:
    """One JSON line; `event` is the very text that the tag was taken over."""
    place = {
        "writer": each.writer,
        "sequence": each.sequence,
        "previous_mac": each.previous_mac,
        "mac": each.mac,
        "key_id": each.key_id,
    }
    return orjson.dumps({**place, "event": orjson.Fragment(canonical(each.event))}) + b"\n"


def _legible(row: tuple[Any, ...]) -> ChainedEvent | None:
    try:
        return chained(row)
    except _ILLEGIBLE:
        return None
