"""The events of the audit log in PostgreSQL.

Hubs on many machines may share the tables; they share the key file then, and each machine keeps its own checkpoint file
(its *site*), whose lines are copied beside the events under the site's name. Groups are committed one after the other,
whoever writes them: an advisory lock, taken and given up by the very statement that inserts, makes the order of
`arrival` the order of commits, so that a watcher who has seen one number has seen all below it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson
import psycopg
from msgspec.structs import replace
from psycopg import IsolationLevel
from psycopg.sql import SQL, Composed, Identifier

from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.event import Event, EventFilter
from toolhub_service.domain.reasons import Reason
from toolhub_service.guards.masking import postgres_target
from toolhub_service.stores.audit import postgres_sql as sql
from toolhub_service.stores.audit.events import Row, condition, tampered
from toolhub_service.stores.audit.log import ChainedAuditLog

_ITEMS: Final = 1_000
_CHOSEN_BY_CALLERS: Final = ("principal", "tool", "call_id", "request_id")


def without_nul(event: Event) -> Event:
    """With U+FFFD for the one character that PostgreSQL's text cannot hold; the body carries it escaped."""
    mended = _mended(event)
    return replace(event, **mended) if mended else event


def _mended(named: Event | EventFilter) -> dict[str, Any]:
    """The fields that had the character, without it."""
    found = {name: text for name in _CHOSEN_BY_CALLERS if "\0" in (text := getattr(named, name))}
    return {name: text.replace("\0", "\ufffd") for name, text in found.items()}


class PostgresEvents:
    """Implements `EventStore`. `site` names the checkpoint file whose copies are this hub's own to compare."""

    errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
    damage: tuple[type[Exception], ...] = (
        psycopg.ProgrammingError,
        psycopg.DataError,
        psycopg.InternalError,
        ValueError,
    )
    poll_s = 2.0
    """For news whose notification was lost."""
    check_s = 30.0
    is_made_with_key = False
    """Hubs on new machines are given the key that those of the log have."""

    def __init__(self, url: str, site: str, *, patience_s: float = 10.0) -> None:
        """`patience_s`: how long a lock is waited for that somebody else holds. Raises HubFailure."""
        self.target = postgres_target(url, application="toolhub audit")
        self._site = site
        self._patience_s = patience_s
        self._last_row = 0

    def open(self, *, create: bool) -> PostgresEventTable:
        table = PostgresEventTable(self)
        try:
            table.prepare(create=create)
        except BaseException:
            table.close()
            raise
        return table

    @property
    def site(self) -> str:
        return self._site

    def last_row(self) -> int:
        """As far as this process knows: a watcher may be shown what another one wrote a moment before."""
        return self._last_row

    def note_row(self, row: int) -> None:
        self._last_row = max(self._last_row, row)

    def connect(self) -> psycopg.Connection:
        """Raises HubFailure AUDIT_UNREACHABLE."""
        try:
            connection = psycopg.connect(self.target.conninfo, autocommit=True)
            connection.execute(sql.CONFIGURE, (str(round(self._patience_s * 1_000)),))
        except psycopg.OperationalError as error:
            raise self.unreachable() from error
        return connection

    def unreachable(self) -> HubFailure:
        message = f"The audit log's database, PostgreSQL at {self.target.shown}, cannot be reached."
        return HubFailure(Reason.AUDIT_UNREACHABLE, message)

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        terms, parameters = condition(replace(where, **_mended(where)), after, "%s", "strpos")
        query: Composed = SQL(sql.PAGE).format(terms=SQL(terms))  # columns and marks
        with self._reading() as connection:
            return connection.execute(query, (*parameters, limit)).fetchall()

    def exists(self) -> bool:
        with self._reading() as connection:
            return _is_prepared(connection)

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        with self._reading() as connection:
            connection.set_autocommit(False)
            connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            connection.set_read_only(True)
            yield _Snapshot(connection, self._site)

    @contextmanager
    def _reading(self) -> Iterator[psycopg.Connection]:
        with self.connect() as connection:
            try:
                yield connection
            except psycopg.OperationalError as error:
                raise self.unreachable() from error


class PostgresEventTable:
    """Implements `EventTable`. A connection that was lost while nobody wrote is made anew without a word."""

    def __init__(self, events: PostgresEvents) -> None:
        self._events = events
        self._connection = events.connect()

    def prepare(self, *, create: bool) -> None:
        """Make the tables where a log begins, one process at a time; learn where news begin.

        Raises HubFailure AUDIT_LOG_CHANGED where one of the tables is missing that must be there.
        """
        if not create:
            self._look_at_tables()
        elif not _is_prepared(self._connection):
            self._make_tables()
        self._events.note_row(self._all(sql.LAST_ROW)[0][0])

    def _make_tables(self) -> None:
        with self._connection.transaction():
            self._connection.execute(sql.ALONE)
            found = [name for (name,) in self._connection.execute(sql.FOUND).fetchall()]
            # One without the other is no new log but what is left of one, which hubs elsewhere may have written: a
            # machine that joins them has no checkpoint of its own yet that could tell.
            if len(found) == 1:
                raise tampered(
                    f"PostgreSQL has {found[0]} of an audit log without its other table: rename what is left"
                )
            if not found:
                for statement in sql.SCHEMA:
                    self._connection.execute(statement)

    def is_empty(self) -> bool:
        return not self._all(sql.ANY)

    def insert(self, rows: list[Row]) -> None:
        """Raises IntegrityError when somebody else's rows stand where these belong."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        ((inserted, last_row),) = self._all(sql.INSERT, [orjson.dumps(column).decode() for column in columns])
        if inserted < len(rows):
            ((same, last_row),) = self._all(sql.SAME, (columns[0], columns[1], columns[10]))
            if same < len(rows):
                raise psycopg.IntegrityError("other events stand in this writer's chain")
        self._events.note_row(last_row)

    def check(self, writer: str, count: int, head: str) -> None:
        self._look_at_tables()
        if not count:
            return
        ((held, first, last),) = self._all(sql.OWN, (writer,))
        if held and (last != count or held != last - first + 1):
            raise tampered(f"Events of the audit log were removed: {held} of {count} are there of {writer}")
        if self._all(sql.TAG, (writer, count)) != [(head,)]:
            raise tampered(f"The last event of {writer} in the audit log was removed or changed")

    def _look_at_tables(self) -> None:
        if self._all(sql.IS_PREPARED) != [(True,)]:
            raise tampered("A table of the audit log is missing in PostgreSQL")
        if foreign := self._all(sql.TRIGGERS):
            raise tampered(f"The audit log's tables in PostgreSQL have a trigger, {foreign[0][0]}, which no hub made")

    def announce(self) -> None:
        with suppress(psycopg.OperationalError):  # The events are written, and watchers look by themselves too.
            self._connection.execute(sql.ANNOUNCE, (str(self._events.last_row()),))

    def tidy(self) -> None:
        """Nothing: the server does that by itself."""

    def keep_copy(self, number: int, line: str) -> None:
        self._do(sql.KEEP_COPY, (self._events.site, number, line))

    def ends(self) -> Sequence[tuple[Any, Any]]:
        return self._all(sql.ENDS)

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        with self._connection.transaction(), self._connection.cursor(name="beyond") as cursor:
            cursor.itersize = _ITEMS
            yield from cursor.execute(sql.BEYOND, (writer, sequence))

    def old_ends(self, before_unix_ms: int) -> Sequence[tuple[str, int, str]]:
        return self._all(sql.OLD_ENDS, (before_unix_ms, before_unix_ms))

    def remove(self, writer: str, sequence: int) -> int:
        return self._do(sql.REMOVE, (writer, sequence)).rowcount

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        rows = self._all(sql.NEWS, (after_row, limit))
        if rows:
            self._events.note_row(rows[-1][0])
        return rows

    def close(self) -> None:
        self._connection.close()

    def _all(self, statement: sql.Statement, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._do(statement, parameters).fetchall()

    def _do(self, statement: sql.Statement, parameters: Sequence[Any] = ()) -> psycopg.Cursor:
        """Each statement is a transaction, and none does harm when it is repeated after an answer that was lost."""
        try:
            return self._connection.execute(statement, parameters)
        except psycopg.OperationalError:
            if not self._connection.broken:
                raise
        self._connection = self._events.connect()
        return self._connection.execute(statement, parameters)


class _Snapshot:
    """Implements `EventSnapshot`."""

    def __init__(self, connection: psycopg.Connection, site: str) -> None:
        self._connection = connection
        self._site = site

    def copies(self) -> list[tuple[Any, Any]]:
        return self._connection.execute(sql.COPIES, (self._site,)).fetchall()

    def foreign(self) -> list[Any]:
        return [line for (line,) in self._connection.execute(sql.FOREIGN, (self._site,)).fetchall()]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor(name="verify") as cursor:
            cursor.itersize = _ITEMS
            yield from cursor.execute(sql.IN_ORDER)

    def problems(self) -> Iterator[str]:
        """None that could be asked for: pages that a disk has changed cannot be read (with data checksums on)."""
        return iter(())


def _is_prepared(connection: psycopg.Connection) -> bool:
    return connection.execute(sql.IS_PREPARED).fetchone() == (True,)


# The audit log in PostgreSQL, which many hubs may share: the calls of all in one place, a chain for each writer.
#
# The chain, the group commit in a thread of its own and the checkpoint file are those of every audit log. What differs:
# whoever watches is woken by NOTIFY, and looks by itself every few seconds in case that was lost.

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


def postgres_events(url: str, checkpoints: Path, site: str = "") -> PostgresEvents:
    """The events that a hub with this checkpoint file writes. Raises HubFailure POSTGRES_URL_INVALID.

    `site` names the file among those of all machines, for as long as it lives; empty: host name and path.
    """
    return PostgresEvents(url, site or f"{socket.gethostname()}:{checkpoints.absolute()}")


class PostgresAuditLog(ChainedAuditLog):
    """Hubs that share the database share the key file; every machine has a checkpoint file of its own."""

    def __init__(self, url: str, checkpoints: Path, key: Path, *, site: str = "", **options: Any) -> None:
        """`options` are those of `ChainedAuditLog`. Raises HubFailure POSTGRES_URL_INVALID."""
        self._shared = postgres_events(url, checkpoints, site)
        super().__init__(self._shared, checkpoints, key, **options)
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises HubFailure AUDIT_UNREACHABLE, and as `ChainedAuditLog.start`."""
        await super().start()
        self._listener = asyncio.create_task(self._keep_listening())

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])
        await super().close()

    def _sealed(self, event: Event) -> Row:
        return super()._sealed(without_nul(event))

    async def _keep_listening(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                async with await self._connection() as connection:
                    retry_s = _FIRST_RETRY_S
                    await self._listen(connection)
            except (psycopg.Error, OSError):
                pass  # The writer tells that the database is gone; until it is back nobody can write news.
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _connection(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self._shared.target.conninfo, autocommit=True)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        ((channel,),) = await (await connection.execute(sql.CHANNEL)).fetchall()
        await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
        ((last_row,),) = await (await connection.execute(sql.LAST_ROW)).fetchall()
        self._on_news(last_row)
        async for news in connection.notifies():
            if news.payload.isdecimal():
                self._on_news(int(news.payload))

    def _on_news(self, last_row: int) -> None:
        """Look for news while somebody watches, and always know where they begin."""
        if last_row > self._shared.last_row() and self._tails and self._group is not None:
            self._group.hurry()
        self._shared.note_row(last_row)
