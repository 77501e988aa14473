"""A database as the core/db.* tools see it: a name, its terms and bounds, rows in JSON values, and what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql_statement import Statement
from toolhub_service.tools.tool import ToolOutput

MAX_TABLES: Final = 100
MAX_COLUMNS: Final = 2_000
SAFE_INTEGER: Final = 2**53 - 1
"""The largest that every reader of JSON keeps exactly; what is beyond travels as text."""
EXCERPT_CHARS: Final = 400
_RESERVE: Final = 0.1
_RESERVE_S: Final = 1.0

Row: TypeAlias = list[JsonValue]
Parameters: TypeAlias = list[JsonValue] | dict[str, JsonValue]
ExportFormat: TypeAlias = Literal["csv", "jsonl", "parquet"]


class DatabaseLimits(msgspec.Struct, frozen=True):
    """Bounds on one statement."""

    timeout_s: float = 30.0
    max_rows: int = 100_000
    """Of one result, with what goes into its artifact."""
    max_bytes: int = 64 * 1024 * 1024
    """Of the values of one result, about, with what goes into its artifact."""
    max_cost: float = 0.0
    """Of PostgreSQL's own estimate; 0: no bound."""
    export: ExportFormat = "csv"


class Column(ToolOutput, frozen=True):
    """Of a result."""

    name: str
    type: Annotated[str, Meta(description="As the database names it. All but booleans and numbers come as text.")]


class DescribedColumn(ToolOutput, frozen=True):
    name: str
    type: str
    nullable: bool
    default: str | None = None
    comment: str = ""


class ForeignKey(ToolOutput, frozen=True):
    columns: list[str]
    table: str
    target_columns: list[str]


class DescribedTable(ToolOutput, frozen=True):
    name: Annotated[str, Meta(description="As it is written in a statement.")]
    kind: Annotated[str, Meta(description="table, view, or what else the database calls it.")]
    columns: list[DescribedColumn]
    primary_key: list[str]
    foreign_keys: list[ForeignKey]
    comment: str = ""


class Reading(Protocol):
    """The rows of one query, on their way."""

    has_types: bool
    """Whether each column has one type; in SQLite each value has its own."""

    @property
    def columns(self) -> Sequence[Column]:
        """Once all rows that are wanted were read: SQLite's types are those of its values."""

    async def next_rows(self) -> list[Row]:
        """Some more, about a megabyte at most; empty at the end. Raises ToolFailure."""


class Database(Protocol):
    """One configured connection. Every statement has a session of its own, which leaves nothing behind."""

    @property
    def terms(self) -> DatabaseTerms: ...

    @property
    def limits(self) -> DatabaseLimits: ...

    @property
    def description(self) -> str:
        """The operator's words for models."""

    def missing(self) -> str:
        """What is not installed, with what to do; empty: nothing."""

    def query(
        self, statement: Statement, parameters: Parameters, deadline_s: float
    ) -> AbstractAsyncContextManager[Reading]:
        """Run a judged query. Leaving the context, however that happens, ends it at the database too."""

    async def execute(self, statement: Statement, parameters: Parameters, deadline_s: float) -> int:
        """Run a judged write in a transaction of its own; how many rows it changed."""

    async def describe(self, table: str, deadline_s: float) -> tuple[list[DescribedTable], bool]:
        """The tables that may be used, or the one; whether there are more."""


def statement_deadline_s(timeout_s: float, call_deadline_s: float) -> float:
    """When a statement is ended (loop clock): early enough that its end can still be text within the call."""
    now_s = asyncio.get_running_loop().time()
    remaining_s = max(0.0, call_deadline_s - now_s)
    # A tenth, so that a call of a few milliseconds still has some of them for its statement.
    return now_s + min(timeout_s, remaining_s - min(_RESERVE_S, remaining_s * _RESERVE))


def refused_by_database(what: str, code: str = "") -> ToolFailure:
    """`what`: the database's own words, which are about the statement."""
    text = " ".join(what.split())[:EXCERPT_CHARS].rstrip(".")
    shown = f" ({code})" if code else ""
    return refuse(
        ErrorKind.INVALID_INPUT,
        f"The database does not accept the statement{shown}: {text}. Correct it; core/db.describe tells names.",
    )


def too_slow(limit_s: float) -> ToolFailure:
    return refuse(
        ErrorKind.TIMEOUT,
        f"The statement took longer than {limit_s:.3g} s and was ended at the database; nothing was changed. Read "
        "less: filter, aggregate, or use an indexed column.",
        timeout_s=round(limit_s, 3),
        stopped=True,  # as domain.errors.STOPPED: the database has confirmed it
    )


def row_too_large(max_bytes: int) -> ToolFailure:
    return refuse(
        ErrorKind.INVALID_INPUT,
        f"A value or row of the result is larger than {max_bytes} bytes. Select fewer columns, or cut long texts "
        "with substr(column, 1, 1000).",
        max_bytes=max_bytes,
    )


def unreachable(name: str, reason: str) -> ToolFailure:
    """`reason`: for operators, without the place or a password."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"The database of the connection {name} cannot be used at the moment: {reason}. Try again later, or tell the "
        "operator.",
        reason=reason,
    )


def not_usable(name: str, reason: str) -> ToolFailure:
    """What only an operator can change."""
    message = f"The connection {name} cannot be used: {reason}. An operator must correct that."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason=reason)
