"""Reading the audit log: pages in the order of time, news in the order of arrival, lines for export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.event import ChainedEvent, EventFilter
from toolhub_service.telemetry.audit_rows import chained, is_for
from toolhub_service.telemetry.audit_sqlite import SqliteEvents
from toolhub_service.telemetry.audit_store import EventStore, EventTable
from toolhub_service.telemetry.chain import canonical

_NEWS_LIMIT: Final = 1_000
_ILLEGIBLE: Final[tuple[type[Exception], ...]] = (ValueError, KeyError, TypeError)


def page(database: Path, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> list[ChainedEvent]:
    """`page_of` a database file."""
    return page_of(SqliteEvents(database), where, after, limit)


def page_of(
    events: EventStore, where: EventFilter, after: tuple[int, str, int] | None, limit: int
) -> list[ChainedEvent]:
    """At most `limit` events after the cursor. Raises HubFailure AUDIT_DAMAGED when one cannot be read."""
    found: list[ChainedEvent] = []
    try:
        while len(found) < limit:
            rows = [chained(row) for row in events.page(where, after, limit)]
            found += [each for each in rows if is_for(where, each.event)]
            if len(rows) < limit:
                break
            after = (rows[-1].event.at_unix_ms, rows[-1].writer, rows[-1].sequence)
        return found[: max(0, limit)]
    except events.damage + _ILLEGIBLE as error:
        message = "The audit log is damaged. Run `toolhub audit verify`: it names the first bad event."
        raise HubFailure(HubStatus.INTERNAL, "AUDIT_DAMAGED", message) from error


def news(table: EventTable, after_row: int) -> Iterator[tuple[int, list[tuple[int, ChainedEvent]]]]:
    """What was committed since, by any process, in pages: the last row looked at, and the events with their rows.

    An event that cannot be read is passed over; verification names it.
    """
    while rows := table.news(after_row, _NEWS_LIMIT):
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
