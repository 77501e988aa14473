"""Parses a statement of PostgreSQL with PostgreSQL's own parser (pglast). Anything that this code does not know is a
problem.

Two notations call a function without looking like it: `(x).f` and `t.f` are `f(x)` and `f(t)` where no column has the
name, so that `('/etc/passwd'::text).pg_read_file` reads the file. So names after a dot are checked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.guards.sql_statement import QUERY, WRITES, Statement

_READING: Final = frozenset(
    """
A_ArrayExpr A_Const A_Expr A_Indices A_Indirection A_Star Alias BitString BoolExpr Boolean BooleanTest CTECycleClause
CTESearchClause CaseExpr CaseWhen CoalesceExpr CollateClause ColumnDef ColumnRef CommonTableExpr Float FuncCall
GroupingFunc GroupingSet Integer JoinExpr JsonAggConstructor JsonArgument JsonArrayAgg JsonArrayConstructor
JsonArrayQueryConstructor JsonBehavior JsonFormat JsonFuncExpr JsonIsPredicate JsonKeyValue JsonObjectAgg
JsonObjectConstructor JsonOutput JsonParseExpr JsonReturning JsonScalarExpr JsonSerializeExpr JsonTable
JsonTableColumn JsonTablePathSpec JsonValueExpr MinMaxExpr NamedArgExpr NullTest ParamRef RangeFunction RangeSubselect
RangeTableSample RangeVar ResTarget RowExpr SQLValueFunction SelectStmt SetToDefault SortBy String SubLink TypeCast
TypeName WindowDef WithClause
""".split()
)
_WRITING: Final = _READING | frozenset(
    "InsertStmt UpdateStmt DeleteStmt MergeStmt MergeWhenClause OnConflictClause InferClause MultiAssignRef "
    "IndexElem".split()
)
_PROBLEMS: Final = {
    "IntoClause": "makes a table (INTO)",
    "LockingClause": "locks rows (FOR UPDATE, FOR SHARE)",
    "CurrentOfExpr": "uses a cursor",
    "ReturningClause": "has RETURNING, whose rows no tool returns: leave it out",
}
# After a dot: the name of a column, or of a function that is called with what precedes it.
_CALLED: Final = re.compile(
    r"pg_|lo_|dblink|txid_|inet_(client|server)|has_\w*privilege|\w*_to_xml|set_config|current_setting|nextval|setval|"
    r"currval|lastval|ts_stat|ts_rewrite|crosstab|xpath|version$"
)
_FIELDS: Final = frozenset("key value ordinality element lexeme positions weights".split())
_SAMPLING: Final = frozenset({"bernoulli", "system"})


@dataclass(slots=True)
class _Found:
    schema: str
    tables: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    problems: dict[str, None] = field(default_factory=dict)
    scanned: dict[str, set[str]] = field(default_factory=dict)
    """Columns that a function in FROM declares, by its alias."""
    dotted: list[tuple[str, str]] = field(default_factory=list)
    """Names before and after a dot."""


def read_postgres(sql: str, schema: str) -> Statement:
    """Return the statement; names without a schema are looked up in `schema`. Raises ToolFailure INVALID_INPUT when it
    cannot be parsed."""
    from pglast import parse_sql
    from pglast.parser import ParseError

    try:
        parsed = parse_sql(sql)
    except ParseError as error:
        message = f"PostgreSQL cannot parse the statement: {str(error.args[0])[:200]}. Correct it and call again."
        raise refuse(ErrorKind.INVALID_INPUT, message) from None
    if len(parsed) != 1:
        return Statement("SEVERAL" if parsed else "NONE", problems=("must be one: send one statement a call",))
    raw = parsed[0]
    kind = type(raw.stmt).__name__.removesuffix("Stmt").upper()
    if kind != QUERY and kind not in WRITES:
        return Statement(kind, problems=(f"is {kind}, which no tool runs",))
    root: Any = raw.stmt
    found = _walked(root, schema, _WRITING if kind in WRITES else _READING)
    _check_dots(found)
    text = sql.encode()[raw.stmt_location :]
    return Statement(
        kind,
        (text[: raw.stmt_len] if raw.stmt_len else text).decode().strip(),
        tuple(sorted(found.tables)),
        tuple(sorted(found.functions)),
        tuple(found.problems),
        has_condition=kind not in ("UPDATE", "DELETE") or root.whereClause is not None,
    )


def _walked(root: Any, schema: str, allowed: frozenset[str]) -> _Found:
    """Yield each node with the names of the WITH queries visible to it; uses a stack, because expressions may be
    deep."""
    found = _Found(schema)
    stack: list[tuple[Any, frozenset[str]]] = [(root, frozenset())]
    while stack:
        node, queries = stack.pop()
        name = type(node).__name__
        if name not in allowed:
            found.problems[_PROBLEMS.get(name, f"has a part that is not allowed ({name})")] = None
            continue
        if name.endswith("Stmt") and node is not root and name != "SelectStmt":
            found.problems["writes within WITH: one statement may write once"] = None
        with_clause = getattr(node, "withClause", None)
        if with_clause is not None:
            queries = _scoped(with_clause, queries, stack)
        if name == "RangeVar":
            _range_var(node, queries, found)
        elif name in _SEEN:
            _SEEN[name](node, found)
        stack.extend((child, queries) for child in _children(node) if child is not with_clause)
    return found


def _scoped(with_clause: Any, outer: frozenset[str], stack: list[tuple[Any, frozenset[str]]]) -> frozenset[str]:
    """Return the names visible to the statement of a WITH; its queries are pushed on the stack with those visible to
    them."""
    names = [query.ctename for query in with_clause.ctes]
    for number, query in enumerate(with_clause.ctes):
        seen = names if with_clause.recursive else names[:number]
        stack.append((query, outer.union(seen)))
    return outer.union(names)


def _children(node: Any) -> Iterator[Any]:
    for attribute in node:
        values = [getattr(node, attribute)]
        while values:
            value = values.pop()
            if isinstance(value, list | tuple):
                values.extend(value)
            elif hasattr(value, "__slots__") and callable(value):
                yield value


def _range_var(node: Any, queries: frozenset[str], found: _Found) -> None:
    if node.catalogname:
        found.problems["names another database"] = None
    name = node.relname
    if node.schemaname is None and name in queries:
        return
    schema = node.schemaname or ("pg_catalog" if name.startswith("pg_") else found.schema)
    found.tables.add(f"{schema}.{name}")


def _func_call(node: Any, found: _Found) -> None:
    found.functions.add(_function_name(node.funcname))


def _function_name(parts: Any) -> str:
    names = [part.sval for part in parts]
    return names[-1] if names[:-1] in ([], ["pg_catalog"]) else ".".join(names)


def _range_function(node: Any, found: _Found) -> None:
    """Note a function in FROM: its alias stands for a single value, so that `alias.f` may be `f(value)`."""
    calls = [pair[0] for pair in node.functions]
    called = [call for call in calls if type(call).__name__ == "FuncCall"]
    if node.alias is None and len(called) < len(calls):
        found.problems["has an expression in FROM without an alias"] = None
    alias = node.alias.aliasname if node.alias is not None else ""
    names = {column.sval for column in (node.alias.colnames if node.alias is not None else None) or ()}
    names |= {column.colname for column in node.coldeflist or ()}
    for name in (alias, *(call.funcname[-1].sval for call in called)):
        found.scanned.setdefault(name, set()).update(names, {name})


def _column_ref(node: Any, found: _Found) -> None:
    names = [part.sval for part in node.fields if type(part).__name__ == "String"]
    if len(node.fields) > 1 and len(names) == len(node.fields):
        found.dotted.append((names[-2], names[-1]))


def _indirection(node: Any, found: _Found) -> None:
    for part in node.indirection:
        if type(part).__name__ == "String" and part.sval not in _FIELDS:
            found.functions.add(part.sval)


def _operator(node: Any, found: _Found) -> None:
    written = next(filter(None, (getattr(node, name, None) for name in ("name", "operName", "useOp"))), None)
    names = [part.sval for part in written or ()]
    if len(names) > 1 and names[0] != "pg_catalog":
        found.problems["names an operator of another schema"] = None


def _sample(node: Any, found: _Found) -> None:
    if _function_name(node.method) not in _SAMPLING:
        found.problems["samples by a method other than BERNOULLI and SYSTEM"] = None


_SEEN: Final = {
    "FuncCall": _func_call,
    "RangeFunction": _range_function,
    "ColumnRef": _column_ref,
    "A_Indirection": _indirection,
    "A_Expr": _operator,
    "SubLink": _operator,
    "SortBy": _operator,
    "RangeTableSample": _sample,
}


def _check_dots(found: _Found) -> None:
    for before, name in found.dotted:
        declared = found.scanned.get(before)
        is_field = declared is None or name in declared or name in _FIELDS
        if not is_field or _CALLED.match(name):
            found.functions.add(name)
