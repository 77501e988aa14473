"""The events of the audit log in PostgreSQL.

Hubs on many machines may share the tables; they then share the key file, and each machine keeps its own checkpoint file
(its *site*), whose lines are copied beside the events under the site's name. Groups of all writers are committed one
after the other: an advisory lock, taken and released by the inserting statement, makes the order of `arrival` the
commit order, so that a watcher who has seen one number has seen all below it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, LiteralString

import orjson
import psycopg
from msgspec.structs import replace
from psycopg import IsolationLevel
from psycopg.sql import SQL, Composed, Identifier

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import Event, EventFilter
from toolhub_service.stores.audit.by_principal import index_postgres, postgres_page
from toolhub_service.stores.audit.events import COLUMNS, Row, check_chain, condition, tampering_error
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.stores.audit.postgres_upkeep import OldEvents, SharedUpkeep
from toolhub_service.stores.postgres.target import postgres_target

# Ids chosen by callers are indexed by hash: a B-tree refuses a long one, and with it the whole group of events.

_LOCK: Final = "pg_advisory_xact_lock(hashtext('toolhub audit'), hashtext(current_schema()))"
# Channels belong to the database, tables to a schema: hence a name for each schema.
_CHANNEL: Final = "'toolhub_audit_' || left(md5(current_schema()), 16)"

_CONFIGURE: Final = """
SELECT set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false),
    set_config('lock_timeout', %s, false)"""

# The join with pg_class takes a lock that makes the server look up names anew. Without it a name that was not found
# before another process made the tables stays not found in a transaction, however long that has waited.
_MISSING: Final = """
SELECT name FROM unnest(ARRAY['audit_events', 'audit_checkpoints']) AS name
LEFT JOIN pg_class ON pg_class.oid = to_regclass(name) WHERE pg_class.oid IS NULL"""

_SCHEMA: Final = (
    """CREATE TABLE audit_events (
        arrival bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        writer text COLLATE "C" NOT NULL, sequence bigint NOT NULL, at_unix_ms bigint NOT NULL, type text NOT NULL,
        principal text NOT NULL, tool text NOT NULL, call_id text NOT NULL, request_id text NOT NULL,
        body text NOT NULL, previous_mac text NOT NULL, mac text NOT NULL, key_id text NOT NULL,
        UNIQUE (writer, sequence))""",
    "CREATE INDEX audit_events_by_time ON audit_events (at_unix_ms, writer, sequence)",
    "CREATE INDEX audit_events_by_call ON audit_events USING hash (call_id)",
    "CREATE INDEX audit_events_by_request ON audit_events USING hash (request_id)",
    """CREATE TABLE audit_checkpoints (
        site text COLLATE "C" NOT NULL, number bigint NOT NULL, line text NOT NULL, PRIMARY KEY (site, number))""",
)

_NUMBERS: Final = frozenset({"sequence", "at_unix_ms"})
_GIVEN: Final = ", ".join(["json_array_elements_text(%s)"] * len(COLUMNS.split(", ")))
_TYPED: Final = ", ".join(f"{name}::bigint" if name in _NUMBERS else name for name in COLUMNS.split(", "))
# A JSON array for each column: psycopg's own arrays take four times as long to write.
_INSERT: Final = f"""
WITH alone AS MATERIALIZED (SELECT {_LOCK}),
kept AS (
    INSERT INTO audit_events ({COLUMNS})
    SELECT {_TYPED} FROM alone, ROWS FROM ({_GIVEN}) WITH ORDINALITY AS given ({COLUMNS}, place)
    ORDER BY place
    ON CONFLICT (writer, sequence) DO NOTHING
    RETURNING arrival)
SELECT count(*), coalesce(max(arrival), 0) FROM kept"""  # noqa: S608 — fixed text

_SAME: Final = """
SELECT count(*), coalesce(max(arrival), 0)
FROM audit_events JOIN unnest(%s::text[], %s::bigint[], %s::text[]) AS given (writer, sequence, mac)
USING (writer, sequence, mac)"""

# The notification need not survive a crash, so nobody waits for the disk while the server holds its notification queue.
_ANNOUNCE: Final = f"SELECT set_config('synchronous_commit', 'off', true), pg_notify({_CHANNEL}, %s)"
# Triggers and rules, which could swallow a row.
_TRIGGERS: Final = """
SELECT tgname FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid IN (to_regclass('audit_events'), to_regclass('audit_checkpoints'))
UNION ALL SELECT rulename FROM pg_rewrite
WHERE ev_class IN (to_regclass('audit_events'), to_regclass('audit_checkpoints'))"""
_LAST_ROW: Final = "SELECT coalesce(max(arrival), 0) FROM audit_events"
_PAGE: Final = f"SELECT {COLUMNS} FROM audit_events WHERE {{terms}} ORDER BY at_unix_ms, writer, sequence LIMIT %s"  # noqa: S608 — fixed
_NEWS: Final = f"SELECT arrival, {COLUMNS} FROM audit_events WHERE arrival > %s ORDER BY arrival LIMIT %s"  # noqa: S608 — fixed
_BEYOND: Final = f"SELECT {COLUMNS} FROM audit_events WHERE writer = %s AND sequence > %s ORDER BY sequence"  # noqa: S608 — fixed

# A loose index scan from writer to writer, instead of over all events.
_ENDS: Final = """
WITH RECURSIVE writers AS (
    (SELECT writer FROM audit_events ORDER BY writer LIMIT 1)
    UNION ALL
    SELECT (SELECT e.writer FROM audit_events e WHERE e.writer > w.writer ORDER BY e.writer LIMIT 1)
    FROM writers w WHERE w.writer IS NOT NULL)
SELECT writer, (SELECT max(sequence) FROM audit_events e WHERE e.writer = w.writer)
FROM writers w WHERE writer IS NOT NULL"""

_ITEMS: Final = 1_000
_CHOSEN_BY_CALLERS: Final = ("principal", "tool", "call_id", "request_id")


def _replace_nul(named: Event | EventFilter) -> dict[str, Any]:
    """Return the fields with U+FFFD for NUL, the one character that PostgreSQL's text cannot hold."""
    found = {name: text for name in _CHOSEN_BY_CALLERS if "\0" in (text := getattr(named, name))}
    return {name: text.replace("\0", "\ufffd") for name, text in found.items()}


def _missing(connection: psycopg.Connection) -> list[str]:
    """Return the tables that do not exist."""
    return [name for (name,) in connection.execute(_MISSING).fetchall()]


class PostgresEvents(SharedUpkeep):
    """Implements `EventStore`. `site` names the checkpoint file with whose copies this hub compares."""

    errors: tuple[type[Exception], ...] = (psycopg.Error, OSError)
    damage: tuple[type[Exception], ...] = (
        psycopg.ProgrammingError,
        psycopg.DataError,
        psycopg.InternalError,
        ValueError,
    )
    poll_s = 2.0  # poll, in case a notification was lost
    check_s = 30.0
    is_made_with_key = False  # a hub on a new machine is given the key of the existing log

    def __init__(self, url: str, site: str, *, patience_s: float = 10.0) -> None:
        """`patience_s`: how long to wait for a lock that another session holds. Raises HubFailure."""
        self.target = postgres_target(url, application="toolhub audit")
        self.site = site
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

    def last_row(self) -> int:
        """Return the last row this process knows: watchers may also get news of a moment before."""
        return self._last_row

    def newest_unix_ms(self) -> int:
        with self._reading() as connection:
            found = connection.execute("SELECT coalesce(max(at_unix_ms), 0) FROM audit_events").fetchone()
            return int(found[0]) if found else 0

    def note_row(self, row: int) -> None:
        self._last_row = max(self._last_row, row)

    def connect(self) -> psycopg.Connection:
        """Connect. Raises HubFailure AUDIT_UNREACHABLE."""
        try:
            connection = psycopg.connect(self.target.conninfo, autocommit=True)
            connection.execute(_CONFIGURE, (str(round(self._patience_s * 1_000)),))
        except psycopg.OperationalError as error:
            raise self.unreachable() from error
        return connection

    def unreachable(self) -> HubFailure:
        message = f"The audit log's database, PostgreSQL at {self.target.shown}, cannot be reached."
        return HubFailure(Reason.AUDIT_UNREACHABLE, message)

    def page(self, where: EventFilter, after: tuple[int, str, int] | None, limit: int) -> Sequence[tuple[Any, ...]]:
        where = replace(where, **_replace_nul(where))
        terms, parameters = condition(where, after, "%s", "strpos")
        query: Composed = SQL(_PAGE).format(terms=SQL(terms))  # columns and marks
        with self._reading() as connection:
            found = postgres_page(connection, where, after, limit)
            return connection.execute(query, (*parameters, limit)).fetchall() if found is None else found

    def exists(self) -> bool:
        with self._reading() as connection:
            return not _missing(connection)

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        with self._reading() as connection:
            connection.set_autocommit(False)
            connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            connection.set_read_only(True)
            yield _Snapshot(connection, self.site)

    @contextmanager
    def _reading(self) -> Iterator[psycopg.Connection]:
        with self.connect() as connection:
            try:
                yield connection
            except psycopg.OperationalError as error:
                raise self.unreachable() from error


class PostgresEventTable(OldEvents):
    """Implements `EventTable`. A connection that was lost while nothing was written is replaced silently."""

    def __init__(self, events: PostgresEvents) -> None:
        self._events = events
        self._connection = events.connect()

    def prepare(self, *, create: bool) -> None:
        """Make the tables of a new log, one process at a time, and find where news begin.

        Raises HubFailure AUDIT_LOG_CHANGED when a required table is missing.
        """
        if not create:
            self._check_tables()
        elif _missing(self._connection):
            self._make_tables()
        with suppress(psycopg.Error):  # a role without the right to make it leaves it to another hub, or to an operator
            index_postgres(self._connection)
        self._events.note_row(self._fetch_all(_LAST_ROW)[0][0])

    def _make_tables(self) -> None:
        with self._connection.transaction():
            self._connection.execute(f"SELECT {_LOCK}")
            missing = _missing(self._connection)
            # One table without the other is the rest of an existing log, which hubs elsewhere may have written: a
            # machine that joins them has no checkpoint of its own yet that could show it.
            if len(missing) == 1:
                raise tampering_error(
                    f"The table {missing[0]} of the audit log is missing in PostgreSQL: rename what is left"
                )
            if missing:
                for statement in _SCHEMA:
                    self._connection.execute(statement)

    def is_empty(self) -> bool:
        return not self._fetch_all("SELECT 1 FROM audit_events LIMIT 1")

    def insert(self, rows: list[Row]) -> None:
        """Insert the rows. Raises IntegrityError when another writer's rows have their keys."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        ((inserted, last_row),) = self._fetch_all(_INSERT, [orjson.dumps(column).decode() for column in columns])
        if inserted < len(rows):
            ((same, last_row),) = self._fetch_all(_SAME, (columns[0], columns[1], columns[10]))
            if same < len(rows):
                raise psycopg.IntegrityError("other events stand in this writer's chain")
        self._events.note_row(last_row)

    def check(self, writer: str, count: int, head: str) -> None:
        self._check_tables()
        if not count:
            return
        own = "SELECT count(*), min(sequence), max(sequence) FROM audit_events WHERE writer = %s"
        tag = self._fetch_all("SELECT mac FROM audit_events WHERE writer = %s AND sequence = %s", (writer, count))
        check_chain(writer, count, head, self._fetch_all(own, (writer,))[0], tag[0][0] if tag else None)

    def _check_tables(self) -> None:
        if missing := self._fetch_all(_MISSING):
            raise tampering_error(f"The table {missing[0][0]} of the audit log is missing in PostgreSQL")
        if foreign := self._fetch_all(_TRIGGERS):
            raise tampering_error(
                f"The audit log's tables in PostgreSQL have a trigger, {foreign[0][0]}, which no hub made"
            )

    def announce(self) -> None:
        with suppress(psycopg.OperationalError):  # The events are written, and watchers poll, too.
            self._connection.execute(_ANNOUNCE, (str(self._events.last_row()),))

    def tidy(self) -> None:
        """Do nothing: the server tidies by itself."""

    def keep_copy(self, number: int, line: str) -> None:
        self._do(
            "INSERT INTO audit_checkpoints VALUES (%s, %s, %s) ON CONFLICT (site, number) DO NOTHING",
            (self._events.site, number, line),
        )

    def ends(self) -> Sequence[tuple[Any, Any]]:
        return self._fetch_all(_ENDS)

    def beyond(self, writer: str, sequence: int) -> Iterable[tuple[Any, ...]]:
        with self._connection.transaction(), self._connection.cursor(name="beyond") as cursor:
            cursor.itersize = _ITEMS
            yield from cursor.execute(_BEYOND, (writer, sequence))

    def remove(self, writer: str, sequence: int) -> int:
        return self._do("DELETE FROM audit_events WHERE writer = %s AND sequence <= %s", (writer, sequence)).rowcount

    def news(self, after_row: int, limit: int) -> Sequence[tuple[Any, ...]]:
        rows = self._fetch_all(_NEWS, (after_row, limit))
        if rows:
            self._events.note_row(rows[-1][0])
        return rows

    def close(self) -> None:
        self._connection.close()

    def _fetch_all(self, statement: LiteralString, parameters: Any = ()) -> list[Any]:
        return self._do(statement, parameters).fetchall()

    def _do(self, statement: LiteralString, parameters: Any = ()) -> psycopg.Cursor:
        """Run statements in a transaction each; repeating one whose answer was lost does no harm."""
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
        self.site = site

    def copies(self) -> list[tuple[Any, Any]]:
        return self._connection.execute(
            "SELECT number, line FROM audit_checkpoints WHERE site = %s ORDER BY number", (self.site,)
        ).fetchall()

    def foreign(self) -> list[Any]:
        statement = "SELECT line FROM audit_checkpoints WHERE site <> %s ORDER BY site, number"
        return [line for (line,) in self._connection.execute(statement, (self.site,)).fetchall()]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor(name="verify") as cursor:
            cursor.itersize = _ITEMS
            yield from cursor.execute(f"SELECT {COLUMNS} FROM audit_events ORDER BY writer, sequence")  # noqa: S608 — fixed

    def problems(self) -> Iterator[str]:
        """Yield nothing: the server offers no check; with data checksums it fails to read pages that a disk
        changed."""
        return iter(())


# The log itself: NOTIFY wakes watchers, who also poll every few seconds in case a notification was lost.

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


def postgres_events(url: str, checkpoints: Path, site: str = "") -> PostgresEvents:
    """Return the events that a hub with this checkpoint file writes. Raises HubFailure POSTGRES_URL_INVALID.

    `site` names the file among those of all machines, and must stay the same as long as the file exists; empty: host
    name and path.
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
        """Start the log. Raises HubFailure AUDIT_UNREACHABLE, and what `ChainedAuditLog.start` raises."""
        await super().start()
        self._listener = asyncio.create_task(self._keep_listening())

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])
        await super().close()

    def _seal_event(self, event: Event) -> Row:
        mended = _replace_nul(event)  # the body carries the character escaped
        return super()._seal_event(replace(event, **mended) if mended else event)

    async def _keep_listening(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                conninfo = self._shared.target.conninfo
                async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
                    retry_s = _FIRST_RETRY_S
                    await self._listen(connection)
            except (psycopg.Error, OSError):
                pass  # The writer reports that the database is gone; until it is back nobody can write news.
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        ((channel,),) = await (await connection.execute(f"SELECT {_CHANNEL}")).fetchall()
        await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
        ((last_row,),) = await (await connection.execute(_LAST_ROW)).fetchall()
        self._on_notify(last_row)
        async for news in connection.notifies():
            if news.payload.isdecimal():
                self._on_notify(int(news.payload))

    def _on_notify(self, last_row: int) -> None:
        """Look for news while somebody watches, and always update where they begin."""
        if last_row > self._shared.last_row() and self._tails and self._group is not None:
            self._group.write_now()
        self._shared.note_row(last_row)
