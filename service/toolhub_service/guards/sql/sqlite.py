"""Parses a statement of SQLite with sqlglot, which knows less than SQLite: anything that it does not know is a problem.

The connection's authorizer (tools/database/sqlite_authorizer.py) makes SQLite itself enforce the same lists, and say
what the statement touches, whatever was parsed here.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.statement import QUERY, WRITES, Statement
from toolhub_service.guards.sql.functions import SQLITE_FUNCTIONS

if TYPE_CHECKING:
    from sqlglot import exp

_KINDS: Final = {
    **dict.fromkeys(("Select", "Union", "Intersect", "Except", "Values", "Subquery"), QUERY),
    "Insert": "INSERT",
    "Update": "UPDATE",
    "Delete": "DELETE",
}
IN_FROM: Final = frozenset({"json_each", "json_tree"})
"""Functions that are written like a table."""
# What may occur in a statement besides conditions and functions, by the class of sqlglot.
_PARTS: Final = frozenset(
    """
Alias Aliases Boolean CTE Case Cast Collate Column ColumnDef Cube DataType DataTypeParam Distinct EQ Except Exists
Filter From Group Having HexString Identifier If In Intersect Interval JSONKeyValue JSONPath JSONPathKey JSONPathPart
JSONPathRoot JSONPathSelector JSONPathSubscript JSONPathWildcard Join Kwarg Lateral Limit Literal National Null Offset
OnConflict Order Ordered Parameter Paren Placeholder PropertyEQ Rollup Schema Select Slice Star Subquery Table
TableAlias TableFromRows Tuple Union Unnest Values Var When Where Window WindowSpec With
""".split()
)
_WRITING: Final = frozenset({"Insert", "Update", "Delete", "OnConflict"})


def read_sqlite(sql: str) -> Statement:
    """Return the statement. Raises ToolFailure INVALID_INPUT when it cannot be parsed."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    # sqlglot warns of each statement that it keeps as an unparsed `Command`, which is refused here.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        parsed = [each for each in sqlglot.parse(sql, read="sqlite") if each is not None]
    except SqlglotError as error:
        found = getattr(error, "errors", None) or [{}]
        message = f"The statement cannot be parsed: {str(found[0].get('description') or 'invalid SQL')[:200]}"
        where = f" at line {found[0].get('line')}, column {found[0].get('col')}" if found[0].get("line") else ""
        raise refuse(ErrorKind.INVALID_INPUT, f"{message}{where}. Correct it and call again.") from None
    except RecursionError:
        raise refuse(ErrorKind.INVALID_INPUT, "The statement is nested too deeply. Simplify it.") from None
    if len(parsed) != 1:
        return Statement("SEVERAL" if parsed else "NONE", problems=("must be one: send one statement a call",))
    root = parsed[0]
    kind = _KINDS.get(type(root).__name__, "")
    if not kind:
        word = str(getattr(root, "this", "") if type(root).__name__ == "Command" else root.key).split(" ")[0].upper()
        return Statement(word[:32] or "OTHER", problems=(f"is {word[:32] or 'a command'}, which no tool runs",))
    found = walk_parts(root, kind)
    return Statement(
        kind,
        sql.strip().rstrip(";").strip(),
        tuple(sorted(found.tables)),
        tuple(sorted(found.functions)),
        tuple(sorted(found.actions)),
        tuple(found.problems),
        has_condition=kind not in ("UPDATE", "DELETE") or root.args.get("where") is not None,
    )


_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def lower_ascii(name: str) -> str:
    """Return the name as SQLite compares it, which ignores the case of ASCII letters alone: for Python, other letters
    have an ASCII one as their lower case."""
    return name.translate(_LOWER)


@dataclass(slots=True)
class _Found:
    tables: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    actions: set[str] = field(default_factory=set)
    problems: dict[str, None] = field(default_factory=dict)


def walk_parts(root: Any, kind: str) -> _Found:
    """Read each part with the names of the WITH queries that are certainly visible to it; any other name is a
    table."""
    found = _Found()
    target = _target(root, kind, found)
    # The rows of INSERT … VALUES are read from nowhere.
    rows = root.args.get("expression") if type(root.args.get("expression")).__name__ == "Values" else None
    stack: list[tuple[Any, frozenset[str]]] = [(root, frozenset())]
    while stack:
        node, queries = stack.pop()
        if problem := _problem(node, root, kind):
            found.problems[problem] = None
            continue
        with_clause = node.args.get("with_") or node.args.get("with")
        if with_clause is not None:
            queries = push_with_queries(with_clause, queries, stack)
        if type(node).__name__ == "Table":
            # The target of a write is never a WITH query, whatever those are called.
            _table(node, frozenset() if node is target else queries, found)
        elif type(node).__name__ == "In" and node.args.get("field") is not None:
            _in_table(node.args["field"], queries, found)
        elif type(node).__name__ in ("Select", "Values") and node is not rows:
            found.actions.add(QUERY)
        elif name := _function_name(node):
            found.functions.add(name)
        stack.extend((child, queries) for child in node.iter_expressions() if child is not with_clause)
    return found


def _target(root: Any, kind: str, found: _Found) -> Any:
    """Note what the statement does to rows. Return the table that it writes to; None for a query."""
    found.actions.add(kind)
    if kind == QUERY:
        return None
    if root.args.get("alternative") == "REPLACE":
        found.actions.add("DELETE")  # of the rows that are in the way
    conflict = root.args.get("conflict")
    if conflict is not None and conflict.expressions:
        found.actions.add("UPDATE")
    if root.args.get("from_") is not None or root.args.get("from") is not None:
        found.actions.add(QUERY)
    target = root.this
    return target.this if type(target).__name__ == "Schema" else target


def _in_table(tested: Any, queries: frozenset[str], found: _Found) -> None:
    """Note the table of `x IN t`, which is read."""
    from sqlglot import exp

    found.actions.add(QUERY)
    name = lower_ascii(tested.name)
    is_plain = isinstance(tested, exp.Identifier) or (isinstance(tested, exp.Column) and not tested.table)
    if not isinstance(tested, exp.Func) and not (is_plain and name in queries):
        found.tables.add(name)


def _problem(node: Any, root: Any, kind: str) -> str:
    from sqlglot import exp

    name = type(node).__name__
    if name in _WRITING:
        if kind not in WRITES or (name != "OnConflict" and node is not root):
            return "writes within another statement: one statement may write once"
        return ""
    if name == "Returning":
        return "has RETURNING, whose rows no tool returns: leave it out"
    if name in _PARTS or isinstance(node, exp.Condition | exp.Func | exp.Connector):
        return ""
    return f"has a part that is not allowed ({name})"


def push_with_queries(
    with_clause: Any, outer: frozenset[str], stack: list[tuple[Any, frozenset[str]]]
) -> frozenset[str]:
    names = [lower_ascii(query.alias) for query in with_clause.expressions]
    is_recursive = bool(with_clause.args.get("recursive"))
    for number, query in enumerate(with_clause.expressions):
        stack.append((query, outer.union(names if is_recursive else names[:number])))
    return outer.union(names)


def _table(node: Any, queries: frozenset[str], found: _Found) -> None:
    from sqlglot import exp

    if node.catalog or lower_ascii(node.db) not in ("", "main"):
        found.problems["names another database than main"] = None
    if isinstance(node.this, exp.Func):
        return  # In FROM, and checked by itself
    if not isinstance(node.this, exp.Identifier):
        found.problems["names a table in an unusual way: write its name plainly or in double quotes"] = None
    name = lower_ascii(node.name)
    if not node.db and name in IN_FROM:
        found.functions.add(name)
    elif node.db or name not in queries:
        found.tables.add(name)


def _function_name(node: Any) -> str:
    """Return the name that SQLite knows; empty for what is not a function."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return lower_ascii(str(node.name))
    if not isinstance(node, exp.Func) or isinstance(
        node, exp.Connector | exp.Case | exp.Cast | exp.Exists | exp.Collate
    ):
        return ""
    names = [name.lower() for name in _names(type(node))]
    return next((name for name in names if name in SQLITE_FUNCTIONS), names[0])


def _names(kind: type[exp.Func]) -> Iterator[str]:
    yield from kind.sql_names()
    yield from _SPELLINGS.get(kind.__name__, ())


# Functions of SQLite that sqlglot lists under the name of another dialect.
_SPELLINGS: Final = {
    "TimeToStr": ("strftime",),
    "StrToTime": ("strftime",),
    "TsOrDsToDate": ("date",),
    "TsOrDsToTimestamp": ("datetime",),
    "JSONExtract": ("->",),
    "JSONExtractScalar": ("->>",),
    "JSONObjectAgg": ("json_group_object",),
    "JSONArrayAgg": ("json_group_array",),
    "StrPosition": ("instr",),
    "Rand": ("random",),
    "Chr": ("char",),
    "ParseJSON": ("json",),
    "JSONObject": ("json_object",),
    "Greatest": ("max",),
    "Least": ("min",),
}
