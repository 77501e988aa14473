"""The contents of one SQL statement, in the terms that policy, plans and refusals use for every database.

A parser says them before a call is decided; the database itself says them again before the statement runs, and the call
is then decided by what the database says.
"""

from __future__ import annotations

from typing import Final

import msgspec

QUERY: Final = "SELECT"
"""Also of VALUES and TABLE."""
WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})


class Statement(msgspec.Struct, frozen=True):
    """One statement, read but not yet checked."""

    kind: str
    """SELECT, INSERT, UPDATE, DELETE, MERGE, or the first word of another one, such as DROP."""
    text: str = ""
    """The statement as written, without surrounding text; empty where it can never run."""
    tables: tuple[str, ...] = ()
    """Tables that it reads or writes, sorted: `schema.table` in PostgreSQL, `table` in SQLite, in the database's
    case."""
    functions: tuple[str, ...] = ()
    """Functions that it calls, sorted: `name`, or `schema.name` for a schema other than the database's own."""
    actions: tuple[str, ...] = ()
    """What any part of it does to rows, sorted: SELECT, INSERT, UPDATE, DELETE. A MERGE has those of its branches."""
    problems: tuple[str, ...] = ()
    """Why no configuration allows it: each completes "The statement …"."""
    has_condition: bool = True
    """False: an UPDATE or DELETE of every row."""
    dotted: tuple[str, ...] = ()
    """Names that follow a dot, sorted: columns, or functions that the database calls with what precedes the dot."""
