"""core/db.query, core/db.execute, core/db.describe: SQL on databases that the operator has configured by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import Chunk, EvidenceType
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import (
    DANGER_DESTRUCTIVE,
    READ_DB,
    WRITE_DB,
    Annotations,
    ArgumentRole,
    CostHints,
    DatabaseTerms,
    Example,
    GuardedArgument,
    IdempotencyMode,
    ToolLimits,
)
from toolhub_service.guards.sql.check import MAX_CHARS, check_sql, find_database
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.database.connection import (
    Column,
    Database,
    DescribedTable,
    Parameters,
    Reading,
    Row,
    not_usable,
    statement_deadline_s,
)
from toolhub_service.tools.database.export import MEDIA_TYPES, export_rows, missing_for
from toolhub_service.tools.tool import Input, Output, Tool, ToolInput, ToolOutput

_INLINE_BYTES: Final = 512 * 1024
"""Limit of the rows in an answer."""
_HOW_TO: Final = "no database is configured: name one under `databases` in the hub's configuration"
_NUMBER_BYTES: Final = 8
_SHOWN_CHARS: Final = 300
_NAMES_CHARS: Final = 1_000
_DIALECTS: Final = {"postgres": "PostgreSQL", "sqlite": "SQLite"}

_Connection = Annotated[
    str, Meta(description="Name of a configured database; core/db.describe without it lists them.", max_length=64)
]
_Sql = Annotated[
    str,
    Meta(
        description="One statement. Values go into params: $1, $2 in PostgreSQL; ? or :name in SQLite.",
        min_length=1,
        max_length=MAX_CHARS,
    ),
]
_Params = Annotated[
    Annotated[list[Any], Meta(max_length=1_000)] | Annotated[dict[str, Any], Meta(max_length=1_000)],
    Meta(description="Values of the placeholders: an array, or for :name in SQLite an object."),
]


class DatabaseTool(Tool[Input, Output]):
    """What the tools share: the configured databases."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self._databases = {database.terms.name: database for database in databases}

    def databases(self) -> tuple[DatabaseTerms, ...]:
        return tuple(database.terms for database in self._usable_databases())

    def full_description(self) -> str:
        connections = ", ".join(f"{terms.name} ({_DIALECTS[terms.dialect]})" for terms in self.databases())
        return f"{self.description} Connections: {connections[:_NAMES_CHARS]}." if connections else self.description

    def unavailable_reason(self) -> str:
        offered = self._usable_databases()
        if not offered:
            return self._how_to()
        missing = [database.missing() for database in offered]
        return missing[0] if all(missing) else ""

    def _usable_databases(self) -> list[Database]:
        return list(self._databases.values())

    def _how_to(self) -> str:
        return _HOW_TO

    def _database(self, name: str) -> Database:
        """Return the database. Raises ToolFailure INVALID_INPUT, TOOL_UNAVAILABLE."""
        database = self._databases[find_database(name, self.databases()).name]
        if missing := database.missing():
            raise not_usable(name, missing)
        return database


def _check_parameters(parameters: Parameters) -> Parameters:
    """Return the parameters. Raises ToolFailure INVALID_INPUT for a lone surrogate, which no database accepts."""
    try:
        msgspec.json.encode(parameters)
    except UnicodeEncodeError:
        raise refuse(ErrorKind.INVALID_INPUT, "A text of `params` is not valid Unicode. Correct it.") from None
    return parameters


class _Acceptance:
    """Has the call decided again where the database says more of the statement than the parser did."""

    def __init__(self, parsed: Statement, context: ToolContext) -> None:
        self.read = parsed
        """The statement as the database reads it."""
        self._context = context

    def __call__(self, read: Statement) -> None:
        """Raises ToolFailure POLICY_DENIED."""
        decided = self.read
        self.read = read
        if (read.tables, read.functions, read.actions) == (decided.tables, decided.functions, decided.actions):
            return
        if self._context.decide_statement is None:
            message = "The database reads the statement differently from the hub, and no policy is there to decide it."
            raise refuse(ErrorKind.POLICY_DENIED, message)
        self._context.decide_statement(read)


class DbQuery(DatabaseTool["DbQuery.In", "DbQuery.Out"]):
    name = "core/db.query"
    description = (
        "Run one SELECT on a configured database (PostgreSQL or SQLite) and return columns and rows. Read-only. Pass "
        "values in params, never inside the text. Ask for few rows: aggregate, filter and LIMIT in SQL; what is beyond "
        "limit goes into an artifact. Decimals, large integers, times, arrays and JSON come as exact text, bytes as "
        "base64. Look at tables and columns with core/db.describe first."
    )
    tags = ("db", "sql", "database", "query", "postgresql", "sqlite")
    capabilities = frozenset({READ_DB})
    annotations = Annotations(read_only=True, idempotent=True, open_world=True, supports_streaming=True)
    cost = CostHints(latency_ms_p50=20.0, latency_ms_p95=2_000.0)
    limits = ToolLimits(timeout_s=600.0)  # the connection's own limit ends a statement
    guarded = (GuardedArgument("query", ArgumentRole.SQL),)
    examples = (
        Example(
            "Orders of one customer",
            {
                "connection": "shop",
                "query": "SELECT id, total FROM orders WHERE customer_id = $1 ORDER BY id",
                "params": [42],
            },
        ),
        Example(
            "Sum by month",
            {
                "connection": "shop",
                "query": "SELECT date_trunc('month', placed_at) AS month, sum(total) FROM orders GROUP BY 1 ORDER BY 1",
                "limit": 24,
            },
        ),
    )

    class In(ToolInput, frozen=True):
        connection: _Connection
        query: _Sql
        params: _Params = field(default_factory=list)
        limit: Annotated[int, Meta(description="Rows in the answer.", ge=1, le=10_000)] = 1_000

    class Out(ToolOutput, frozen=True):
        columns: list[Column]
        rows: Annotated[list[list[Any]], Meta(description="Each in the order of columns.")]
        row_count: Annotated[int, Meta(description="Rows in this answer.")]
        truncated: Annotated[bool, Meta(description="Whether there are more rows; see the artifact of the result.")]
        artifact_rows: Annotated[int, Meta(description="Rows in the artifact; 0: there is none.")] = 0

    def upstream(self, args: In) -> str:
        return f"db:{args.connection}"

    async def run(self, args: In, context: ToolContext) -> Out:
        database = self._database(args.connection)
        statement = check_sql(args.query, database.terms, writes=False)
        deadline_s = statement_deadline_s(database.limits.timeout_s, context.deadline_s)
        began_s = asyncio.get_running_loop().time()
        acceptance = _Acceptance(statement, context)
        async with database.query(statement, _check_parameters(args.params), deadline_s, acceptance) as reading:
            result = await _Result(args.limit, context).read(reading)
            more = await _keep_whole_result(result, reading, database, context) if result.is_cut else 0
            columns = list(reading.columns)
        context.truncated = result.is_cut
        context.is_large = result.size_bytes > _INLINE_BYTES // 8
        summary = f"{statement.kind} on {args.connection}: {len(result.rows)} rows"
        _prove(context, acceptance.read, args.connection, summary, began_s)
        return self.Out(
            columns=columns,
            rows=result.rows,
            row_count=len(result.rows),
            truncated=result.is_cut,
            artifact_rows=more,
        )


class _Result:
    """The rows of an answer, streamed as they arrive, and the rows read beyond it."""

    def __init__(self, limit: int, context: ToolContext) -> None:
        self.rows: list[Row] = []
        self.size_bytes = 0
        self.is_cut = False
        self.beyond: list[Row] = []
        self._limit = limit
        self._sink = context.sink

    async def read(self, reading: Reading) -> _Result:
        names = [column.name for column in reading.columns]
        self._sink.chunk(Chunk(data=msgspec.json.encode(names), stream="columns"))
        while not self.is_cut and (batch := await reading.next_rows()):
            for at, row in enumerate(batch):
                line = msgspec.json.encode(row)
                if len(self.rows) == self._limit or self.size_bytes + len(line) > _INLINE_BYTES:
                    self.is_cut = True
                    self.beyond = batch[at:]
                    break
                self.rows.append(row)
                self.size_bytes += len(line)
                self._sink.chunk(Chunk(data=line, stream="rows"))
        return self


class _Whole:
    """A result from its first row to its last, or to the limits of its connection."""

    def __init__(self, result: _Result, reading: Reading, database: Database) -> None:
        self._ready = [result.rows, result.beyond]
        self._reading = reading
        self._left_rows = database.limits.max_rows
        self._left_bytes = database.limits.max_bytes
        self.rows = 0
        self.is_cut = False

    async def next_rows(self) -> list[Row]:
        if self.is_cut:
            return []
        batch: list[Row] = []
        while self._ready and not batch:
            batch = self._ready.pop(0)
        batch = batch or await self._reading.next_rows()
        fitting: list[Row] = []
        for row in batch:
            self._left_bytes -= sum(len(value) if isinstance(value, str) else _NUMBER_BYTES for value in row)
            if self.rows == self._left_rows or self._left_bytes < 0:
                self.is_cut = True
                break
            fitting.append(row)
            self.rows += 1
        return fitting


async def _keep_whole_result(result: _Result, reading: Reading, database: Database, context: ToolContext) -> int:
    """Store the whole result as an artifact. Return its number of rows, 0 where it could not be stored."""
    export = database.limits.export
    whole = _Whole(result, reading, database)
    ref = f"db:{database.terms.name}"
    failed = missing_for(export)
    if not failed:
        chunks = export_rows(export, reading.columns, whole, has_types=reading.has_types)
        try:
            kept = await context.keep(chunks, media_type=MEDIA_TYPES[export], name=f"result.{export}")
            failed = "" if kept is not None else "the hub keeps no artifacts"
        except ToolFailure as failure:
            if failure.error.kind in (ErrorKind.TIMEOUT, ErrorKind.CANCELLED):
                raise
            failed = failure.error.message
    shown = f"the answer has the first {len(result.rows)} rows"
    if failed:
        context.proves(EvidenceType.TOOL, ref, f"{shown}; the rest was not kept: {failed}")
        return 0
    end = (
        f"the first {whole.rows} rows, where the connection's bounds end" if whole.is_cut else f"all {whole.rows} rows"
    )
    context.proves(EvidenceType.TOOL, ref, f"{shown}, the artifact {end}")
    return whole.rows


class DbExecute(DatabaseTool["DbExecute.In", "DbExecute.Out"]):
    name = "core/db.execute"
    description = (
        "Run one INSERT, UPDATE, DELETE or MERGE on a configured database that allows writing, in a transaction of its "
        "own, and return how many rows it changed. Pass values in params, never inside the text. It is planned or "
        "approved before it runs. To read use core/db.query."
    )
    tags = ("db", "sql", "database", "write", "postgresql", "sqlite")
    capabilities = frozenset({WRITE_DB, DANGER_DESTRUCTIVE})
    annotations = Annotations(destructive=True, open_world=True)
    cost = CostHints(latency_ms_p50=20.0, latency_ms_p95=2_000.0)
    limits = ToolLimits(timeout_s=600.0)  # the connection's own limit ends a statement
    idempotency = IdempotencyMode.KEYED
    guarded = (GuardedArgument("query", ArgumentRole.SQL),)
    examples = (
        Example(
            "Mark an order as paid",
            {"connection": "shop-write", "query": "UPDATE orders SET paid = true WHERE id = $1", "params": [7]},
        ),
    )

    class In(ToolInput, frozen=True):
        connection: _Connection
        query: _Sql
        params: _Params = field(default_factory=list)

    class Out(ToolOutput, frozen=True):
        rows_affected: int

    def upstream(self, args: In) -> str:
        return f"db:{args.connection}"

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        database = self._database(args.connection)
        statement = check_sql(args.query, database.terms, writes=True)
        which = "" if statement.has_condition else ", every row (there is no WHERE)"
        text = statement.text if len(statement.text) <= _SHOWN_CHARS else f"{statement.text[:_SHOWN_CHARS]}…"
        tables = ", ".join(statement.tables)
        does = statement.kind if statement.kind in statement.actions else "/".join((statement.kind, *statement.actions))
        return (f"{does} in the database {args.connection} ({tables}){which}: {text}",)

    async def run(self, args: In, context: ToolContext) -> Out:
        database = self._database(args.connection)
        statement = check_sql(args.query, database.terms, writes=True)
        began_s = asyncio.get_running_loop().time()
        deadline_s = statement_deadline_s(database.limits.timeout_s, context.deadline_s)
        acceptance = _Acceptance(statement, context)
        changed = await database.execute(statement, _check_parameters(args.params), deadline_s, acceptance)
        summary = f"{statement.kind} on {args.connection}: {changed} rows changed"
        _prove(context, acceptance.read, args.connection, summary, began_s)
        return self.Out(rows_affected=changed)

    def _usable_databases(self) -> list[Database]:
        return [database for database in super()._usable_databases() if database.terms.may_write]

    def _how_to(self) -> str:
        if not self._databases:
            return _HOW_TO
        return "no connection under `databases` has `read_only: false`: configure one for writing"


class Connection(ToolOutput, frozen=True):
    name: str
    dialect: str
    read_only: bool
    description: str = ""


class DbDescribe(DatabaseTool["DbDescribe.In", "DbDescribe.Out"]):
    name = "core/db.describe"
    description = (
        "Describe a configured database: its tables and views with columns, types, keys and comments. Without "
        "connection it lists the configured databases; with table it describes that one alone. Call it before "
        "core/db.query instead of guessing names."
    )
    tags = ("db", "sql", "database", "schema", "tables", "postgresql", "sqlite")
    capabilities = frozenset({READ_DB})
    annotations = Annotations(read_only=True, idempotent=True, open_world=True)
    cost = CostHints(latency_ms_p50=20.0, latency_ms_p95=500.0)
    examples = (
        Example("Which databases are there?", {}),
        Example("One table", {"connection": "shop", "table": "orders"}),
    )

    class In(ToolInput, frozen=True):
        connection: _Connection = ""
        table: Annotated[
            str, Meta(description="Name of one table, such as orders or sales.orders.", max_length=200)
        ] = ""

    class Out(ToolOutput, frozen=True):
        connections: list[Connection]
        tables: list[DescribedTable]
        truncated: Annotated[bool, Meta(description="Whether there are more tables: name one.")]

    def upstream(self, args: In) -> str:
        return f"db:{args.connection}" if args.connection else ""

    async def run(self, args: In, context: ToolContext) -> Out:
        if not args.connection:
            return self.Out(
                connections=[_to_connection(each) for each in self._databases.values()], tables=[], truncated=False
            )
        database = self._database(args.connection)
        deadline_s = statement_deadline_s(database.limits.timeout_s, context.deadline_s)
        tables, truncated = await database.describe(args.table, deadline_s)
        if args.table and not tables:
            message = f"There is no table {args.table!r} that may be used. Leave out `table` to list those there are."
            raise refuse(ErrorKind.NOT_FOUND, message)
        context.truncated = truncated
        context.proves(EvidenceType.TOOL, f"db:{args.connection}", f"described {len(tables)} tables")
        return self.Out(connections=[_to_connection(database)], tables=tables, truncated=truncated)


def _to_connection(database: Database) -> Connection:
    terms = database.terms
    return Connection(
        name=terms.name, dialect=terms.dialect, read_only=not terms.may_write, description=database.description
    )


def _prove(context: ToolContext, statement: Statement, connection: str, summary: str, began_s: float) -> None:
    duration_ms = round((asyncio.get_running_loop().time() - began_s) * 1_000)
    context.proves(
        EvidenceType.TOOL,
        f"db:{connection}",
        summary,
        statement_class=statement.kind,
        tables=",".join(statement.tables),
        duration_ms=str(duration_ms),
    )


def db_tools(databases: Sequence[Database]) -> list[Tool[Any, Any]]:
    """Return every database tool; one without a usable database is UNAVAILABLE, with what to configure."""
    return [DbQuery(databases), DbExecute(databases), DbDescribe(databases)]
