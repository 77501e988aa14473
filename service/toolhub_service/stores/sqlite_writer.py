"""The hub's own file: how it is laid out, and the thread that changes it, many changes a commit, one fsync a commit.

The thread takes all that is queued, applies it in the order of asking inside one transaction (neighbours of one kind
together), commits, looks for news, and tells the event loop everything in one turn: while one fsync runs, the next
group gathers. A change that fails is undone by its savepoint and fails alone; when SQLite or the disk refuses the
commit, all of the group fail, and the connection is made anew.

News of other processes are found by `PRAGMA data_version`, which changes when somebody else has committed: one look
every `poll_s`, by this thread and only while somebody watches. The same thread looks after each of its own commits, so
that all news come in the order of the file, whoever wrote them.
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
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse

# The layout, and how it came about: one migration after the other, by `PRAGMA user_version`.
#
# The columns repeat what pages, sweeps and compare-and-set need of a record; the record itself is the blob of `codec`.
# A migration that has been released is never changed; the next one follows it.

_JOBS: Final = (
    """CREATE TABLE jobs (
        job_id TEXT PRIMARY KEY, version INTEGER NOT NULL, sequence INTEGER NOT NULL, state TEXT NOT NULL,
        is_final INTEGER NOT NULL, runner TEXT NOT NULL, created_at_unix_ms INTEGER NOT NULL,
        entered_at_unix_ms INTEGER NOT NULL, deadline_unix_ms INTEGER NOT NULL, expires_at_unix_ms INTEGER NOT NULL,
        principal TEXT NOT NULL, tool TEXT NOT NULL, idempotency_key TEXT NOT NULL, request_id TEXT NOT NULL,
        task_id TEXT NOT NULL, frame BLOB NOT NULL)""",
    "CREATE INDEX jobs_by_time ON jobs (created_at_unix_ms, job_id)",
    "CREATE INDEX jobs_by_principal ON jobs (principal, created_at_unix_ms, job_id)",
    "CREATE UNIQUE INDEX jobs_by_key ON jobs (principal, tool, idempotency_key) WHERE idempotency_key != ''",
    "CREATE INDEX jobs_open ON jobs (state) WHERE is_final = 0",
    "CREATE INDEX jobs_expiring ON jobs (expires_at_unix_ms) WHERE is_final = 1",
    "CREATE TABLE job_args (job_id TEXT PRIMARY KEY, args BLOB NOT NULL)",
    """CREATE TABLE job_entries (
        row INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, sequence INTEGER NOT NULL, status BLOB NOT NULL,
        UNIQUE (job_id, sequence))""",
    "CREATE TABLE runners (runner TEXT PRIMARY KEY, alive_until_unix_ms INTEGER NOT NULL)",
)
_KEYS: Final = (
    """CREATE TABLE keys (
        principal TEXT NOT NULL, tool TEXT NOT NULL, key TEXT NOT NULL, owner TEXT NOT NULL, settled INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, size_bytes INTEGER NOT NULL, record BLOB NOT NULL,
        UNIQUE (principal, tool, key))""",
    "CREATE INDEX keys_expiring ON keys (expires_at_unix_ms)",
    "CREATE TABLE key_usage (keys INTEGER NOT NULL, size_bytes INTEGER NOT NULL)",
    "INSERT INTO key_usage VALUES (0, 0)",
    """CREATE TRIGGER key_put AFTER INSERT ON keys BEGIN
        UPDATE key_usage SET keys = keys + 1, size_bytes = size_bytes + new.size_bytes; END""",
    """CREATE TRIGGER key_changed AFTER UPDATE OF size_bytes ON keys BEGIN
        UPDATE key_usage SET size_bytes = size_bytes + new.size_bytes - old.size_bytes; END""",
    """CREATE TRIGGER key_forgotten AFTER DELETE ON keys BEGIN
        UPDATE key_usage SET keys = keys - 1, size_bytes = size_bytes - old.size_bytes; END""",
)
_APPROVALS: Final = (
    """CREATE TABLE approvals (
        approval_id TEXT PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL, is_open INTEGER NOT NULL,
        binding TEXT NOT NULL, principal TEXT NOT NULL, tool TEXT NOT NULL, requested_at_unix_ms INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX approvals_by_time ON approvals (requested_at_unix_ms, approval_id)",
    "CREATE INDEX approvals_by_principal ON approvals (principal, requested_at_unix_ms, approval_id)",
    "CREATE INDEX approvals_open ON approvals (binding) WHERE is_open = 1",
    "CREATE INDEX approvals_expiring ON approvals (is_open, expires_at_unix_ms)",
    """CREATE TABLE approval_changes (
        row INTEGER PRIMARY KEY AUTOINCREMENT, approval_id TEXT NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX approval_changes_of ON approval_changes (approval_id)",
)
_ARTIFACTS: Final = (
    """CREATE TABLE artifacts (
        artifact_id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, principal TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX artifacts_by_sha256 ON artifacts (sha256)",
    "CREATE INDEX artifacts_by_principal ON artifacts (principal, size_bytes)",
    "CREATE INDEX artifacts_expiring ON artifacts (expires_at_unix_ms)",
)
_PINS: Final = (
    """CREATE TABLE pins (
        source TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,
        seen_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (source, tool, digest))""",
    "CREATE INDEX pins_by_time ON pins (seen_at_unix_ms, source, tool, digest, state)",
    "CREATE TABLE pin_revision (revision INTEGER NOT NULL)",
    "INSERT INTO pin_revision VALUES (0)",
)
_USES: Final = (
    """CREATE TABLE tool_uses (
        row INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, tool TEXT NOT NULL, agent TEXT NOT NULL,
        purpose TEXT NOT NULL, at_unix_ms INTEGER NOT NULL)""",
    "CREATE INDEX tool_uses_of ON tool_uses (tenant, tool)",
    "CREATE INDEX tool_uses_by_time ON tool_uses (at_unix_ms)",
)
_SHARES_OF_KEYS: Final = (
    """CREATE TABLE key_usage_of (
        principal TEXT PRIMARY KEY, keys INTEGER NOT NULL, size_bytes INTEGER NOT NULL) WITHOUT ROWID""",
    "INSERT INTO key_usage_of SELECT principal, count(*), sum(size_bytes) FROM keys GROUP BY principal",
    """CREATE TRIGGER key_put_of AFTER INSERT ON keys BEGIN
        INSERT INTO key_usage_of VALUES (new.principal, 1, new.size_bytes)
            ON CONFLICT (principal) DO UPDATE SET
                keys = keys + 1, size_bytes = size_bytes + excluded.size_bytes; END""",
    """CREATE TRIGGER key_changed_of AFTER UPDATE OF size_bytes ON keys BEGIN
        UPDATE key_usage_of SET size_bytes = size_bytes + new.size_bytes - old.size_bytes
            WHERE principal = new.principal; END""",
    """CREATE TRIGGER key_forgotten_of AFTER DELETE ON keys BEGIN
        UPDATE key_usage_of SET keys = keys - 1, size_bytes = size_bytes - old.size_bytes
            WHERE principal = old.principal;
        DELETE FROM key_usage_of WHERE principal = old.principal AND keys = 0; END""",
)
Migrations: TypeAlias = tuple[tuple[str, ...], ...]
_INNER_CALLS: Final = (
    """CREATE TABLE inner_calls (
        job_id TEXT NOT NULL, place TEXT NOT NULL, version INTEGER NOT NULL, expires_at_unix_ms INTEGER NOT NULL,
        record BLOB NOT NULL, PRIMARY KEY (job_id, place))""",
    "CREATE INDEX inner_calls_expiring ON inner_calls (expires_at_unix_ms, job_id, place)",
)
MIGRATIONS: Final[Migrations] = (
    (*_JOBS, *_KEYS, *_APPROVALS, *_ARTIFACTS),
    (*_PINS, *_USES),
    _SHARES_OF_KEYS,
    _INNER_CALLS,
)
"""From version n of the file to n + 1."""


class FileTooNew(Exception):
    """The file was written by a later version of the hub."""


def connect(path: Path, *, busy_timeout_s: float, migrations: Migrations | None = None) -> sqlite3.Connection:
    """A connection that writes to the migrated file: WAL, every commit fsynced, the file for its owner only.
    `migrations`: of another file than the hub's.

    Raises sqlite3.Error, OSError or FileTooNew.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        with alone_in(path.parent):
            connection.execute("PRAGMA journal_mode = WAL")
            _migrate(connection, MIGRATIONS if migrations is None else migrations)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    uri = path.absolute().as_uri() + "?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = 1")
    connection.create_function("matches_glob", 2, fnmatchcase, deterministic=True)
    return connection


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One at a time: SQLite's own timeout does not cover the change to WAL, which fails at once when two make it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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

# Changes a commit.
_GROUP_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Change(Generic[I, A]):
    """One kind of change."""

    apply: Callable[[sqlite3.Connection, Sequence[I]], Sequence[A]]
    """Makes the changes, in order, and answers each. Runs in a transaction; when it raises, each is tried alone."""
    committed: Callable[[Sequence[I], Sequence[A]], None] | None = None
    """Told, in the writer's thread, of what is on disk now and in which order."""


def one_by_one(apply: Callable[[sqlite3.Connection, I], A]) -> Callable[[sqlite3.Connection, Sequence[I]], Sequence[A]]:
    """A group of changes is made one after the other."""
    return lambda connection, items: [apply(connection, item) for item in items]


class Watch(Protocol):
    def look(self, connection: sqlite3.Connection, foreign: bool) -> Callable[[], None] | None:
        """In the writer's thread, after commits; `foreign`: others may have committed. What to call on the loop."""
        ...


class Asked(Struct, frozen=True, gc=False):
    """One change in the queue, and who waits for it."""

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
        self._queue: list[Asked] = []
        self._watches: tuple[Watch, ...] = ()
        self._closing = False
        # Whether a new watch waits for its first look.
        self._at_once = False
        # Whether commits by others may have been missed: a new connection, a new watch.
        self._look_anew = True
        self._data_version = 0
        self._thread = threading.Thread(target=self._run, name="hub-db-writer", daemon=True)
        self._thread.start()

    def put(self, asked: Asked) -> None:
        with self._wake:
            self._queue.append(asked)
            if len(self._queue) == 1:
                self._wake.notify()

    def watch(self, watch: Watch) -> None:
        """Have it look from now on, for the first time at once."""
        with self._wake:
            if watch not in self._watches:
                self._watches = (*self._watches, watch)
            self._at_once = self._look_anew = True
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
            news = self._look()
            if news or answers:
                self._on_loop(news, list(zip((asked.answer for asked in group), answers, strict=True)))
            if self._closing and not self._queue:
                if self._connection is not None:
                    self._connection.close()
                return

    def _gather(self) -> list[Asked]:
        with self._wake:
            if not (self._queue or self._closing or self._at_once):
                self._wake.wait(self._poll_s if self._watches else None)
            self._at_once = False
            group = self._queue[:_GROUP_LIMIT]
            del self._queue[:_GROUP_LIMIT]
        return group

    def _commit(self, group: list[Asked]) -> list[Any]:
        """The answers, or exceptions, in the order of the group."""
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
                good = [(item, answer) for item, answer in zip(items, answers, strict=True) if not _failed(answer)]
                change.committed([item for item, _ in good], [answer for _, answer in good])
        return [answer for *_, answers in done for answer in answers]

    def _look(self) -> list[Callable[[], None]]:
        watches = self._watches
        news: list[Callable[[], None]] = []
        if not watches:
            return news
        try:
            connection = self._connection = self._connection or self._connect()
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            with self._wake:
                foreign, self._look_anew = self._look_anew or version != self._data_version, False
            self._data_version = version
            found = (watch.look(connection, foreign) for watch in watches)
            news.extend(notify for notify in found if notify is not None)
        except Exception:  # noqa: BLE001 — the writer lives on; what was missed is read when the file can be read again
            self._give_up()
        return news

    def _give_up(self) -> None:
        """Close the connection, which undoes its transaction, and look anew with the next one."""
        connection, self._connection = self._connection, None
        self._look_anew = True
        if connection is not None:
            connection.close()

    def _on_loop(self, news: list[Callable[[], None]], answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        try:
            self._loop.call_soon_threadsafe(_deliver, news, answers)
        except RuntimeError:
            self._closing = True  # the loop is closed: nobody is left who could ask or be answered


def unavailable(error: BaseException | None = None, cause: str = "disk") -> ToolFailure:
    """The error for a caller; SQLite's own words name no path and no value."""
    quoted = f" ({error})" if isinstance(error, sqlite3.Error) else ""
    message = f"The hub's own store cannot be read or written{quoted}. Tell the operator; try again later."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retry_after_s=1.0, component="store", cause=cause)


def _failed(answer: object) -> bool:
    return isinstance(answer, Exception)


def _together(
    connection: sqlite3.Connection, change: Change[Any, Any], run: list[Asked]
) -> tuple[list[Any], Sequence[Any]]:
    """The items and their answers. Raises sqlite3.Error when the transaction itself is lost."""
    items = [asked.item for asked in run]
    connection.execute("SAVEPOINT change")
    try:
        answers = change.apply(connection, items)
    except Exception as error:
        if not connection.in_transaction:  # SQLite has rolled all of it back: the disk is full, or gone
            raise
        connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        if len(run) == 1:
            return items, [unavailable(error) if isinstance(error, sqlite3.Error) else error]
        return items, [answer for asked in run for answer in _together(connection, change, [asked])[1]]
    connection.execute("RELEASE change")
    return items, answers


def _deliver(news: list[Callable[[], None]], answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    """On the loop: news first, so that who is answered finds them delivered."""
    for notify in news:
        notify()
    for future, answer in answers:
        if future.done():
            continue
        if _failed(answer):
            future.set_exception(answer)
        else:
            future.set_result(answer)
