"""The port of the databases in which chained events lie: what the audit log needs of one, and no more.

The chain, its key, the checkpoints and the verification are the same wherever the events are; a store keeps rows and
gives them back. All of it is called from threads, never on the event loop, but for `last_row`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeAlias

import orjson

from toolhub_service.domain.error_spec import StartReason
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter
from toolhub_service.domain.reasons import Reason
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


def tampered(what: str) -> HubFailure:
    """`what` was found wrong with the log while, or before, a hub writes it: for the operator, never for a caller."""
    return HubFailure(StartReason.AUDIT_LOG_CHANGED, f"{what}. {_REMEDY}")


def check_chain(writer: str, count: int, head: str, own: tuple[int, int, int] | None, tag: str | None) -> None:
    """Raises HubFailure AUDIT_LOG_CHANGED where a writer's chain is not the `count` events that end with `head`.

    `own`: how many events are there, their first sequence and their last; None where nobody else can have changed
    them. `tag`: of the event at `count`; None where there is none.
    """
    if own is not None:
        held, first, last = own
        # The start of a chain may have been pruned, all of it too.
        if held and (last != count or held != last - first + 1):
            raise tampered(f"Events of the audit log were removed: {held} of {count} are there of {writer}")
    if tag != head:
        raise tampered(f"The last event of {writer} in the audit log was removed or changed")


class EventTable(Protocol):
    """An open connection that writes; used by one thread. Each method raises one of `EventStore.errors`."""

    def is_empty(self) -> bool: ...

    def insert(self, rows: list[Row]) -> None:
        """Durable when it returns, all or nothing. Rows that an earlier try has written already are left alone."""
        ...

    def check(self, writer: str, count: int, head: str) -> None:
        """Raises HubFailure AUDIT_LOG_CHANGED where the tables, or the writer's chain of so many events with that last
        tag, are not what they were. Cheap, and so not what `verify` is: an edit in the middle of a chain passes."""
        ...

    def announce(self) -> None:
        """Wake the watchers of other processes; nothing where they look by themselves."""
        ...

    def tidy(self) -> None:
        """What the store has to do now and then and nobody should wait for. May do nothing; never fails."""
        ...

    def keep_copy(self, number: int, line: str) -> None:
        """Remember a checkpoint beside the events, so that a checkpoint file that was cut is noticed."""
        ...

    def ends(self) -> Sequence[tuple[Any, Any]]:
        """Each writer with its highest sequence."""
        ...

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        """The writer's rows with a higher sequence, in order."""
        ...

    def old_ends(self, before_unix_ms: int, limit: int, max_row: int | None = None) -> Sequence[tuple[str, int, str]]:
        """Writer, sequence and tag of the last event of each chain's start that is all older than that, of at most
        `limit` events and within the rows up to `max_row`. Not every chain need be among them at once."""
        ...

    def first_of(self, writer: str) -> int:
        """The lowest sequence of the writer that is there; 1 where there is none."""
        ...

    def tag_at(self, row: int) -> str | None:
        """The tag of the event in that row; None where there is none."""
        ...

    def remove(self, writer: str, sequence: int) -> int:
        """Delete the writer's events up to that one; how many there were."""
        ...

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        """What was committed since by any process, in the order of commits: the row's number, then its columns."""
        ...

    def close(self) -> None: ...


class EventSnapshot(Protocol):
    """The whole log at one moment, for verification. Whatever is read may have been tampered with."""

    def copies(self) -> list[tuple[Any, Any]]:
        """Number and line of every checkpoint that is kept beside the events and belongs to this checkpoint file."""
        ...

    def foreign(self) -> list[Any]:
        """Lines of checkpoints that other files hold: those of hubs on other machines that share the database."""
        ...

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row by writer and sequence."""
        ...

    def problems(self) -> Iterator[str]:
        """What the database itself finds wrong with its structure."""
        ...


class UpkeepLock(Protocol):
    """Ends with the process at the latest."""

    def is_held(self) -> bool:
        """Whether it still is; a lost connection ends it, too."""
        ...

    def close(self) -> None: ...


class EventStore(Protocol):
    errors: tuple[type[Exception], ...]
    """What opening and writing raise."""
    damage: tuple[type[Exception], ...]
    """What it raises when it can be reached and its content is not what it was."""
    poll_s: float
    """How often to look for other processes' events while somebody watches."""

    check_s: float
    """How often a writer looks whether the tables are still what they were."""
    is_made_with_key: bool
    """Whether the events lie beside the key, so that a key without them says that they were removed."""

    def open(self, *, create: bool) -> EventTable:
        """Connect; make the tables only where a log begins (`create`).

        Raises one of `errors`, and HubFailure AUDIT_LOG_CHANGED when tables are missing that must be there.
        """
        ...

    def last_row(self) -> int:
        """Where news begin now. May be called on the event loop."""
        ...

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        """Rows in (at_unix_ms, writer, sequence) order after the cursor."""
        ...

    def exists(self) -> bool:
        """Whether there is anything to verify."""
        ...

    def take_upkeep_lock(self) -> UpkeepLock | None:
        """Held, this process alone of all that share the events does the upkeep; None while another one holds it.
        Raises one of `errors`."""
        ...

    def cursor(self, sink: str) -> str:
        """What `keep_cursor` was given last, by any process that shares the events; empty before."""
        ...

    def keep_cursor(self, sink: str, cursor: str) -> None:
        """Durable when it returns."""
        ...

    def snapshot(self) -> AbstractContextManager[EventSnapshot]: ...


# Reading the audit log: pages in the order of time, news in the order of arrival, lines for export.

# Fields without a column.
_FOR_WHOM: Final = ("user_id", "agent_id", "task_id", "session_id")
_NEWS_LIMIT: Final = 1_000
_ILLEGIBLE: Final[tuple[type[Exception], ...]] = (ValueError, KeyError, TypeError)


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
        raise HubFailure(Reason.AUDIT_DAMAGED, message) from error


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


def line_of(row: Sequence[Any]) -> bytes:
    """The line of a row's columns, with the body as it is stored; whatever was tampered with is carried as a text."""
    writer, sequence, *_, body, previous, tag, key_id = row
    place = {"writer": writer, "sequence": sequence, "previous_mac": previous, "mac": tag, "key_id": key_id}
    try:
        orjson.loads(body)
        return orjson.dumps({**place, "event": orjson.Fragment(body)}) + b"\n"
    except (ValueError, TypeError):
        return orjson.dumps({name: _as_text(value) for name, value in {**place, "event": body}.items()}) + b"\n"


def _as_text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _legible(row: tuple[Any, ...]) -> ChainedEvent | None:
    try:
        return chained(row)
    except _ILLEGIBLE:
        return None


def chained(row: tuple[Any, ...]) -> ChainedEvent:
    """The event of a row. Raises ValueError, KeyError or TypeError when the row was tampered with."""
    writer, sequence, *_, body, previous, tag, key_id = row
    event = parse(body.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return ChainedEvent(event=event, writer=writer, sequence=sequence, previous_mac=previous, mac=tag, key_id=key_id)


def matches(where: EventFilter, chained_event: ChainedEvent) -> bool:
    """Whether an event passes the filter: the same judgement as `condition`, without SQL."""
    event = chained_event.event
    return (
        (not where.principal or where.principal == event.principal)
        and (not where.tool or where.tool == event.tool)
        and (not where.types or event.type in where.types)
        and (not where.call_id or where.call_id == event.call_id)
        and (not where.request_id or where.request_id == event.request_id)
        and is_for(where, event)
        and (not where.writer or where.writer == chained_event.writer)
        and event.at_unix_ms >= where.from_unix_ms
        and (not where.to_unix_ms or event.at_unix_ms < where.to_unix_ms)
    )


def is_for(where: EventFilter, event: Event) -> bool:
    """Whether the event is for whom the filter names."""
    if where.owners is not None and not where.owners(event.principal):
        return False
    return all(getattr(where, name) in ("", getattr(event, name)) for name in _FOR_WHOM)


def condition(
    where: EventFilter, after: tuple[int, str, int] | None, mark: str = "?", position: str = "instr"
) -> tuple[str, list[Any]]:
    """The filter and the cursor as a WHERE clause with its parameters; `mark` is how the database spells those, and
    `position` its function that looks for a text in another.

    For whom an event is stands in the body alone, where a label may have the same name: see `is_for` for the rest.
    """
    terms: list[str] = [f"at_unix_ms >= {mark}"]
    parameters: list[Any] = [where.from_unix_ms]
    for column in ("principal", "tool", "call_id", "request_id", "writer"):
        wanted = getattr(where, column)
        if wanted:
            terms.append(f"{column} = {mark}")
            parameters.append(wanted)
    for name in _FOR_WHOM:
        if wanted := getattr(where, name):
            terms.append(f"{position}(body, {mark}) > 0")
            parameters.append(f'"{name}":{orjson.dumps(wanted).decode()}')
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


# Watching the audit log: each watcher has a bounded queue and a mark when it was too slow, never waited for.

TAIL_LIMIT: Final = 1_000
"""Events that may wait for one watcher."""


class Tail(AsyncIterator[ChainedEvent]):
    """New events from now on, until it is closed or the log is. Used on the loop's thread only."""

    def __init__(self, where: EventFilter, after_row: int, *, closed: Callable[[Tail], None], limit: int) -> None:
        self.where = where
        self.after_row = after_row
        """Where this watcher stands; moved by the writer's thread."""
        self._closed = closed
        self._limit = limit
        self._waiting: deque[ChainedEvent] = deque()
        self._news = asyncio.Event()
        self._lagged = False
        self._ended = False

    def offer(self, events: Sequence[ChainedEvent]) -> None:
        """Hand over new events; those that do not fit are dropped and counted for the watcher."""
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
        """The next event. Raises HubFailure TAIL_LAGGED after the last one that was kept."""
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
        """Watch no longer."""
        self.end()
        self._closed(self)

    def end(self) -> None:
        """No more will come; what is waiting can still be taken."""
        self._ended = True
        self._news.set()
