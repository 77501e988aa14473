"""PostgreSQL: one session a statement, read-only by its role, its transaction and what may be prepared.

Layers of protection, in order: a role that is no superuser; a transaction that is READ ONLY before the statement is
sent; the extended protocol, which takes one statement; a cursor, which takes a query; before it runs, a comparison with
the relations that PostgreSQL says it touches (postgres_touched.py); the server's own time limit. The server measures a
row before it sends it, so that no value can fill the hub's memory. The server checks twice a second that the hub is
still connected (`client_connection_check_interval`): a killed hub leaves nothing running.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.tools.database.connection import (
    SAFE_INTEGER,
    Accept,
    Column,
    DatabaseLimits,
    DescribedTable,
    Parameters,
    Row,
    database_refusal,
    not_usable,
    row_too_large,
    too_slow,
    unreachable,
)
from toolhub_service.tools.database.postgres_catalog import describe_tables
from toolhub_service.tools.database.postgres_role import check_role
from toolhub_service.tools.database.postgres_touched import add_side_effects, resolve_statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection

# A batch is at most 8 MB, however large its rows are: libpq, Python and the encoded output hold it at the same time.
_ROW_MAX_BYTES: Final = 256 * 1024
_BATCH_ROWS: Final = 32
_CONNECT_S: Final = 5
_GOODBYE_S: Final = 1.0
_FETCH: Final = f"FETCH FORWARD {_BATCH_ROWS} FROM toolhub"
_TOO_LARGE: Final = "toolhub: row too large"
# Those that the server knows. It reads no table, which would stay locked as if the statement had named it.
_SETTINGS: Final = """
SELECT set_config(wanted.name, wanted.value, true) FROM json_each_text($1::json) AS wanted(name, value)
WHERE current_setting(wanted.name, true) IS NOT NULL"""
_WRONG_PARAMETERS: Final = "08P01"
# Classes of errors of the server or the connection to it.
_NOT_THE_STATEMENT: Final = frozenset({"", "08", "53", "57", "58", "XX"})
_BOOLEAN: Final = 16
_BYTES: Final = 17
_INTEGERS: Final = frozenset({20, 21, 23, 26})
_FLOATS: Final = frozenset({700, 701})


class PostgresDatabase:
    """Implements `Database`."""

    def __init__(
        self, terms: DatabaseTerms, limits: DatabaseLimits, conninfo: Callable[[], str], description: str = ""
    ) -> None:
        """`conninfo` returns a URL or `key=value` text when needed. Raises ValueError, with the reason, where it is not
        available."""
        self.terms = terms
        self.limits = limits
        self.description = description
        self._conninfo = conninfo

    def missing(self) -> str:
        absent = [name for name in ("psycopg", "pgparse") if find_spec(name) is None]
        return f"{' and '.join(absent)} not installed: toolhub extras install db" if absent else ""

    @asynccontextmanager
    async def query(
        self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept
    ) -> AsyncIterator[PostgresReading]:
        async with self._session(deadline_s, writes=False) as connection:
            if self.limits.max_cost:
                _check_cost(await _plan_of(connection, statement, parameters), self.limits.max_cost)
            reading = PostgresReading(connection)
            await reading.declare(statement.text, parameters)
            read, _ = await resolve_statement(connection, statement, self.terms)
            accept(read)
            await reading.start()
            yield reading

    async def execute(self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept) -> int:
        is_committing = False
        try:
            async with self._session(deadline_s, writes=True) as connection:
                plan = await _plan_of(connection, statement, parameters)
                read, relations = await resolve_statement(connection, statement, self.terms, plan)
                accept(read)
                changed = (await _execute_prepared(connection, statement.text, bind_parameters(parameters))).rowcount
                # Triggers and foreign keys that would wait for the COMMIT. Refused here, all of it is rolled back.
                await connection.execute(b"SET CONSTRAINTS ALL IMMEDIATE")
                accept(await add_side_effects(connection, read, relations))
                # Between COMMIT and its answer it is unknown whether the server has committed.
                is_committing = True
                await connection.execute(b"COMMIT")
                return max(0, int(changed))
        except ToolFailure:
            if is_committing:
                message = "The database was lost while it committed: what was to change may have changed. Look first."
                raise refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause="END_UNCLEAR") from None
            raise

    async def describe(self, table: str, deadline_s: float) -> tuple[list[DescribedTable], bool]:
        async with self._session(deadline_s, writes=False) as connection:
            return await describe_tables(connection, self.terms, table)

    @asynccontextmanager
    async def _session(self, deadline_s: float, *, writes: bool) -> AsyncIterator[AsyncConnection[Any]]:
        """Yield a connection in a transaction; at the end it is always closed, and its statement ended at the
        server."""
        import psycopg

        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            async with asyncio.timeout_at(deadline_s):
                connection = await self._connect()
                try:
                    await check_role(connection, self.terms)
                    await self._begin(connection, deadline_s - loop.time(), writes=writes)
                    yield connection
                finally:
                    await _close_connection(connection)
        except TimeoutError:
            raise too_slow(deadline_s - started_s) from None
        except psycopg.Error as error:
            raise self._failure_of(error, deadline_s - started_s) from None

    async def _connect(self) -> AsyncConnection[Any]:
        from psycopg import AsyncConnection, ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            asked: dict[str, Any] = conninfo_to_dict(self._conninfo())
        except ProgrammingError:
            reason = "its URL cannot be read: write postgresql://user@host:5432/database"
            raise not_usable(self.terms.name, reason) from None
        except ValueError as missing:
            raise not_usable(self.terms.name, str(missing)) from None
        wanted = {
            "connect_timeout": _CONNECT_S,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "application_name": "toolhub",
        }
        # The operator's own values take precedence, except over the encoding, because rows are decoded as UTF-8.
        return await AsyncConnection.connect(**{**wanted, **asked, "client_encoding": "utf8"}, autocommit=True)

    async def _begin(self, connection: AsyncConnection[Any], left_s: float, *, writes: bool) -> None:
        await connection.execute(b"BEGIN" if writes else b"BEGIN READ ONLY")
        settings = {
            "statement_timeout": str(max(1, round(left_s * 1_000))),
            # Later than the statement's own timeout, whose error says more; it covers a hub that hangs in between.
            "idle_in_transaction_session_timeout": str(max(1, round(left_s * 1_000)) + 5_000),
            # A statement that waits for a lock blocks others behind it.
            "lock_timeout": "5000",
            "client_connection_check_interval": "500",
            "default_transaction_read_only": "off" if writes else "on",
            "standard_conforming_strings": "on",
            # A quoted identifier of SQL and a JSON string are the same for names without backslashes or quotes.
            "search_path": json.dumps(self.terms.schema, ensure_ascii=False),
            "bytea_output": "hex",
            "DateStyle": "ISO, YMD",
            "IntervalStyle": "iso_8601",
            "extra_float_digits": "1",
        }
        await _execute_prepared(connection, _SETTINGS, [json.dumps(settings)])

    def _failure_of(self, error: Exception, limit_s: float) -> ToolFailure:
        from psycopg import errors

        state = getattr(error, "sqlstate", None) or ""
        diagnosis = getattr(error, "diag", None)
        words = str(getattr(diagnosis, "message_primary", None) or "")
        if _TOO_LARGE in words:
            return row_too_large(_ROW_MAX_BYTES)
        match error:
            case errors.QueryCanceled():
                return too_slow(limit_s)
            case errors.LockNotAvailable() | errors.DeadlockDetected() | errors.SerializationFailure():
                return unreachable(self.terms.name, f"other work holds what it needs ({state})")
            case errors.InsufficientPrivilege() | errors.ReadOnlySqlTransaction():
                message = f"The database does not allow it ({state}): {words[:300]}. Use what the connection may use."
                return refuse(ErrorKind.POLICY_DENIED, message, connection=self.terms.name)
            case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InvalidCatalogName():
                return not_usable(self.terms.name, f"the server refuses user, password or database ({state})")
        if state == _WRONG_PARAMETERS or not (state or isinstance(error, errors.OperationalError)):
            return database_refusal(words or str(error), state)
        # The first two characters of a SQLSTATE are its class (PostgreSQL, Appendix A).
        if state[:2] in _NOT_THE_STATEMENT:
            return unreachable(self.terms.name, f"the server answered {state}" if state else "no connection")
        hint = str(getattr(diagnosis, "message_hint", None) or "")
        return database_refusal(f"{words} {hint}", state)


async def _close_connection(connection: AsyncConnection[Any]) -> None:
    """End everything on the connection: cancel a running statement, and close the connection."""
    if connection.info.transaction_status.name == "ACTIVE":
        # Optional for the server: the connection is closed anyway, and the statement has its own time limit.
        with suppress(Exception):
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.shield(connection.cancel_safe(timeout=_GOODBYE_S))
    connection.pgconn.finish()
    await connection.close()


async def _execute_prepared(connection: AsyncConnection[Any], sql: str, parameters: Sequence[Any] = ()) -> Any:
    """Return a cursor for the result of one statement, with `$1` as PostgreSQL writes it."""
    from psycopg import AsyncRawCursor

    cursor = AsyncRawCursor(connection)
    # Prepared: without values psycopg would choose the simple protocol, which accepts several statements at once.
    await cursor.execute(sql.encode(), parameters, prepare=True)
    return cursor


async def _plan_of(connection: AsyncConnection[Any], statement: Statement, parameters: Parameters) -> Sequence[Any]:
    """Return the plans of the statement, which is not run: more than one where a rule adds others."""
    row = await (
        await _execute_prepared(connection, f"EXPLAIN (FORMAT JSON) {statement.text}", bind_parameters(parameters))
    ).fetchone()
    plans: Sequence[Any] = row[0] if row and isinstance(row[0], list) else json.loads(row[0])
    return plans


def _check_cost(plan: Sequence[Any], max_cost: float) -> None:
    cost = float(plan[0]["Plan"]["Total Cost"])
    if cost > max_cost:
        message = (
            f"PostgreSQL estimates the cost of the statement at {cost:.0f}, and the connection allows {max_cost:.0f}. "
            "Read less: filter, aggregate, or use an indexed column."
        )
        raise refuse(ErrorKind.POLICY_DENIED, message)


class PostgresReading:
    """Implements `Reading` by a cursor of the server."""

    has_types = True

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._first: list[Row] = []
        self._columns: list[Column] = []
        self._types: list[int] = []

    async def declare(self, sql: str, parameters: Parameters) -> None:
        """Have the server plan the query, of which nothing runs yet."""
        # Measured in an outer query, so that the query keeps its meaning: OFFSET 0 prevents the planner from merging
        # the two. A line break ends a comment at the query's end.
        measured = (
            f"SELECT q.* FROM (SELECT * FROM ({sql}\n) AS s OFFSET 0) AS q WHERE CASE WHEN octet_length(q::text) "  # noqa: S608 - checked, one statement, and its values are bound
            f"<= {_ROW_MAX_BYTES} THEN true ELSE ('{_TOO_LARGE}' || octet_length(q::text))::boolean END"
        )
        await _execute_prepared(
            self._connection, f"DECLARE toolhub NO SCROLL CURSOR FOR {measured}", bind_parameters(parameters)
        )

    async def start(self) -> None:
        _take_texts(self._connection)
        cursor = await _execute_prepared(self._connection, _FETCH)
        description = cursor.description or ()
        self._types = [column.type_code for column in description]
        self._first = self._convert_rows(await cursor.fetchall())
        names = await _type_names(self._connection, self._types)
        self._columns = [Column(name=column.name, type=names[column.type_code]) for column in description]

    @property
    def columns(self) -> Sequence[Column]:
        return self._columns

    async def next_rows(self) -> list[Row]:
        first = self._first
        self._first = []
        return first or self._convert_rows(await (await _execute_prepared(self._connection, _FETCH)).fetchall())

    def _convert_rows(self, rows: Sequence[Sequence[str | None]]) -> list[Row]:
        return [[_value(text, oid) for text, oid in zip(row, self._types, strict=True)] for row in rows]


def _take_texts(connection: AsyncConnection[Any]) -> None:
    """Receive every value as the server writes it: exact, whatever its type."""
    from psycopg.types.string import TextLoader

    for info in connection.adapters.types:
        connection.adapters.register_loader(info.oid, TextLoader)
        if info.array_oid:
            connection.adapters.register_loader(info.array_oid, TextLoader)


async def _type_names(connection: AsyncConnection[Any], oids: Sequence[int]) -> dict[int, str]:
    unknown = sorted({oid for oid in oids if oid not in _known_types()})
    names = dict(_known_types())
    if unknown:
        cursor = await _execute_prepared(
            connection, "SELECT t::text, format_type(t, NULL) FROM unnest($1::oid[]) AS t", [unknown]
        )
        names |= {int(oid): name for oid, name in await cursor.fetchall()}
    return names


@lru_cache(maxsize=1)
def _known_types() -> dict[int, str]:
    """Return the types by their numbers, which never change."""
    from psycopg import postgres

    names = {info.oid: info.regtype for info in postgres.types}
    return names | {info.array_oid: f"{info.regtype}[]" for info in postgres.types if info.array_oid}


def _value(text: str | None, oid: int) -> JsonValue:
    if text is None:
        return None
    if oid == _BOOLEAN:
        return text == "t"
    if oid in _INTEGERS:
        number = int(text)
        # RFC 8259 §6: readers keep integers exactly up to 2^53 only.
        return number if abs(number) <= SAFE_INTEGER else text
    if oid in _FLOATS:
        real = float(text)
        return real if math.isfinite(real) else text
    if oid == _BYTES:
        return base64.b64encode(bytes.fromhex(text[2:])).decode()
    return text


def bind_parameters(parameters: Parameters) -> list[Any]:
    """Return the values for `$1`, `$2` …; objects as jsonb."""
    from psycopg.types.json import Jsonb

    if isinstance(parameters, dict):
        message = "PostgreSQL takes `params` as an array for $1, $2 and so on."
        raise refuse(ErrorKind.INVALID_INPUT, message, argument="params")
    return [Jsonb(value, dumps=msgspec.json.encode) if isinstance(value, dict) else value for value in parameters]
