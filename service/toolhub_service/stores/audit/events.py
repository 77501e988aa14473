"""The port of the databases that hold chained events: what the audit log needs of one, and no more.

The chain, its key, the checkpoints and the verification are the same for every database; a store only writes and
returns rows. All methods are called from threads, never on the event loop, except `last_row`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, TypeAlias

import orjson

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter
from toolhub_service.stores.audit.chain import canonical, parse

Row: TypeAlias = tuple[str, int, int, str, str, str, str, str, str, str, str, str]
"""The columns of `COLUMNS`, in their order."""

COLUMNS: Final = (
    "writer, sequence, at_unix_ms, type, principal, tool, call_id, request_id, body, previous_mac, mac, key_id"
)


_REMEDY: Final = (
    "Calls are refused until it is as it was. Keep a copy of what is there, restore the log from a backup, and run "
    "`toolhub audit verify`; where it cannot be had back, `toolhub audit begin` begins a new log, with the hub stopped."
)


def tampering_error(what: str) -> HubFailure:
    """Return the error for the operator, never for a caller, when `what` is wrong with the log."""
    return HubFailure(StartReason.AUDIT_LOG_CHANGED, f"{what}. {_REMEDY}")


def check_chain(writer: str, count: int, head: str, own: tuple[int, int, int] | None, tag: str | None) -> None:
    """Raise HubFailure AUDIT_LOG_CHANGED where a writer's chain is not the `count` events that end with `head`.

    `own`: the number of events in the store, their first sequence and their last; None where nobody else can have
    changed them. `tag`: that of the event at `count`; None when that event is missing.
    """
    if own is not None:
        held, first, last = own
        # The start of a chain, or all of it, may have been pruned.
        if held and (last != count or held != last - first + 1):
            raise tampering_error(f"Events of the audit log were removed: {held} of {count} are there of {writer}")
    if tag != head:
        raise tampering_error(f"The last event of {writer} in the audit log was removed or changed")


class EventTable(Protocol):
    """An open connection that writes, used by one thread. Each method raises one of `EventStore.errors`."""

    def is_empty(self) -> bool: ...

    def insert(self, rows: list[Row]) -> None:
        """Insert all rows or none; they are durable when it returns.

        Rows that an earlier attempt has written are left alone.
        """
        ...

    def check(self, writer: str, count: int, head: str) -> None:
        """Raise HubFailure AUDIT_LOG_CHANGED when the tables, or the writer's chain of so many events, have changed.

        Cheaper than `verify`: an edit in the middle of a chain passes.
        """
        ...

    def announce(self) -> None:
        """Wake the watchers of other processes; does nothing where they poll."""
        ...

    def tidy(self) -> None:
        """Do maintenance that the store needs now and then and that nobody should wait for.

        May do nothing; never fails.
        """
        ...

    def keep_copy(self, number: int, line: str) -> None:
        """Store a copy of a checkpoint beside the events, which shows when the checkpoint file was cut."""
        ...

    def ends(self) -> Sequence[tuple[Any, Any]]:
        """Return each writer with its highest sequence."""
        ...

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        """Yield the writer's rows with a higher sequence, in order."""
        ...

    def old_ends(self, before_unix_ms: int, limit: int, max_row: int | None = None) -> Sequence[tuple[str, int, str]]:
        """Return (writer, sequence, tag) of the last event of each chain's old part.

        That part is the chain's first events, all older than the given time, at most `limit` of them and within the
        rows up to `max_row`. Not every chain need be in one result.
        """
        ...

    def first_of(self, writer: str) -> int:
        """Return the lowest sequence of the writer that is stored; 1 when there is none."""
        ...

    def tag_at(self, row: int) -> str | None:
        """Return the tag of the event in that row; None when there is none."""
        ...

    def remove(self, writer: str, sequence: int) -> int:
        """Delete the writer's events up to that sequence; return how many."""
        ...

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        """Return what any process has committed since, in commit order: the row's number, then its columns."""
        ...

    def close(self) -> None: ...


class EventSnapshot(Protocol):
    """The whole log at one moment, for verification. Anything read from it may have been tampered with."""

    def copies(self) -> list[tuple[Any, Any]]:
        """Return number and line of every checkpoint copy that belongs to this checkpoint file."""
        ...

    def foreign(self) -> list[Any]:
        """Return the checkpoint lines of other files: those of hubs on other machines that share the database."""
        ...

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row by writer and sequence."""
        ...

    def problems(self) -> Iterator[str]:
        """Yield what the database itself finds wrong with its structure."""
        ...


class UpkeepLock(Protocol):
    """A lock that ends with the process at the latest."""

    def is_held(self) -> bool:
        """Return whether the lock is still held; a lost connection ends it, too."""
        ...

    def close(self) -> None: ...


class EventStore(Protocol):
    errors: tuple[type[Exception], ...]
    """The exceptions that opening and writing raise."""
    damage: tuple[type[Exception], ...]
    """The exception of a database that can be reached but whose content was changed."""
    poll_s: float
    """How often to poll for other processes' events while somebody watches."""

    check_s: float
    """How often a writer checks that the tables are unchanged."""
    is_made_with_key: bool
    """Whether the events lie beside the key, so that a key without events shows that they were removed."""

    def open(self, *, create: bool) -> EventTable:
        """Connect, and with `create` make the tables of a new log.

        Raises one of `errors`, and HubFailure AUDIT_LOG_CHANGED when required tables are missing.
        """
        ...

    def last_row(self) -> int:
        """Return the number of the latest row: news begin after it. May be called on the event loop."""
        ...

    def newest_unix_ms(self) -> int:
        """Return the latest time of any event, by the clocks of those who wrote them; 0 without events."""
        ...

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        """Return rows in (at_unix_ms, writer, sequence) order after the cursor."""
        ...

    def exists(self) -> bool:
        """Return whether there is anything to verify."""
        ...

    def take_upkeep_lock(self) -> UpkeepLock | None:
        """Take the lock with which this process alone, of all that share the events, does the upkeep.

        Returns None while another process holds it. Raises one of `errors`.
        """
        ...

    def cursor(self, sink: str) -> str:
        """Return what any process that shares the events gave `keep_cursor` last; empty if none did."""
        ...

    def keep_cursor(self, sink: str, cursor: str) -> None:
        """Store the export cursor; it is durable when this returns."""
        ...

    def snapshot(self) -> AbstractContextManager[EventSnapshot]: ...


# Reading the audit log: pages in time order, news in the order of arrival, lines for export.

# Fields without a column.
_IN_BODY: Final = ("user_id", "agent_id", "task_id", "session_id", "outcome", "rule_id")
_GLOB: Final = re.compile(r"[*?\[]")
_NEWS_LIMIT: Final = 1_000
_ILLEGIBLE: Final[tuple[type[Exception], ...]] = (ValueError, KeyError, TypeError)


def page_of(
    events: EventStore, where: EventFilter, after: tuple[int, str, int] | None, limit: int
) -> list[ChainedEvent]:
    """Return at most `limit` events after the cursor. Raises HubFailure AUDIT_DAMAGED when an event cannot be read."""
    found: list[ChainedEvent] = []
    try:
        while len(found) < limit:
            rows = [read_chained_event(row) for row in events.page(where, after, limit)]
            found += [each for each in rows if passes_body(where, each.event)]
            if len(rows) < limit:
                break
            after = (rows[-1].event.at_unix_ms, rows[-1].writer, rows[-1].sequence)
        return found[: max(0, limit)]
    except events.damage + _ILLEGIBLE as error:
        message = "The audit log is damaged. Run `toolhub audit verify`: it names the first bad event."
        raise HubFailure(Reason.AUDIT_DAMAGED, message) from error


def news(table: EventTable, after_row: int) -> Iterator[tuple[int, list[tuple[int, ChainedEvent]]]]:
    """Yield pages of what any process has committed since: the last row read, and the events with their rows.

    An event that cannot be read is skipped; verification reports it.
    """
    while rows := table.news(after_row, _NEWS_LIMIT):
        after_row = rows[-1][0]
        yield after_row, [(row[0], event) for row in rows if (event := _readable(row[1:])) is not None]


def export_line(each: ChainedEvent) -> bytes:
    """Return one JSON line; `event` is the exact text that the tag covers."""
    place = {
        "writer": each.writer,
        "sequence": each.sequence,
        "previous_mac": each.previous_mac,
        "mac": each.mac,
        "key_id": each.key_id,
    }
    return orjson.dumps({**place, "event": orjson.Fragment(canonical(each.event))}) + b"\n"


def line_of(row: Sequence[Any]) -> bytes:
    """Return the line of a row, with the body as it is stored; a value that was tampered with is included as a text."""
    writer, sequence, *_, body, previous, tag, key_id = row
    place = {"writer": writer, "sequence": sequence, "previous_mac": previous, "mac": tag, "key_id": key_id}
    try:
        orjson.loads(body)
        return orjson.dumps({**place, "event": orjson.Fragment(body)}) + b"\n"
    except (ValueError, TypeError):
        return orjson.dumps({name: _as_text(value) for name, value in {**place, "event": body}.items()}) + b"\n"


def _as_text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _readable(row: tuple[Any, ...]) -> ChainedEvent | None:
    try:
        return read_chained_event(row)
    except _ILLEGIBLE:
        return None


def read_chained_event(row: tuple[Any, ...]) -> ChainedEvent:
    """Return the event of a row. Raises ValueError, KeyError or TypeError when the row was tampered with."""
    writer, sequence, *_, body, previous, tag, key_id = row
    event = parse(body.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return ChainedEvent(event=event, writer=writer, sequence=sequence, previous_mac=previous, mac=tag, key_id=key_id)


def matches(where: EventFilter, chained_event: ChainedEvent) -> bool:
    """Return whether an event passes the filter: the same conditions as `condition`, without SQL."""
    event = chained_event.event
    return (
        (not where.principal or where.principal == event.principal)
        and (not where.types or event.type in where.types)
        and (not where.call_id or where.call_id == event.call_id)
        and (not where.request_id or where.request_id == event.request_id)
        and passes_body(where, event)
        and (not where.writer or where.writer == chained_event.writer)
        and event.at_unix_ms >= where.from_unix_ms
        and (not where.to_unix_ms or event.at_unix_ms < where.to_unix_ms)
    )


def passes_body(where: EventFilter, event: Event) -> bool:
    """Return whether an event passes those conditions that `condition` cannot decide exactly."""
    if where.owners is not None and not where.owners(event.principal):
        return False
    if where.tool and not (fnmatchcase(event.tool, where.tool) or event.tool == where.tool):
        return False
    if where.error_kinds and not any(event.outcome == kind.value for kind in where.error_kinds):
        return False
    return all(getattr(where, name) in ("", getattr(event, name)) for name in _IN_BODY) and all(
        event.labels.get(name) == value for name, value in where.labels.items()
    )


def condition(
    where: EventFilter, after: tuple[int, str, int] | None, mark: str = "?", position: str = "instr"
) -> tuple[str, list[Any]]:
    """Return filter and cursor as a WHERE clause with its parameters.

    `mark` is the database's placeholder, and `position` its function that finds one text in another. What has no
    column is only in the body, where a label may have the same name: `passes_body` does the exact check.
    """
    terms: list[str] = [f"at_unix_ms >= {mark}"]
    parameters: list[Any] = [where.from_unix_ms]
    for column in ("principal", "tool", "call_id", "request_id", "writer"):
        wanted = getattr(where, column)
        if wanted and not (column == "tool" and _GLOB.search(wanted)):
            terms.append(f"{column} = {mark}")
            parameters.append(wanted)
    members = [(name, wanted) for name in _IN_BODY if (wanted := getattr(where, name))]
    for name, wanted in (*members, *where.labels.items()):
        terms.append(f"{position}(body, {mark}) > 0")
        parameters.append(_member(name, wanted))
    if where.error_kinds:
        terms.append(f"({' OR '.join([f'{position}(body, {mark}) > 0'] * len(where.error_kinds))})")
        parameters.extend(sorted(_member("outcome", kind.value) for kind in where.error_kinds))
    if where.to_unix_ms:
        terms.append(f"at_unix_ms < {mark}")
        parameters.append(where.to_unix_ms)
    if where.types:
        terms.append(f"type IN ({', '.join([mark] * len(where.types))})")
        parameters.extend(sorted(type.value for type in where.types))
    if after is not None:
        terms.append(f"(at_unix_ms, writer, sequence) > ({mark}, {mark}, {mark})")
        parameters.extend(after)
    return " AND ".join(terms), parameters


def _member(name: str, value: str) -> str:
    """Return the member as canonical JSON has it."""
    return f"{orjson.dumps(name).decode()}:{orjson.dumps(value).decode()}"


# Watching the audit log: each watcher has a bounded queue; one that is too slow is marked, never waited for.

TAIL_LIMIT: Final = 1_000
"""Events that may wait for one watcher."""


class Tail(AsyncIterator[ChainedEvent]):
    """New events from now on, until it is closed or the log is. Used on the loop's thread only."""

    def __init__(self, where: EventFilter, after_row: int, *, closed: Callable[[Tail], None], limit: int) -> None:
        self.where = where
        self.after_row = after_row
        """The last row this watcher was given; set by the writer's thread."""
        self._closed = closed
        self._limit = limit
        self._waiting: deque[ChainedEvent] = deque()
        self._news = asyncio.Event()
        self._lagged = False
        self._ended = False

    def offer(self, events: Sequence[ChainedEvent]) -> None:
        """Queue new events; those that do not fit are dropped and counted for the watcher."""
        for event in events:
            if self._lagged or not matches(self.where, event):
                continue
            if len(self._waiting) >= self._limit:
                self._lagged = True
            else:
                self._waiting.append(event)
        self._news.set()

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> ChainedEvent:
        """Return the next event. Raises HubFailure TAIL_LAGGED after the last event before those that were dropped."""
        while not self._waiting:
            if self._lagged:
                await self.aclose()
                message = "Events came faster than they were taken. List from the last one you saw, then watch again."
                raise HubFailure(Reason.TAIL_LAGGED, message)
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop watching."""
        self.end()
        self._closed(self)

    def end(self) -> None:
        """Mark the end: no more events will come; queued ones can still be read."""
        self._ended = True
        self._news.set()
