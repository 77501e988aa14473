"""A database for the core/db.* tools: its name, terms and limits, rows as JSON values, and its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.tools.tool import ToolOutput

MAX_TABLES: Final = 100
MAX_COLUMNS: Final = 2_000
SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; larger ones are sent as text."""
EXCERPT_CHARS: Final = 400
_RESERVE: Final = 0.1
_RESERVE_S: Final = 1.0

Row: TypeAlias = list[JsonValue]
Parameters: TypeAlias = list[JsonValue] | dict[str, JsonValue]
ExportFormat: TypeAlias = Literal["csv", "jsonl", "parquet"]
Accept: TypeAlias = Callable[[Statement], None]
"""Given the statement as the database reads it, before anything of it runs. Raises ToolFailure where it may not run."""


class DatabaseLimits(msgspec.Struct, frozen=True):
    """Limits of one statement."""

    timeout_s: float = 30.0
    max_rows: int = 100_000
    """Per result, including rows that go into its artifact."""
    max_bytes: int = 64 * 1024 * 1024
    """Approximate size of the values of one result, including those that go into its artifact."""
    max_cost: float = 0.0
    """Limit of PostgreSQL's own estimate; 0: none."""
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
    """The rows of one running query."""

    has_types: bool
    """Whether each column has one type; in SQLite each value has its own."""

    @property
    def columns(self) -> Sequence[Column]:
        """Return the columns, once all wanted rows were read: SQLite's types are those of its values."""

    async def next_rows(self) -> list[Row]:
        """Return more rows, about a megabyte at most; empty at the end. Raises ToolFailure."""


class Database(Protocol):
    """One configured connection. Every statement has its own session, which leaves no state."""

    @property
    def terms(self) -> DatabaseTerms: ...

    @property
    def limits(self) -> DatabaseLimits: ...

    @property
    def description(self) -> str:
        """Return the operator's description for models."""

    def missing(self) -> str:
        """Return what is not installed, with what to do; empty: nothing."""

    def query(
        self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept
    ) -> AbstractAsyncContextManager[Reading]:
        """Run a checked query. Leaving the context, in whatever way, also ends the query in the database."""

    async def execute(self, statement: Statement, parameters: Parameters, deadline_s: float, accept: Accept) -> int:
        """Run a checked write in its own transaction. Return the number of rows that it changed.

        `accept` is asked again before the transaction is committed if more was touched by then: by triggers, foreign
        keys and functions.
        """

    async def describe(self, table: str, deadline_s: float) -> tuple[list[DescribedTable], bool]:
        """Return the permitted tables, or the named one; and whether there are more."""


def statement_deadline_s(timeout_s: float, call_deadline_s: float) -> float:
    """Return when a statement is ended (loop clock): early enough to report that within the call."""
    now_s = asyncio.get_running_loop().time()
    remaining_s = max(0.0, call_deadline_s - now_s)
    # A tenth, so that a call of a few milliseconds has some of them left for its statement.
    return now_s + min(timeout_s, remaining_s - min(_RESERVE_S, remaining_s * _RESERVE))


def database_refusal(what: str, code: str = "") -> ToolFailure:
    """`what`: the database's own message about the statement."""
    text = excerpt(" ".join(what.split()), EXCERPT_CHARS).rstrip(".")
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
    """`reason`: for operators, without address and password."""
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
