"""The hub's own file, and the thread that changes it, many changes a commit, one fsync a commit.

The thread takes all queued changes, applies them in order inside one transaction (neighbours of one kind together),
commits, looks for news, and hands everything to the event loop in one callback: while one fsync runs, the next group
collects. A change that fails is undone by its savepoint and fails alone; when SQLite or the disk refuses the commit,
the whole group fails, and the connection is reopened.

News of other processes are found by `PRAGMA data_version`, which changes when another connection has committed: this
thread reads it every `poll_s`, only while somebody watches, and after each of its own commits, so that all news come in
the order of the file, whoever wrote them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.stores.sqlite.migrations import COUNTED_ADDITION, MIGRATIONS, Migrations

DISK_FULL: Final = "disk_full"
"""The `cause` of a change that the disk has no space for."""


class FileTooNew(Exception):
    """The file was written by a later version of the hub."""


def connect(
    path: Path, *, busy_timeout_s: float, migrations: Migrations | None = None, declared: Sequence[str] = ()
) -> sqlite3.Connection:
    """Return a connection that writes to the migrated file: WAL, every commit fsynced, the file for its owner only.

    `migrations`: those of another file than the hub's. `declared`: statements that create what is absent.

    Raises sqlite3.Error, OSError or FileTooNew.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        with alone_in(path.parent):
            connection.execute("PRAGMA journal_mode = WAL")
            if migrations is None:
                _uncount(connection)
            _migrate(connection, MIGRATIONS if migrations is None else migrations)
            for statement in declared:
                connection.execute(statement)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Return a connection that only reads. Raises sqlite3.Error."""
    uri = path.absolute().as_uri() + "?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
    connection.create_function("matches_glob", 2, fnmatchcase, deterministic=True)
    return connection


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Exclude other processes: SQLite's own timeout does not cover the change to WAL, which fails at once when two make
    it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _uncount(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == COUNTED_ADDITION > len(MIGRATIONS):
        connection.execute(f"PRAGMA user_version = {COUNTED_ADDITION - 1}")


def _migrate(connection: sqlite3.Connection, migrations: Migrations) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise FileTooNew(f"it has version {version}, and this hub knows {len(migrations)}")
    for number, statements in enumerate(migrations[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


I = TypeVar("I")  # noqa: E741 — an item
A = TypeVar("A")

# Most changes of a commit.
_GROUP_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Change(Generic[I, A]):
    """One kind of change."""

    apply: Callable[[sqlite3.Connection, Sequence[I]], Sequence[A]]
    """Makes the changes, in order, and answers each. Runs in a transaction; when it raises, each is tried alone."""
    committed: Callable[[Sequence[I], Sequence[A]], None] | None = None
    """Called, in the writer's thread, with what is on disk now, in order."""


def one_by_one(apply: Callable[[sqlite3.Connection, I], A]) -> Callable[[sqlite3.Connection, Sequence[I]], Sequence[A]]:
    """Return a change that makes a group's changes one after the other."""
    return lambda connection, items: [apply(connection, item) for item in items]


class Watch(Protocol):
    def after_commits(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        """Called after commits in the writer's thread; return what to call on the loop.

        `foreign`: others may have committed.
        """
        ...


class QueuedChange(Struct, frozen=True, gc=False):
    """One change in the queue, and the future of its caller."""

    change: Change[Any, Any]
    item: Any
    answer: asyncio.Future[Any]


class FileWriter:
    """Owns the queue, the writing connection and the thread."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        opened: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        poll_s: float,
    ) -> None:
        """`opened` is the first connection; `connect` makes the next when it has failed."""
        self._connect = connect
        self._connection: sqlite3.Connection | None = opened
        self._loop = loop
        self._poll_s = poll_s
        self._wake = threading.Condition(threading.Lock())
        self._queue: list[QueuedChange] = []
        self._watches: tuple[Watch, ...] = ()
        self._closing = False
        # Whether a new watch waits for its first check.
        self._at_once = False
        # Whether commits by others may have been missed: after a new connection or a new watch.
        self._must_reread = True
        self._data_version = 0
        self._thread = threading.Thread(target=self._run, name="hub-db-writer", daemon=True)
        self._thread.start()

    def put(self, asked: QueuedChange) -> None:
        with self._wake:
            self._queue.append(asked)
            if len(self._queue) == 1:
                self._wake.notify()

    def watch(self, watch: Watch) -> None:
        """Call it from now on, for the first time at once."""
        with self._wake:
            if watch not in self._watches:
                self._watches = (*self._watches, watch)
            self._at_once = self._must_reread = True
            self._wake.notify()

    def unwatch(self, watch: Watch) -> None:
        self._watches = tuple(other for other in self._watches if other is not watch)

    def stop(self) -> None:
        """Make the changes that are queued and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            group = self._gather()
            answers = self._commit(group) if group else []
            news = self._run_watches()
            if news or answers:
                self._on_loop(news, list(zip((asked.answer for asked in group), answers, strict=True)))
            if self._closing and not self._queue:
                if self._connection is not None:
                    self._connection.close()
                return

    def _gather(self) -> list[QueuedChange]:
        with self._wake:
            if not (self._queue or self._closing or self._at_once):
                self._wake.wait(self._poll_s if self._watches else None)
            self._at_once = False
            group = self._queue[:_GROUP_LIMIT]
            del self._queue[:_GROUP_LIMIT]
        return group

    def _commit(self, group: list[QueuedChange]) -> list[Any]:
        """Return the answers, or exceptions, in the order of the group."""
        try:
            connection = self._connection = self._connection or self._connect()
            connection.execute("BEGIN IMMEDIATE")
            done = [
                (change, *_together(connection, change, list(run)))
                for change, run in groupby(group, attrgetter("change"))
            ]
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 — a dead writer would leave everyone waiting for ever
            self._give_up()
            return [unavailable(error)] * len(group)
        for change, items, answers in done:
            if change.committed is not None:
                good = [(item, answer) for item, answer in zip(items, answers, strict=True) if not _is_failure(answer)]
                change.committed([item for item, _ in good], [answer for _, answer in good])
        return [answer for *_, answers in done for answer in answers]

    def _run_watches(self) -> list[Callable[[], None]]:
        watches = self._watches
        news: list[Callable[[], None]] = []
        if not watches:
            return news
        try:
            connection = self._connection = self._connection or self._connect()
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            with self._wake:
                foreign, self._must_reread = self._must_reread or version != self._data_version, False
            self._data_version = version
            found = (watch.after_commits(connection, foreign) for watch in watches)
            news.extend(notify for notify in found if notify is not None)
        except Exception:  # noqa: BLE001 — the writer lives on; what was missed is read when the file can be read again
            self._give_up()
        return news

    def _give_up(self) -> None:
        """Close the connection, which undoes its transaction; the next one reads all news anew."""
        connection, self._connection = self._connection, None
        self._must_reread = True
        if connection is not None:
            connection.close()

    def _on_loop(self, news: list[Callable[[], None]], answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        try:
            self._loop.call_soon_threadsafe(_deliver, news, answers)
        except RuntimeError:
            self._closing = True  # the loop is closed: no caller is left


def unavailable(error: BaseException | None = None, cause: str = "disk") -> ToolFailure:
    """Return the caller's error; SQLite's own messages name no path and no value."""
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        cause = DISK_FULL
    quoted = f" ({error})" if isinstance(error, sqlite3.Error) else ""
    message = f"The hub's own store cannot be read or written{quoted}. Tell the operator; try again later."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retry_after_s=1.0, component="store", cause=cause)


def _is_failure(answer: object) -> bool:
    return isinstance(answer, Exception)


def _together(
    connection: sqlite3.Connection, change: Change[Any, Any], run: list[QueuedChange]
) -> tuple[list[Any], Sequence[Any]]:
    """Return the items with their answers. Raises sqlite3.Error when the transaction itself is lost."""
    items = [asked.item for asked in run]
    connection.execute("SAVEPOINT change")
    try:
        answers = change.apply(connection, items)
    except Exception as error:
        if not connection.in_transaction:  # SQLite has rolled back the transaction: the disk is full, or gone
            raise
        connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        if len(run) == 1:
            return items, [unavailable(error) if isinstance(error, sqlite3.Error) else error]
        return items, [answer for asked in run for answer in _together(connection, change, [asked])[1]]
    connection.execute("RELEASE change")
    return items, answers


def _deliver(news: list[Callable[[], None]], answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    """Called on the loop: news first, so that they are delivered before a caller gets its answer."""
    for notify in news:
        notify()
    for future, answer in answers:
        if future.done():
            continue
        if _is_failure(answer):
            future.set_exception(answer)
        else:
            future.set_result(answer)
