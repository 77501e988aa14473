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
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from toolhub_service.guards.postgres_urls import postgres_target
from toolhub_service.stores.postgres_feed import PostgresFeed
from toolhub_service.stores.postgres_migrations import migrate
from toolhub_service.stores.postgres_trouble import TROUBLE, connection_was_lost, reason_of, unavailable

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

    async def listen(self, name: str, heard: Callable[[str | None], None]) -> PostgresFeed:
        """Tell `heard` of each payload, None after a gap, until the feed is closed. Raises ToolFailure."""
        feed = PostgresFeed(self._conninfo, self.channel(name), heard)
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
