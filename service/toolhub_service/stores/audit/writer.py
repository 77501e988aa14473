"""The thread that writes the audit log: many events a commit, one fsync a commit.

Appending only queues. The thread lingers a few milliseconds for company unless somebody waits for the disk, takes all
there is, seals it event by event (a group at once runs from warm caches, at a third of what it costs between calls) and
commits it in one transaction (group commit: while one fsync runs, the next group gathers).

What a call that comes alone waits for is threads that wake up, so none does without need: after a commit the thread
lingers unasked, which is when the call's answer is appended; the little that is queued when the thread is woken is
sealed by the one who woke it, in the time that this takes; and of a commit it tells the loop before all else, for
whoever was woken wants the interpreter to itself.

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
        """Whether it was set; False after `timeout_s`, of which None is for ever."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)


_RETRY_S: Final = 1.0
# Events that are looked at together for secrets: all of them are looked at again, one by one, where one is found.
_SEALED_AT_ONCE: Final = 64
_SEALED_BY_CALLER: Final = 4
# After so many the store is tidied in the next moment in which nothing comes.
_TIDY_EVENTS: Final = 250


class WriterTiming(msgspec.Struct, frozen=True):
    """When the writer acts."""

    linger_s: float = 0.01
    """How long an event that nobody waits for may lie in memory."""
    queue_limit: int = 10_000
    """Events in memory; beyond, appends are refused."""
    group_limit: int = 2_000
    """Events a commit."""
    checkpoint_events: int = 10_000
    checkpoint_s: float = 30.0
    """At the latest so many events, or so long after an event, the chain is attested."""


class Committed(Protocol):
    """Told from the writer's thread; must not wait."""

    def committed(self, sequence: int, events: int, seconds: float) -> None:
        """All up to `sequence` is on disk."""
        ...

    def failed(self, reason: str) -> None:
        """A group could not be written; it will be tried again."""
        ...

    def publish(self, table: EventTable) -> bool:
        """Feed those who watch; whether there are any."""
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
        # Chains the next events, each when its row is asked for; by one thread at a time, in the order of `put`.
        self._seal = seal
        self._observer = observer
        self._timing = timing
        # Of whoever puts into the queue, or takes out of it.
        self._lock = threading.Lock()
        self._wake = WakeEvent()
        self._queue: list[Event] = []
        # Out of the queue and not sealed yet.
        self._taken: deque[Event] = deque()
        self._group: list[Row] = []
        # Whether the thread waits, is about to, or has been woken and has not taken the queue yet.
        self._resting = False
        # Whether it waits and is to be woken even for what nobody waits for.
        self._idle = False
        self._urgent = False
        self._just_wrote = False
        # Events since the store was last tidied.
        self._untidy = 0
        self._closing = False
        # Whether this pass began when it was closing already.
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
        """Write what is queued, attest the end of the chain, end the thread. Look at `failure` afterwards."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    @property
    def depth(self) -> int:
        """Events in memory."""
        return len(self._queue) + len(self._taken) + len(self._group)

    def put(self, event: Event, *, urgent: bool) -> bool:
        """Queue one event; False where there is no room. The thread is woken only when it is idle or somebody waits for
        the disk."""
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
                with suppress(Exception):  # the thread meets it again, and tells everybody
                    self._seal_taken()

    def write_now(self) -> None:
        """Write now what is queued, or feed the watchers."""
        self._urgent = True
        self._wake.set()

    def _run(self) -> None:
        table: EventTable | None = None
        while True:
            self._gather()
            try:
                if table is None:
                    table = self._events.open(create=False)  # a log that has vanished is never made anew in silence
                    self._checked_at_s = 0.0
                self._check(table)
                self._commit(table)
                self._attest(table)
                self._tidy(table)
                self._tailing = self._observer.publish(table)
                self.failure = ""
            except Exception as error:  # noqa: BLE001 — a dead writer would leave everyone waiting for ever
                self._fail(error)
                _close(table)
                table = None
            if self._finished():
                _close(table)
                return

    def _gather(self) -> None:
        """Sleep until there is something to do, then take it."""
        self._resting = True
        if not self.failure:
            self._wait_for_events()
        elif not self._closing:
            self._wake.wait(_RETRY_S)
        with self._lock:
            self._resting = False
            self._ending = self._closing
            self._wake.clear()  # whatever it was set for is taken, or done, below
            self._urgent = False
            self._take(max(0, self._timing.group_limit - len(self._group) - len(self._taken)))
            self._urgent = self._urgent or bool(self._queue)

    def _take(self, count: int) -> None:
        self._taken += self._queue[:count]
        self._queue = self._queue[count:]

    def _wait_for_events(self) -> None:
        """Linger unasked after a commit; when nothing has come, be idle; then linger for company."""
        if self._just_wrote:
            self._linger()
            if self._queue or self._group or self._untidy >= _TIDY_EVENTS:
                return
        self._idle = True
        if not (self._queue or self._group or self._urgent or self._closing):  # looked at once `put` can see `_idle`
            self._wake.wait(self._patience_s())
        self._idle = False
        if self._queue:
            self._linger()

    def _linger(self) -> None:
        if not (self._urgent or self._closing):
            self._wake.wait(self._timing.linger_s)

    def _check(self, table: EventTable) -> None:
        """Now and then, and whenever the log was opened: is it still what was written?"""
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
        self._observer.committed(self.durable[0], len(group), time.perf_counter() - started_s)
        table.announce()

    def _seal_taken(self) -> None:
        taken = self._taken
        while taken:
            for row in self._seal(list(islice(taken, _SEALED_AT_ONCE))):
                self._group.append(row)
                taken.popleft()  # once it is sealed, and never twice

    def _attest(self, table: EventTable) -> None:
        """Sign what is on disk when it is time, and at the end."""
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
        self._observer.failed(self.failure)

    def _finished(self) -> bool:
        """At the end a failing disk is tried once more and not for ever."""
        return self._ending and (bool(self.failure) or not (self._queue or self._taken or self._group))


def _close(table: EventTable | None) -> None:
    if table is not None:
        table.close()
