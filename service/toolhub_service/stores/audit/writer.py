"""The thread that writes the audit log: many events a commit, one fsync a commit.

Appending only queues. The thread waits a few milliseconds for more events unless somebody waits for the disk, takes the
whole queue, seals it event by event (a group at once runs from warm caches, at a third of what it costs between calls)
and commits it in one transaction (group commit: while one fsync runs, the next group gathers).

A call that comes alone mostly waits for threads to wake up, so unneeded wake-ups are avoided: after a commit the thread
waits without being asked, because the call's answer is appended then; the caller that wakes the thread seals the few
queued events while it wakes up; and the thread reports a commit to the loop first, because the woken tasks need the
GIL.

When the disk refuses, nothing is lost and nothing is skipped: the group stays at the head of the queue and is tried
again every second, while every append is refused.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

import msgspec

from toolhub_service.domain.event import Event
from toolhub_service.stores.audit.chain import GENESIS
from toolhub_service.stores.audit.checkpoint import CLOSE, PERIODIC, CheckpointFile
from toolhub_service.stores.audit.events import EventStore, EventTable, Row


class WakeEvent:
    """Wakes one waiting thread, now or at its next wait; set twice, it wakes once."""

    # A bare lock, all C, where `threading.Condition` is Python: each append wakes the thread.

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    def clear(self) -> None:
        """Forget that it was set."""
        self._lock.acquire(blocking=False)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait; return False when it was not set within `timeout_s`. None waits without end."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)


_RETRY_S: Final = 1.0
# Events searched together for secrets; when one is found, all of them are searched again one by one.
_SEALED_AT_ONCE: Final = 64
_SEALED_BY_CALLER: Final = 4
# After so many events the store is tidied at the next idle moment.
_TIDY_EVENTS: Final = 250


class WriterTiming(msgspec.Struct, frozen=True):
    """When the writer commits, refuses and attests."""

    linger_s: float = 0.01
    """How long an event that nobody waits for may lie in memory."""
    queue_limit: int = 10_000
    """Events in memory; beyond that, appends are refused."""
    group_limit: int = 2_000
    """Most events of a commit."""
    checkpoint_events: int = 10_000
    checkpoint_s: float = 30.0
    """The chain is attested after so many events, or so long after an event, whichever comes first."""


class Committed(Protocol):
    """Called from the writer's thread; must not block."""

    def on_commit(self, sequence: int, events: int, seconds: float) -> None:
        """All events up to `sequence` are on disk."""
        ...

    def on_failure(self, reason: str) -> None:
        """A group could not be written; it will be tried again."""
        ...

    def publish(self, table: EventTable) -> bool:
        """Give new events to watchers; return whether there are any watchers."""
        ...


class GroupWriter:
    """Owns the queue, the connection and the thread of one writer's chain."""

    def __init__(
        self,
        events: EventStore,
        writer: str,
        checkpoints: CheckpointFile,
        *,
        seal: Callable[[Sequence[Event]], Iterable[Row]],
        observer: Committed,
        timing: WriterTiming,
    ) -> None:
        self._events = events
        self._writer = writer
        self._checkpoints = checkpoints
        # Seals the next events, each when its row is iterated; by one thread at a time, in the order of `put`.
        self._seal = seal
        self._observer = observer
        self._timing = timing
        # Held when adding to the queue or taking from it.
        self._lock = threading.Lock()
        self._wake = WakeEvent()
        self._queue: list[Event] = []
        # Events taken from the queue and not sealed yet.
        self._taken: deque[Event] = deque()
        self._group: list[Row] = []
        # Whether the thread waits, is about to wait, or has been woken and has not taken the queue yet.
        self._resting = False
        # Whether the thread waits and is to be woken even for events that nobody waits for.
        self._idle = False
        self._urgent = False
        self._just_wrote = False
        # Events since the store was last tidied.
        self._untidy = 0
        self._closing = False
        # Whether `stop` had been called when this pass began.
        self._ending = False
        self._tailing = False
        self.failure = ""
        """Why the log is broken now; empty when it is well."""
        self.durable: tuple[int, str] = (0, GENESIS)
        """Sequence and tag of the last event on disk."""
        self._attested = 0
        self._attested_at_s = time.monotonic()
        self._checked_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, attest the end of the chain, end the thread. Check `failure` afterwards."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    @property
    def depth(self) -> int:
        """Return how many events are in memory."""
        return len(self._queue) + len(self._taken) + len(self._group)

    def put(self, event: Event, *, urgent: bool) -> bool:
        """Queue one event; return False when the queue is full.

        The thread is woken only when it is idle or somebody waits for the disk.
        """
        if len(self._queue) + len(self._taken) + len(self._group) >= self._timing.queue_limit:
            return False
        with self._lock:
            self._queue.append(event)
        if urgent:
            self.write_now()
            self._seal_while_it_wakes()
        elif self._idle:
            self._wake.set()
        return True

    def _seal_while_it_wakes(self) -> None:
        with self._lock:
            if self._resting and len(self._queue) <= _SEALED_BY_CALLER and not (self._taken or self._group):
                self._take(_SEALED_BY_CALLER)
                with suppress(Exception):  # the thread meets the error again, and reports it
                    self._seal_taken()

    def write_now(self) -> None:
        """Write what is queued, or feed the watchers, now."""
        self._urgent = True
        self._wake.set()

    def _run(self) -> None:
        table: EventTable | None = None
        while True:
            self._gather()
            try:
                if table is None:
                    table = self._events.open(create=False)  # a log that was removed is never silently made anew
                    self._checked_at_s = 0.0
                self._check_log(table)
                self._commit(table)
                self._attest(table)
                self._tidy(table)
                self._tailing = self._observer.publish(table)
                self.failure = ""
            except Exception as error:  # noqa: BLE001 — a dead writer would leave everyone waiting for ever
                self._fail(error)
                _close(table)
                table = None
            if self._is_finished():
                _close(table)
                return

    def _gather(self) -> None:
        """Wait until there is something to do, then take it."""
        self._resting = True
        if not self.failure:
            self._wait_for_events()
        elif not self._closing:
            self._wake.wait(_RETRY_S)
        with self._lock:
            self._resting = False
            self._ending = self._closing
            self._wake.clear()  # the reasons it was set are handled below
            self._urgent = False
            self._take(max(0, self._timing.group_limit - len(self._group) - len(self._taken)))
            self._urgent = self._urgent or bool(self._queue)

    def _take(self, count: int) -> None:
        self._taken += self._queue[:count]
        self._queue = self._queue[count:]

    def _wait_for_events(self) -> None:
        """Wait briefly after a commit; when nothing has come, be idle; then wait briefly for more events."""
        if self._just_wrote:
            self._linger()
            if self._queue or self._group or self._untidy >= _TIDY_EVENTS:
                return
        self._idle = True
        if not (self._queue or self._group or self._urgent or self._closing):  # read after `put` can see `_idle`
            self._wake.wait(self._patience_s())
        self._idle = False
        if self._queue:
            self._linger()

    def _linger(self) -> None:
        if not (self._urgent or self._closing):
            self._wake.wait(self._timing.linger_s)

    def _check_log(self, table: EventTable) -> None:
        """Check, at intervals and after each opening, that the log is unchanged."""
        if time.monotonic() >= self._checked_at_s + self._events.check_s:
            self._checkpoints.check()
            table.check(self._writer, *self.durable)
            self._checked_at_s = time.monotonic()

    def _patience_s(self) -> float:
        if self._tailing:
            return self._events.poll_s
        due_s = self._checked_at_s + self._events.check_s
        if self.durable[0] > self._attested:
            due_s = min(due_s, self._attested_at_s + self._timing.checkpoint_s)
        return max(0.0, due_s - time.monotonic())

    def _commit(self, table: EventTable) -> None:
        self._seal_taken()
        group = self._group
        self._just_wrote = bool(group)
        if not group:
            return
        started_s = time.perf_counter()
        table.insert(group)
        if self.durable[0] == self._attested:
            self._attested_at_s = time.monotonic()
        self.durable = (group[-1][1], group[-1][10])
        self._group = []
        self._untidy += len(group)
        self._observer.on_commit(self.durable[0], len(group), time.perf_counter() - started_s)
        table.announce()

    def _seal_taken(self) -> None:
        taken = self._taken
        while taken:
            for row in self._seal(list(islice(taken, _SEALED_AT_ONCE))):
                self._group.append(row)
                taken.popleft()  # once it is sealed, and never twice

    def _attest(self, table: EventTable) -> None:
        """Sign what is on disk, at intervals and at the end."""
        count, head = self.durable
        last = self._ending and not self._queue
        due_s = self._attested_at_s + self._timing.checkpoint_s
        due = count - self._attested >= self._timing.checkpoint_events or time.monotonic() >= due_s
        if last or (due and count > self._attested):
            checkpoint = self._checkpoints.append(CLOSE if last else PERIODIC, self._writer, count, head)
            table.keep_copy(checkpoint.number, checkpoint.line())
            self._attested, self._attested_at_s = count, time.monotonic()

    def _tidy(self, table: EventTable) -> None:
        if self._untidy >= _TIDY_EVENTS and not self._just_wrote:
            table.tidy()
            self._untidy = 0

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self._observer.on_failure(self.failure)

    def _is_finished(self) -> bool:
        """Return whether to end. At the end a failing disk is tried once more, not for ever."""
        return self._ending and (bool(self.failure) or not (self._queue or self._taken or self._group))


def _close(table: EventTable | None) -> None:
    if table is not None:
        table.close()
