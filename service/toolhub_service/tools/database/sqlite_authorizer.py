"""Decides what one statement may touch in a SQLite file, and says what it touches.

SQLite asks for each table, column and function while it prepares a statement (sqlite3_set_authorizer): that is what the
statement will do, whatever a parser made of its text. First it prepares the statement for EXPLAIN, which runs nothing,
and the questions are collected; then it prepares it to run, and only what was collected is allowed. SQLite does not ask
about a table on the right of NATURAL JOIN or USING of which only the joined columns are read. So the program that
EXPLAIN shows is read as well: it opens the tree of each table that it will touch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from toolhub_service.domain.statement import QUERY, Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import describe_refused_function, describe_refused_table, may_call, may_use_table
from toolhub_service.guards.sql.sqlite import IN_FROM, lower_ascii

_SELECTS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
_WRITES: Final = {
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_UPDATE: "UPDATE",
    sqlite3.SQLITE_DELETE: "DELETE",
}
# By its instruction, the members of a row of EXPLAIN that say which tree is opened or emptied, and of which database.
_OPENS: Final = {"OpenRead": (3, 4), "OpenWrite": (3, 4), "ReopenIdx": (3, 4), "Clear": (2, 3)}
# Tables in which full-text search stores its words: SQLite reads them by statements of its own.
_SHADOWS: Final = frozenset("data idx content docsize config segments segdir stat node parent rowid".split())


class StatementAuthorizer:
    """Of one statement; SQLite calls it. `writes`: whether the statement may change rows."""

    def __init__(self, terms: DatabaseTerms, *, writes: bool) -> None:
        self.refusal = ""
        """Why the first access was refused, with what to do; empty: none was."""
        self._terms = terms
        self._writes = writes
        self._tables: set[str] = set()
        self._functions: set[str] = set()
        self._actions: set[str] = set()
        self._written: set[str] = set()
        self._selects = False
        self._unclear: set[str] = set()
        """Names of which SQLite does not say whether they are tables or WITH queries: no column of them is read."""
        self._is_collecting = True

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, _by: str | None
    ) -> int:
        """Authorize one access. `_by`, the view, trigger or WITH query that causes it, is no justification."""
        if self._is_collecting:
            is_allowed = self._collect(action, lower_ascii(first or ""), lower_ascii(second or ""), database)
        else:
            is_allowed = self._is_collected(action, lower_ascii(first or ""), lower_ascii(second or ""), database)
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    def settle(self, connection: sqlite3.Connection, program: Sequence[Sequence[Any]]) -> None:
        """Allow from now on what was collected, and nothing else; `program`: the rows of EXPLAIN."""
        self._is_collecting = False
        connection.set_authorizer(None)  # for the hub's own statements
        for name in sorted(self._unclear):
            found = "SELECT 1 FROM main.sqlite_schema WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
            if name.startswith("sqlite_") or connection.execute(found, (name,)).fetchone() is not None:
                self._use(name)
        for name in sorted(_opened_tables(connection, program)):
            # Numbers of rows are counted there, whoever inserts.
            if not (self._writes and name == "sqlite_sequence"):
                self._use(name)
        connection.set_authorizer(self)

    def read(self, parsed: Statement) -> Statement:
        """Return the statement as SQLite reads it, with what the parser found besides: SQLite leaves out WITH queries
        that nothing uses, and the rows that a REPLACE deletes."""
        reads = (QUERY,) if self._selects or not self._tables <= self._written else ()
        return replace(
            parsed,
            tables=tuple(sorted(self._tables.union(parsed.tables))),
            functions=tuple(sorted(self._functions.union(parsed.functions))),
            actions=tuple(sorted({*parsed.actions, *self._actions, *reads})),
        )

    def _collect(self, action: int, first: str, second: str, database: str | None) -> bool:
        if action in _SELECTS:
            self._selects = True
            return True
        if action == sqlite3.SQLITE_FUNCTION:
            return self._call(second)
        if action == sqlite3.SQLITE_READ and not second and database is None:
            self._unclear.add(first)
            return True
        if action != sqlite3.SQLITE_READ and not (self._writes and action in _WRITES):
            return self._refuse("The statement does what no tool does: only rows of tables may be read or changed.")
        if database not in (None, "", "main"):
            return self._refuse(f"The statement uses the database {database}: only main may be used.")
        if action == sqlite3.SQLITE_READ and first in IN_FROM:
            return self._call(first)
        if action in _WRITES:
            self._actions.add(_WRITES[action])
            self._written.add(first)
        return self._use(first)

    def _call(self, function: str) -> bool:
        self._functions.add(function)
        return may_call(function, self._terms) or self._refuse(describe_refused_function(function, self._terms))

    def _use(self, table: str) -> bool:
        self._tables.add(table)
        return may_use_table(table, self._terms) or self._refuse(describe_refused_table(table))

    def _refuse(self, why: str) -> bool:
        self.refusal = self.refusal or why
        return False

    def _is_collected(self, action: int, first: str, second: str, database: str | None) -> bool:
        if action in _SELECTS:
            return True
        if action == sqlite3.SQLITE_FUNCTION:
            return second in self._functions or may_call(second, self._terms)
        if action == sqlite3.SQLITE_PRAGMA:  # full-text search asks whether its table has changed
            return first == "data_version" and not second
        if action != sqlite3.SQLITE_READ and not (self._writes and action in _WRITES):
            return False
        if action == sqlite3.SQLITE_READ and not second and database is None and first in self._unclear:
            return True
        if database not in (None, "", "main"):
            return False
        return first in self._tables or first in self._functions or self._is_shadow(first)

    def _is_shadow(self, table: str) -> bool:
        owner, _, part = table.rpartition("_")
        return part in _SHADOWS and owner in self._tables


def _opened_tables(connection: sqlite3.Connection, program: Sequence[Sequence[Any]]) -> set[str]:
    """Return the tables whose trees, or whose indexes' trees, a program opens."""
    named = "SELECT rootpage, tbl_name FROM main.sqlite_schema WHERE rootpage > 0"
    tables = {1: "sqlite_schema"} | {page: lower_ascii(name) for page, name in connection.execute(named)}
    opened = set()
    for row in program:
        if (members := _OPENS.get(row[1])) is not None:
            page, database = (row[member] for member in members)
            opened.add(tables.get(page, "sqlite_schema") if database == 0 else "sqlite_temp_schema")
    return opened
