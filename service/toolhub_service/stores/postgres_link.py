"""A process's link to PostgreSQL: a small pool for statements and one connection that listens, nothing per caller.

What may be done twice is done again when its connection turns out to be dead; anything else gets a connection that was
tried just before. So a connection that died in the pool costs nobody an answer. What a statement has changed is on the
server's disk when `run` returns: `synchronous_commit` is never off here. An answer that was lost on the way leaves open
whether the statement was done, and TOOL_UNAVAILABLE is raised for it as for any trouble.
Tables lie in the first schema of the URL's search_path; LISTEN needs a direct connection or a pooler in session mode.
Tested with PostgreSQL 15.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from toolhub_service.domain.error_spec import StartReason
from toolhub_service.domain.errors import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.stores.postgres_target import postgres_target

# Plain SQL files, applied in the order of their names, each once, by one process at a time.

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('toolhub stores'), hashtext(current_schema()))"
_IS_NEW: Final = "SELECT to_regclass('store_migrations') IS NULL"
_MAKE: Final = "CREATE TABLE store_migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"


def migrations() -> dict[str, str]:
    """The text of each file by its name, in order."""
    found = [file for file in (files(__package__) / "migrations").iterdir() if file.name.endswith(".sql")]
    return {file.name: file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)}


async def migrate(connection: AsyncConnection) -> list[str]:
    """Bring the tables up to this version, all or nothing; the names of what was applied.

    Raises HubFailure STORE_TOO_NEW when a newer version of the hub has changed them already.
    """
    known = migrations()
    async with connection.transaction():
        await connection.execute(_LOCK)
        applied = await _applied(connection)
        if strange := sorted(applied - known.keys()):
            message = f"The tables in PostgreSQL belong to a newer version of the hub ({strange[-1]}); start that one."
            raise HubFailure(StartReason.STORE_TOO_NEW, message)
        missing = [name for name in known if name not in applied]
        for name in missing:
            await connection.execute(known[name].encode())
            await connection.execute("INSERT INTO store_migrations (name) VALUES (%s)", (name,))
    return missing


async def _applied(connection: AsyncConnection) -> set[str]:
    if await (await connection.execute(_IS_NEW)).fetchone() == (True,):
        await connection.execute(_MAKE)
    rows = await (await connection.execute("SELECT name FROM store_migrations")).fetchall()
    return {name for (name,) in rows}


# What is told when PostgreSQL cannot be used: what kind of trouble, never an error's own text or the URL.

TROUBLE: tuple[type[Exception], ...] = (psycopg.Error, OSError)
"""psycopg's pool raises OperationalErrors too."""


def unavailable(reason: str, shown: str) -> ToolFailure:
    """`reason` is for operators; `shown` is the server's place without its password."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        "The hub's shared store (PostgreSQL) cannot be used at the moment, and what depends on it is refused rather "
        "than guessed. Try again in a moment; an operator finds the cause under `reason`.",
        retry_after_s=1.0,
        store="postgres",
        server=shown,
        reason=reason,
    )


def connection_was_lost(error: Exception) -> bool:
    """And another one may be had."""
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, PoolTimeout | PoolClosed):
        return False
    return error.sqlstate is None or error.sqlstate.startswith("57P")


def reason_of(error: Exception) -> str:
    match error:
        case PoolClosed():
            return "the hub is closing"
        case PoolTimeout():
            return "no connection in time"
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InsufficientPrivilege():
            return "it refuses the user, the password or what they may do"
        case errors.QueryCanceled():
            return "no answer in time"
        case errors.TooManyConnections() | errors.DiskFull() | errors.OutOfMemory():
            return "it has no room"
        case errors.AdminShutdown() | errors.CrashShutdown() | errors.CannotConnectNow():
            return "it is starting or stopping"
        case psycopg.Error() if error.sqlstate:
            return f"it answered {error.sqlstate}"
        case _:
            return f"no connection ({type(error).__name__})"


T = TypeVar("T")
_MAX_WAITING: Final = 10_000
_CONFIGURE: Final = """
SELECT set_config('statement_timeout', %s, false),
    set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false)"""


class PostgresLink:
    """Shared by the stores of a process. Each store starts it, its owner closes it."""

    def __init__(self, url: str, *, max_connections: int = 8, patience_s: float = 5.0) -> None:
        """`patience_s`: how long anything waits for the server, for a free connection and for an answer each.

        Raises HubFailure POSTGRES_URL_INVALID.
        """
        target = postgres_target(url, application="toolhub stores")
        self._conninfo, self._shown = target.conninfo, target.shown
        self._patience_s = patience_s
        self._max_connections = max_connections
        self._pool: AsyncConnectionPool[AsyncConnection] | None = None
        self._starting = asyncio.Lock()
        self._feeds: list[PostgresFeed] = []
        self._late: set[asyncio.Task[Any]] = set()
        self._schema = ""

    async def start(self) -> None:
        """Connect and bring the tables up to date. Raises ToolFailure TOOL_UNAVAILABLE, HubFailure STORE_TOO_NEW."""
        async with self._starting:
            if self._pool is None:
                try:
                    await self._migrate()
                    self._pool = self._new_pool()
                    await self._pool.open()
                except TROUBLE as error:
                    raise unavailable(reason_of(error), self._shown) from None

    async def close(self) -> None:
        for feed in self._feeds:
            await feed.close()
        self._feeds.clear()
        for task in self._late:
            task.cancel()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]], *, repeatable: bool) -> T:
        """What `work` makes of a connection, outside any transaction. Raises ToolFailure TOOL_UNAVAILABLE.

        `repeatable`: it does no harm when it is done once more after its answer was lost.
        """
        task = asyncio.ensure_future(self._lend(work, repeatable))
        try:
            done, _ = await asyncio.wait([task], timeout=3 * self._patience_s)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if not done:
            self._leave(task)
            raise unavailable("no answer in time", self._shown)
        return task.result()

    def channel(self, name: str) -> str:
        """The news of this schema: channels belong to the whole database. Once started."""
        return f"toolhub_{name}_{hashlib.sha256(self._schema.encode()).hexdigest()[:16]}"

    async def listen(self, name: str, on_event: Callable[[str | None], None]) -> PostgresFeed:
        """Tell `on_event` of each payload, None after a gap, until the feed is closed. Raises ToolFailure."""
        feed = PostgresFeed(self._conninfo, self.channel(name), on_event)
        self._feeds.append(feed)
        if not await feed.start(self._patience_s):
            await feed.close()
            raise unavailable(feed.trouble or "no answer in time", self._shown)
        return feed

    async def _lend(self, work: Callable[[AsyncConnection], Awaitable[T]], repeatable: bool) -> T:
        for _ in range(self._max_connections + 1):  # At worst all that rest in the pool are dead.
            if self._pool is None:
                raise unavailable("the hub is closing", self._shown)
            may_repeat = True
            try:
                async with self._pool.connection() as connection:
                    if not repeatable:
                        await AsyncConnectionPool.check_connection(connection)
                        may_repeat = False
                    return await work(connection)
            except TROUBLE as error:
                if not (may_repeat and connection_was_lost(error)):
                    raise unavailable(reason_of(error), self._shown) from None
        raise unavailable("connections are lost again and again", self._shown)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Wait no longer for a server that does not even answer a request to cancel; the pool bounds how many do."""
        task.cancel()
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        task.add_done_callback(_taken)

    async def _migrate(self) -> None:
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            await migrate(connection)
            ((self._schema,),) = await (await connection.execute("SELECT current_schema()")).fetchall()

    def _new_pool(self) -> AsyncConnectionPool[AsyncConnection]:
        return AsyncConnectionPool(
            self._conninfo,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=self._max_connections,
            open=False,
            configure=self._configure,
            timeout=self._patience_s,
            max_waiting=_MAX_WAITING,
            # The pool's own backoff doubles without end: give up early, the next request tries anew.
            reconnect_timeout=2.0,
            name="toolhub",
        )

    async def _configure(self, connection: AsyncConnection) -> None:
        await connection.execute(_CONFIGURE, (str(round(self._patience_s * 1_000)),))


def _taken(task: asyncio.Task[Any]) -> None:
    """Nobody waits for its outcome any more."""
    if not task.cancelled():
        task.exception()


# The one connection of a process that listens: opened anew with backoff when it is lost, and then a gap is told.

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


class PostgresFeed:
    """Calls `on_event`, on the event loop, with each payload on the channel, and with None after a gap."""

    def __init__(self, conninfo: str, channel: str, on_event: Callable[[str | None], None]) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._on_event = on_event
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why it does not listen at the moment; empty while it does."""

    async def start(self, patience_s: float) -> bool:
        """Whether it listens; it goes on trying where it does not."""
        self._task = asyncio.create_task(self._keep_listening())
        try:
            async with asyncio.timeout(patience_s):
                await self._listening.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_listening(self) -> None:
        retry_s, listened_before = _FIRST_RETRY_S, False
        while True:
            try:
                async with self._connected() as connection:
                    self._listening.set()
                    retry_s, self.trouble = _FIRST_RETRY_S, ""
                    if listened_before:
                        self._on_event(None)
                    listened_before = True
                    async for news in connection.notifies():
                        self._on_event(news.payload)
            except TROUBLE as error:
                self.trouble = reason_of(error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            await connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
            yield connection


# Group commit: what many callers want written goes out in one statement; while it is under way the next group gathers.
#
# A statement is a transaction, so each group is kept or refused as one; of two changes to the same thing only the first
# is in a group, the second goes with the next.

W = TypeVar("W")
A = TypeVar("A")
_GROUP: Final = 500
_MAX_QUEUED: Final = 20_000


class BatchWriter(Generic[W, A]):
    """`write` answers each of a group, in their order; an exception among the answers is raised for that caller."""

    def __init__(
        self,
        link: PostgresLink,
        write: Callable[[AsyncConnection, Sequence[W]], Awaitable[Sequence[A | Exception]]],
        *,
        key: Callable[[W], object],
        repeatable: bool,
    ) -> None:
        """`key`: what two changes have in common that must not be written at once. `repeatable`: see the link's run."""
        self._link = link
        self._write = write
        self._key = key
        self._repeatable = repeatable
        self._waiting: list[tuple[W, asyncio.Future[A]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, wanted: W) -> A:
        """Raises ToolFailure TOOL_UNAVAILABLE, RATE_LIMITED when too much waits; durable when it returns."""
        if len(self._waiting) >= _MAX_QUEUED:
            raise refuse(ErrorKind.RATE_LIMITED, "The hub's store is overloaded. Try again later.", retry_after_s=1.0)
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, answer))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await answer

    async def close(self) -> None:
        """Return when what waits has been written or refused."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_all(self) -> None:
        try:
            while group := self._next_group():
                await self._write_group(group)
        finally:
            self._writer = None

    def _next_group(self) -> list[tuple[W, asyncio.Future[A]]]:
        group: dict[object, tuple[W, asyncio.Future[A]]] = {}
        rest: list[tuple[W, asyncio.Future[A]]] = []
        for each in self._waiting:
            key = self._key(each[0])
            if len(group) < _GROUP and key not in group and not each[1].done():
                group[key] = each
            elif not each[1].done():
                rest.append(each)
        self._waiting = rest
        return list(group.values())

    async def _write_group(self, group: Sequence[tuple[W, asyncio.Future[A]]]) -> None:
        try:
            answers: Sequence[A | Exception] = await self._link.run(
                lambda connection: self._write(connection, [wanted for wanted, _ in group]), repeatable=self._repeatable
            )
        except ToolFailure as failure:
            answers = [ToolFailure(failure.error) for _ in group]
        except Exception as defect:  # noqa: BLE001 — raised where it is awaited: callers must not wait for ever
            answers = [defect] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
