"""The audit log: append-only, hash-chained, group-committed, checkpointed; in SQLite or another store of events.

Every run of a process is a writer with a chain of its own, `<name>-<start time>-<random>`, whose start is attested by a
signed `open` checkpoint before its first event. A run begins a new chain instead of continuing an old one: so no worker
waits for another, nothing has to be trusted at the start, and a database restored from a backup does not overwrite what
it lost. The next process that starts checks and attests (`adopt`) the chain of a killed one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, Verification
from toolhub_service.domain.ports import Clock
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.chain import GENESIS, Chain, canonical
from toolhub_service.stores.audit.checkpoint import OPEN, CheckpointFile, read_lines
from toolhub_service.stores.audit.events import (
    TAIL_LIMIT,
    EventStore,
    EventTable,
    Row,
    Tail,
    export_line,
    news,
    page_of,
)
from toolhub_service.stores.audit.keyring import Keyring
from toolhub_service.stores.audit.opening import has_begun, keyring_of
from toolhub_service.stores.audit.presentation import are_clean, encodable, presentable
from toolhub_service.stores.audit.retention import EventArchive, prune
from toolhub_service.stores.audit.sqlite import SqliteEvents
from toolhub_service.stores.audit.verify import adopt, verify_events
from toolhub_service.stores.audit.writer import GroupWriter, WriterTiming

_EXPORT_PAGE: Final = 500
_ALMOST_FULL: Final = 0.8


class CommitObserver(Protocol):
    """Metrics of the log."""

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        """Called on the loop's thread."""
        ...

    def audit_failed(self, reason: str) -> None:
        """Called from the writer's thread."""
        ...


class ChainedAuditLog:
    """Implements `AuditLog`. `append` and `append_durably` are called on the event loop; start before use."""

    def __init__(
        self,
        events: EventStore,
        checkpoints: Path,
        key: Path,
        *,
        clock: Clock,
        redactor: Redactor,
        name: str = "hub",
        timing: WriterTiming | None = None,
        observer: CommitObserver | None = None,
        witness: Callable[[str], None] | None = None,
        tail_limit: int = TAIL_LIMIT,
        begin: bool = False,
    ) -> None:
        """`witness` gets every signed checkpoint line, to be kept elsewhere. `begin`: a new log under an old key."""
        self.events = events
        self._checkpoint_path = checkpoints
        self._key_path = key
        self._clock = clock
        self._redactor = redactor
        self._name = name
        self.writer = f"{name}-{clock.unix_ms():013d}-{secrets.token_hex(4)}"
        self.left_behind: Sequence[str] = ()
        """After `start`: writers of this name and checkpoint file whose chains nobody has closed, oldest first."""
        self._timing = timing or WriterTiming()
        self._observer = observer
        self._witness = witness
        self._tail_limit = tail_limit
        self._begin = begin
        self._tails: set[Tail] = set()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: GroupWriter | None = None
        # Whether the events being sealed are known to hold no secret.
        self._are_clean = False

    async def start(self) -> None:
        """Open the files, attest chains left behind and the start of this one.

        Raises HubFailure (see `open_keyring`), and ToolFailure IO_ERROR when the files cannot be written.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._keyring, checkpoints = await asyncio.to_thread(self._open_chain)
        except self.events.errors as error:
            raise _log_failure("disk") from error
        self._chain = Chain(self.writer, self._keyring)
        self._appended = 0
        self._checkpoints = checkpoints
        self._group = GroupWriter(
            self.events,
            self.writer,
            checkpoints,
            seal=self._seal,
            observer=self,
            timing=self._timing,
        )
        self._group.start()

    def _open_chain(self) -> tuple[Keyring, CheckpointFile]:
        names = (self.events, self._checkpoint_path, self._key_path)
        with closing(self.events.open(create=self._begin or not has_begun(*names))) as table:
            lines = read_lines(self._checkpoint_path)  # before the events: each is stored before a line attests it
            keyring = keyring_of(*names, is_empty=table.is_empty(), lines=lines, begins=self._begin)
            checkpoints = CheckpointFile(self._checkpoint_path, keyring, self._clock.unix_ms, self._witness)
            unclosed = adopt(table, self._checkpoint_path, checkpoints, keyring)
            self.left_behind = [writer for writer in unclosed if writer.rsplit("-", 2)[0] == self._name]
            opened = checkpoints.append(OPEN, self.writer, 0, GENESIS)
            table.keep_copy(opened.number, opened.line())
        return keyring, checkpoints

    async def close(self) -> None:
        """Write what is left and attest the end. Raises ToolFailure IO_ERROR when some of it could not be written."""
        if self._group is None:
            return
        group, self._group = self._group, None
        await asyncio.to_thread(group.stop)
        self._settle(group.durable[0], group.failure)
        for tail in list(self._tails):
            tail.end()
        if group.failure:
            raise _log_failure("disk")

    # Writing

    def append(self, event: Event, *, urgent: bool = False) -> None:
        """Chain and write the event within `linger_s`, at once if `urgent`.

        Raises ToolFailure IO_ERROR when broken, full or closed.
        """
        group = self._group
        if group is None or group.failure:
            raise _log_failure("disk" if group is not None else "closed")
        if not group.put(event, urgent=urgent):
            raise _log_failure("queue_full")
        self._appended += 1

    async def append_durably(self, event: Event) -> None:
        """Write the event and return when it, and all before it, are on disk.

        Raises ToolFailure IO_ERROR when that fails.
        """
        self.append(event, urgent=True)
        await self._until(self._appended)

    async def ready(self) -> None:
        """Wait while the queue is almost full. Raises ToolFailure IO_ERROR when broken, full or closed.

        The space beyond the bound at which callers wait exceeds the events of all calls that can be under way.
        """
        group = self._group
        if group is None or group.failure:
            raise _log_failure("disk" if group is not None else "closed")
        depth = self._appended - group.durable[0]
        if depth >= self._timing.queue_limit:
            raise _log_failure("queue_full")
        if depth > self._timing.queue_limit * _ALMOST_FULL:
            await self.flush()

    async def flush(self) -> None:
        """Return when all that was appended is on disk. Raises ToolFailure IO_ERROR when that fails."""
        if self._group is not None and self._group.durable[0] < self._appended:
            self._group.write_now()
            await self._until(self._appended)

    @property
    def is_well(self) -> bool:
        """Return whether events can be written: False while the disk refuses them or the log was changed."""
        return self._group is not None and not self._group.failure

    @property
    def depth(self) -> int:
        """Return how many events are not on disk yet."""
        return self._group.depth if self._group is not None else 0

    def is_behind(self) -> bool:
        """Return whether more events wait than one commit takes: a caller with many to append should `flush` first."""
        return self.depth > self._timing.group_limit

    def _seal(self, events: Sequence[Event]) -> Iterator[Row]:
        """Yield the next rows of the chain, each sealed when it is iterated; in any thread, never in two at once."""
        self._are_clean = are_clean(events, self._redactor)
        return map(self._seal_event, events)

    def _seal_event(self, event: Event) -> Row:
        event = presentable(event, self._redactor, is_clean=self._are_clean)
        try:
            body = canonical(event)
        except TypeError:
            event = encodable(event)
            body = canonical(event)
        chain = self._chain
        sequence, previous, tag = chain.add(body)
        at, kind = event.at_unix_ms, event.type.value
        named = (at, kind, event.principal, event.tool, event.call_id, event.request_id)
        return (chain.writer, sequence, *named, body.decode(), previous, tag, chain.key_id)

    async def _until(self, sequence: int) -> None:
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((sequence, future))
        await future

    # Callbacks of the writer's thread

    def on_commit(self, sequence: int, events: int, seconds: float) -> None:
        self._on_loop(partial(self._report_commit, sequence, events, seconds))

    def _report_commit(self, sequence: int, events: int, seconds: float) -> None:
        self._settle(sequence, "")
        if self._observer is not None:
            assert self._loop is not None  # and the woken tasks run first
            self._loop.call_soon(self._observer.audit_committed, events, seconds, self.depth)

    def on_failure(self, reason: str) -> None:
        self._on_loop(partial(self._settle, 0, reason))
        if self._observer is not None:
            self._observer.audit_failed(reason)

    def publish(self, table: EventTable) -> bool:
        tails = list(self._tails)
        if not tails:
            return False
        for last_row, events in news(table, min(tail.after_row for tail in tails)):
            offers: list[tuple[Tail, list[ChainedEvent]]] = []
            for tail in tails:
                offers.append((tail, [event for row, event in events if row > tail.after_row]))
                tail.after_row = max(last_row, tail.after_row)
            self._on_loop(partial(_offer, offers))
        return True

    def _on_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _settle(self, durable: int, failure: str) -> None:
        """Wake those whose events are on disk; when the disk failed, raise the error in all others."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
        while failure and waiting:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_exception(_log_failure("disk"))

    # Reading

    async def read(
        self, where: EventFilter, *, after: tuple[int, str, int] | None, limit: int
    ) -> Sequence[ChainedEvent]:
        """Return events in (at_unix_ms, writer, sequence) order after the cursor, including all appended before."""
        await self._flush_if_well()
        return await asyncio.to_thread(page_of, self.events, where, after, limit)

    async def export(self, where: EventFilter) -> AsyncIterator[bytes]:
        """Yield JSON lines, each event with its place in the chain; `event` is the exact text that the tag covers."""
        after: tuple[int, str, int] | None = None
        while page := await self.read(where, after=after, limit=_EXPORT_PAGE):
            for each in page:
                yield export_line(each)
            after = (page[-1].event.at_unix_ms, page[-1].writer, page[-1].sequence)

    def tail(self, where: EventFilter) -> Tail:
        """Return the events of every process from now on, as they become durable."""
        after_row = self.events.last_row()
        tail = Tail(where, after_row, closed=self._tails.discard, limit=self._tail_limit)
        if self._group is None:
            tail.end()
        else:
            self._tails.add(tail)
            self._group.write_now()
        return tail

    async def verify(self, witnesses: Iterable[str] = ()) -> Verification:
        """Check every event and checkpoint; the events that this process wrote count as attested, too."""
        await self._flush_if_well()
        own = (self.writer, *self._group.durable) if self._group is not None else None
        return await asyncio.to_thread(
            verify_events, self.events, self._checkpoint_path, self._keyring, witnesses=witnesses, own=own
        )

    def prune(self, before_unix_ms: int, max_row: int | None = None, *, archive: EventArchive | None = None) -> int:
        """Run one pass of `retention.prune`, in a thread; return how many events were removed."""
        return prune(self.events, self._checkpoints, before_unix_ms, max_row=max_row, archive=archive)

    async def _flush_if_well(self) -> None:
        """Flush if the log is well. When the disk refuses, reads omit the events still in memory."""
        try:
            await self.flush()
        except ToolFailure:
            if self._group is None or not self._group.failure:
                raise


class SqliteAuditLog(ChainedAuditLog):
    """The log in one SQLite file. `max_size_bytes` 0: as the disk allows."""

    def __init__(
        self, database: Path, checkpoints: Path, key: Path, *, max_size_bytes: int = 0, **options: Any
    ) -> None:
        super().__init__(SqliteEvents(database, max_size_bytes=max_size_bytes), checkpoints, key, **options)


def _offer(offers: list[tuple[Tail, list[ChainedEvent]]]) -> None:
    """Give news to all watchers in one iteration of the loop, so that none sees an event before another could have."""
    for tail, events in offers:
        tail.offer(events)


def _log_failure(cause: str) -> ToolFailure:
    """Return the error of the log.

    `cause` is `closed`, `queue_full` or `disk`; only the observer gets the disk's own error.
    """
    message = "The audit log cannot be written, so no call may run. Tell the operator; try again later."
    return refuse(ErrorKind.IO_ERROR, message, retryable=True, retry_after_s=1.0, component="audit", cause=cause)


__all__ = ["ChainedAuditLog", "CommitObserver", "SqliteAuditLog", "WriterTiming"]
