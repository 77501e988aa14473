"""Checks one SQL statement against what its connection allows: policy before a tool runs, and the tool before it
connects.

The parser explains; the database is the boundary. Behind this check are a role that may only read, a read-only
transaction and, in SQLite, an authorizer. So little is allowed here, and everything unknown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec
from typing import Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.statement import QUERY, WRITES, Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.characters import check_characters
from toolhub_service.guards.sql.functions import POSTGRES_FUNCTIONS, SQLITE_FUNCTIONS
from toolhub_service.guards.sql.postgres import read_postgres
from toolhub_service.guards.sql.sqlite import lower_ascii, read_sqlite

MAX_CHARS: Final = 20_000
_MAX_TOKENS: Final = 4_000  # Parsing takes some 20 µs per token, on the event loop
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_CATALOGS: Final = ("pg_catalog.*", "pg_toast.*", "sqlite_*", "pragma_*", "dbstat", "bytecode", "tables_used")
_PARSERS: Final = {"postgres": "pgparse", "sqlite": "sqlglot"}
_SHOWN: Final = 12


def find_database(name: object, databases: Sequence[DatabaseTerms]) -> DatabaseTerms:
    """Return the named connection. Raises ToolFailure INVALID_INPUT that lists the existing ones."""
    for terms in databases:
        if terms.name == name:
            return terms
    known = ", ".join(terms.name for terms in databases) or "none is configured"
    raise refuse(ErrorKind.INVALID_INPUT, f"`connection` must name one of: {known}.", argument="connection")


def read_sql(sql: str, terms: DatabaseTerms) -> Statement:
    """Return the parsed statement, allowed or not. Raises ToolFailure INVALID_INPUT, TOOL_UNAVAILABLE without its
    parser."""
    if len(sql) > MAX_CHARS:
        message = f"The statement has more than {MAX_CHARS} characters. Shorten it; pass values in `params`."
        raise refuse(ErrorKind.INVALID_INPUT, message, max_chars=MAX_CHARS)
    if "\0" in sql or not _is_utf8(sql):
        raise refuse(ErrorKind.INVALID_INPUT, "The statement holds NUL or half a character. Remove it.")
    check_characters(sql)
    if len(_TOKEN.findall(sql)) > _MAX_TOKENS:
        message = f"The statement has more than {_MAX_TOKENS} words and signs. Simplify it; pass values in `params`."
        raise refuse(ErrorKind.INVALID_INPUT, message)
    return _read(sql, terms.dialect, terms.schema)


def _is_utf8(sql: str) -> bool:
    try:
        sql.encode()
    except UnicodeEncodeError:
        return False
    return True


def load_parsers(databases: Iterable[DatabaseTerms]) -> None:
    """Import the parsers of these databases: this takes 0.1 s, which a thread should spend before the first call. A
    parser that is not installed is reported to its calls."""
    for dialect in sorted({terms.dialect for terms in databases}):
        with suppress(ToolFailure):  # not installed: each call says so
            _read("SELECT 1", dialect, "public")


@lru_cache(maxsize=128)
def _read(sql: str, dialect: str, schema: str) -> Statement:
    """Cached, because policy, its conditions and the tool parse the same statement one after the other."""
    if find_spec(_PARSERS[dialect]) is None:
        raise refuse(
            ErrorKind.TOOL_UNAVAILABLE,
            f"The parser {_PARSERS[dialect]} is not installed on the hub's machine; an operator must "
            "`toolhub extras install db`.",
            retryable=False,
        )
    return read_sqlite(sql) if dialect == "sqlite" else read_postgres(sql, schema)


def check_sql(sql: str, terms: DatabaseTerms, *, writes: bool) -> Statement:
    """Return the statement if the connection allows it; `writes` is true for core/db.execute and false for
    core/db.query.

    Raises ToolFailure INVALID_INPUT for an invalid statement, POLICY_DENIED for one that is not allowed.
    """
    statement = read_sql(sql, terms)
    if problem := _problem(statement, terms, writes=writes):
        raise refuse_statement(problem, statement, terms)
    return statement


def _problem(statement: Statement, terms: DatabaseTerms, *, writes: bool) -> str:
    if statement.problems:
        return f"The statement {statement.problems[0]}."
    if not writes and statement.kind != QUERY:
        return f"This tool runs SELECT, not {statement.kind}: use core/db.execute on a connection that may write."
    if writes and statement.kind not in WRITES:
        return "This tool runs INSERT, UPDATE, DELETE or MERGE: use core/db.query to read."
    if writes and not terms.may_write:
        return f"The connection {terms.name} is read-only. An operator can configure another one for writing."
    for table in statement.tables:
        if not may_use_table(table, terms):
            return describe_refused_table(table)
    for function in statement.functions:
        if not may_call(function, terms):
            return describe_refused_function(function, terms)
    return ""


def describe_refused_table(table: str) -> str:
    """Return why a table may not be used, with what to do."""
    return f"The table {table} may not be used. core/db.describe lists those that may."


def describe_refused_function(function: str, terms: DatabaseTerms) -> str:
    """Return why a function may not be called, with what to do."""
    return (
        f"The function {function} is not on the list of allowed functions. Do without it; an operator can add it to "
        f"`functions` of the connection {terms.name}."
    )


def may_use_table(table: str, terms: DatabaseTerms) -> bool:
    """Return whether the connection's list has the table; without a list, all but the database's internal tables are
    allowed."""
    if terms.tables:
        patterns = terms.tables if terms.dialect == "postgres" else [lower_ascii(pattern) for pattern in terms.tables]
        return any(fnmatchcase(table, pattern) for pattern in patterns)
    return not any(fnmatchcase(table, pattern) for pattern in _CATALOGS)


def may_call(function: str, terms: DatabaseTerms) -> bool:
    built_in = SQLITE_FUNCTIONS if terms.dialect == "sqlite" else POSTGRES_FUNCTIONS
    return function in built_in or function in terms.functions


def refuse_statement(problem: str, statement: Statement, terms: DatabaseTerms) -> ToolFailure:
    """Return the refusal of a statement that its connection does not allow."""
    return refuse(
        ErrorKind.POLICY_DENIED,
        problem,
        connection=terms.name,
        statement_class=statement.kind,
        tables=list(statement.tables[:_SHOWN]),
    )
