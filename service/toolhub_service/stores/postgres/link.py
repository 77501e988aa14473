"""A process's link to PostgreSQL: a small pool for statements and one connection that listens, none per caller.

Repeatable work is repeated when its connection turns out to be dead; other work gets a connection that was checked just
before. So a dead connection in the pool costs no caller its answer. Changes are on the server's disk when `run`
returns: `synchronous_commit` is never off here. When an answer is lost, it is unknown whether the statement ran, and
TOOL_UNAVAILABLE is raised as for any other failure. Tables lie in the first schema of the URL's search_path; LISTEN
needs a direct connection or a pooler in session mode. Tested with PostgreSQL 15.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from toolhub_service.stores.postgres.column_text import escape_text
from toolhub_service.stores.postgres.errors import TROUBLE, connection_was_lost, reason_of, unavailable
from toolhub_service.stores.postgres.feed import PostgresFeed
from toolhub_service.stores.postgres.migrate import migrate
from toolhub_service.stores.postgres.target import postgres_target
from toolhub_service.stores.record_store import Place, Where

T = TypeVar("T")
# A loose index scan from value to value, instead of over all rows.
_VALUES: Final = """
WITH RECURSIVE found AS (
    (SELECT {column} FROM {table} ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT t.{column} FROM {table} t WHERE t.{column} > found.{column} ORDER BY t.{column} LIMIT 1)
    FROM found WHERE found.{column} IS NOT NULL)
SELECT {column} FROM found WHERE {column} IS NOT NULL"""
_MAX_WAITING: Final = 10_000
# A machine that vanishes within a transaction must not keep its locks for the two hours of TCP's keepalive.
_CONFIGURE: Final = """
SELECT set_config('statement_timeout', %(patience)s, false),
    set_config('idle_in_transaction_session_timeout', %(patience)s, false),
    set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false)"""


class PostgresLink:
    """Shared by the stores of a process. Each store starts it; its owner closes it."""

    def __init__(self, url: str, *, max_connections: int = 8, patience_s: float = 5.0) -> None:
        """`patience_s`: the timeout for the server, for a free connection and for an answer, each.

        Raises HubFailure POSTGRES_URL_INVALID.
        """
        target = postgres_target(url, application="toolhub stores")
        self._conninfo, self._shown = target.conninfo, target.shown
        self._patience_s = patience_s
        self._max_connections = max_connections
        self._pool: AsyncConnectionPool[AsyncConnection] | None = None
        self._starting = asyncio.Lock()
        self._listeners: dict[str, Callable[[str | None], None]] = {}
        self._feed: PostgresFeed | None = None
        self._late: set[asyncio.Task[Any]] = set()
        self._schema = ""
        self._declared: list[str] = []

    def declare(self, statements: Iterable[str]) -> None:
        """Take statements that create tables and indexes where they are absent.

        Raises RuntimeError after `start`, which executes them.
        """
        declared = tuple(statements)
        if declared and self._pool is not None:
            raise RuntimeError("declare tables before the link is started")
        self._declared += declared

    async def start(self) -> None:
        """Connect, bring the tables up to date, listen. Raises ToolFailure, HubFailure STORE_TOO_NEW."""
        async with self._starting:
            if self._pool is None:
                try:
                    await self._migrate()
                    self._pool = self._new_pool()
                    await self._pool.open()
                except TROUBLE as error:
                    raise unavailable(reason_of(error), self._shown) from None
            names = {self.channel(name): name for name in self._listeners}
            if names and (self._feed is None or not names.keys() <= self._feed.names.keys()):
                await self._listen(PostgresFeed(self._conninfo, names, self._listeners))

    async def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()
        for task in self._late:
            task.cancel()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]], *, repeatable: bool) -> T:
        """Return what `work` returns for a connection, outside any transaction. Raises ToolFailure TOOL_UNAVAILABLE.

        `repeatable`: running it again after a lost answer does no harm.
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

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> tuple[int, list[Any]]:
        """Run a statement that may be repeated; return how many rows it changed or found, and the rows found.

        Raises ToolFailure TOOL_UNAVAILABLE.
        """

        async def work(connection: AsyncConnection) -> tuple[int, list[Any]]:
            cursor = await connection.execute(statement.encode(), parameters, binary=True)
            return cursor.rowcount, await cursor.fetchall() if cursor.description else []

        return await self.run(work, repeatable=True)

    async def rows(self, statement: str, *parameters: Any) -> list[Any]:
        return (await self.execute(statement, parameters))[1]

    async def page(
        self, kept: str, table: str, order: Sequence[str], where: Where, after: Place | None, limit: int
    ) -> tuple[list[Any], int]:
        """Return rows of `kept`, a SELECT from the table, newest first and after the cursor; and how many match in
        all."""
        terms, values = await self._where_clause(table, where)
        ((found,),) = await self.rows(f"SELECT count(*) FROM {table} WHERE {terms}", *values)  # noqa: S608 — fixed names
        if after is not None:
            terms += f" AND ({', '.join(order)}) < ({', '.join(['%s'] * len(order))})"
            values += [escape_text(each) if isinstance(each, str) else each for each in after]
        newest_first = ", ".join(f"{column} DESC" for column in order)
        return await self.rows(f"{kept} WHERE {terms} ORDER BY {newest_first} LIMIT %s", *values, max(0, limit)), found

    async def _where_clause(self, table: str, where: Where) -> tuple[str, list[Any]]:
        """Return a WHERE clause with its parameters."""
        equals = {column: value for column, value in where.equals.items() if value}
        among = {column: [*map(escape_text, values)] for column, values in where.among.items() if values}
        for column, pattern in where.like.items():
            if any(sign in pattern for sign in "*?["):
                values = await self.rows(_VALUES.format(table=table, column=column))
                among[column] = [value for (value,) in values if fnmatchcase(value, pattern)]
            elif pattern:
                equals[column] = pattern
        for column, passes in where.checked.items():
            if passes is not None:
                values = await self.rows(_VALUES.format(table=table, column=column))
                among[column] = [value for (value,) in values if passes(value)]
        terms = [f"{column} = %s" for column in equals] + [f"{column} = ANY (%s)" for column in among]
        return " AND ".join(terms) or "TRUE", [*map(escape_text, equals.values()), *among.values()]

    def channel(self, name: str) -> str:
        """Return the channel's name in this schema, as channels belong to the whole database. Call after `start`."""
        return f"toolhub_{name}_{hashlib.sha256(self._schema.encode()).hexdigest()[:16]}"

    def listen(self, name: str, on_event: Callable[[str | None], None]) -> Callable[[], None]:
        """From the next `start` on, call `on_event` with each payload, and None after a gap; return a function that
        ends that."""
        self._listeners[name] = on_event

        def unlisten() -> None:
            self._listeners.pop(name, None)

        return unlisten

    async def _lend(self, work: Callable[[AsyncConnection], Awaitable[T]], repeatable: bool) -> T:
        for _ in range(self._max_connections + 1):  # At worst all idle connections of the pool are dead.
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
        """Abandon a task whose server does not even answer a cancel request; the pool bounds their number."""
        task.cancel()
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        task.add_done_callback(_retrieve_outcome)

    async def _listen(self, feed: PostgresFeed) -> None:
        """Replace the feed, which listened to fewer channels. Raises ToolFailure."""
        before, self._feed = self._feed, None
        if before is not None:
            await before.close()
        if not await feed.start(self._patience_s):
            raise unavailable(feed.trouble or "no answer in time", self._shown)
        self._feed = feed
        if before is not None:
            feed.report_gap()

    async def _migrate(self) -> None:
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            await migrate(connection, self._declared)
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
            # The pool's own backoff doubles without end: give up early, so that the next request tries anew.
            reconnect_timeout=2.0,
            name="toolhub",
        )

    async def _configure(self, connection: AsyncConnection) -> None:
        await connection.execute(_CONFIGURE, {"patience": str(round(self._patience_s * 1_000))})


def _retrieve_outcome(task: asyncio.Task[Any]) -> None:
    """Retrieve the outcome, for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
