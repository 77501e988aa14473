"""Parses a statement of PostgreSQL with PostgreSQL's own parser (libpg_query, through pgparse). Anything that this code
does not know is a problem.

Two notations call a function without looking like it: `(x).f` and `t.f` are `f(x)` and `f(t)` where no column has the
name, so that `('/etc/passwd'::text).pg_read_file` reads the file. So names after a dot are checked as well: here, and
again with the database's own list of functions (tools/database/postgres_touched.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.statement import QUERY, WRITES, Statement

Node: TypeAlias = Mapping[str, Any]
"""The members of a node of the parse tree, as JSON: a node within is `{"ColumnRef": {…}}`, or bare where the grammar
allows one kind only (`_BARE`)."""

_READING: Final = frozenset(
    """
A_ArrayExpr A_Const A_Expr A_Indices A_Indirection A_Star Alias BitString BoolExpr Boolean BooleanTest CTECycleClause
CTESearchClause CaseExpr CaseWhen CoalesceExpr CollateClause ColumnDef ColumnRef CommonTableExpr Float FuncCall
GroupingFunc GroupingSet Integer JoinExpr JsonAggConstructor JsonArgument JsonArrayAgg JsonArrayConstructor
JsonArrayQueryConstructor JsonBehavior JsonFormat JsonFuncExpr JsonIsPredicate JsonKeyValue JsonObjectAgg
JsonObjectConstructor JsonOutput JsonParseExpr JsonReturning JsonScalarExpr JsonSerializeExpr JsonTable
JsonTableColumn JsonTablePathSpec JsonValueExpr List MinMaxExpr NamedArgExpr NullTest ParamRef RangeFunction
RangeSubselect RangeTableSample RangeVar ResTarget RowExpr SQLValueFunction SelectStmt SetToDefault SortBy String
SubLink TypeCast TypeName WindowDef WithClause
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
# Members whose node is bare, with its kind; of one kind of node where a member of this name is not bare elsewhere.
_BARE: Final = {
    "alias": "Alias",
    "join_using_alias": "Alias",
    "bsval": "BitString",
    "boolval": "Boolean",
    "fval": "Float",
    "ival": "Integer",
    "sval": "String",
    "collClause": "CollateClause",
    "constructor": "JsonAggConstructor",
    "context_item": "JsonValueExpr",
    "cycle_clause": "CTECycleClause",
    "format": "JsonFormat",
    "infer": "InferClause",
    "intoClause": "IntoClause",
    "larg": "SelectStmt",
    "rarg": "SelectStmt",
    "on_empty": "JsonBehavior",
    "on_error": "JsonBehavior",
    "onConflictClause": "OnConflictClause",
    "output": "JsonOutput",
    "over": "WindowDef",
    "pathspec": "JsonTablePathSpec",
    "relation": "RangeVar",
    "returning": "JsonReturning",
    "returningClause": "ReturningClause",
    "search_clause": "CTESearchClause",
    "typeName": "TypeName",
    "withClause": "WithClause",
    "JsonArgument.val": "JsonValueExpr",
    "JsonArrayAgg.arg": "JsonValueExpr",
    "JsonKeyValue.value": "JsonValueExpr",
    "JsonObjectAgg.arg": "JsonKeyValue",
    "JsonParseExpr.expr": "JsonValueExpr",
    "JsonSerializeExpr.expr": "JsonValueExpr",
}
_TARGETS: Final = frozenset({"InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt"})
_BRANCHES: Final = {"CMD_INSERT": "INSERT", "CMD_UPDATE": "UPDATE", "CMD_DELETE": "DELETE"}
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
    actions: set[str] = field(default_factory=set)
    problems: dict[str, None] = field(default_factory=dict)
    scanned: dict[str, set[str]] = field(default_factory=dict)
    """Columns that a function in FROM declares, by its alias."""
    dotted: list[tuple[str, str]] = field(default_factory=list)
    """Names before and after a dot."""


def read_postgres(sql: str, schema: str) -> Statement:
    """Return the statement; names without a schema are looked up in `schema`. Raises ToolFailure INVALID_INPUT when it
    cannot be parsed."""
    import pgparse

    try:
        parsed = pgparse.parse(sql)
    except pgparse.PGQueryError as error:
        message = f"PostgreSQL cannot parse the statement: {str(error.message)[:200]}. Correct it and call again."
        raise refuse(ErrorKind.INVALID_INPUT, message) from None
    except RecursionError:
        raise refuse(ErrorKind.INVALID_INPUT, "The statement is nested too deeply. Simplify it.") from None
    if len(parsed) != 1:
        return Statement("SEVERAL" if parsed else "NONE", problems=("must be one: send one statement a call",))
    raw = parsed[0]
    ((name, root),) = raw["stmt"].items()
    kind = name.removesuffix("Stmt").upper()
    if kind != QUERY and kind not in WRITES:
        return Statement(kind, problems=(f"is {kind}, which no tool runs",))
    found = walk_nodes(name, root, schema, _WRITING if kind in WRITES else _READING)
    _check_dots(found)
    start, length = raw.get("stmt_location", 0), raw.get("stmt_len", 0)
    text = sql.encode()[start:]
    return Statement(
        kind,
        (text[:length] if length else text).decode().strip(),
        tuple(sorted(found.tables)),
        tuple(sorted(found.functions)),
        tuple(sorted(found.actions)),
        tuple(found.problems),
        has_condition=kind not in ("UPDATE", "DELETE") or "whereClause" in root,
        dotted=tuple(sorted({name for _, name in found.dotted})),
    )


def walk_nodes(root_name: str, root: Node, schema: str, allowed: frozenset[str]) -> _Found:
    """Read each node with the names of the WITH queries visible to it; uses a stack, because expressions may be
    deep."""
    found = _Found(schema)
    rows = root.get("selectStmt", {}).get("SelectStmt")
    stack: list[tuple[str, Node, frozenset[str]]] = [(root_name, root, frozenset())]
    while stack:
        name, node, queries = stack.pop()
        if name not in allowed:
            found.problems[_PROBLEMS.get(name, f"has a part that is not allowed ({name})")] = None
            continue
        if name.endswith("Stmt"):
            # The rows of INSERT … VALUES are read from nowhere.
            is_query = name == "SelectStmt" and not ("valuesLists" in node and node is rows)
            _statement(name, node, found, is_root=node is root, is_query=is_query)
        with_clause = node.get("withClause")
        if with_clause is not None:
            queries = push_with_queries(with_clause, queries, stack)
        target = node.get("relation") if name in _TARGETS else None
        if target is not None:
            # The target of a write is never a WITH query, whatever those are called.
            _range_var(target, frozenset(), found)
        if name == "RangeVar":
            _range_var(node, queries, found)
        elif name in _SEEN:
            _SEEN[name](node, found)
        stack.extend(
            (child_name, child, queries)
            for child_name, child in _children(name, node)
            if child is not with_clause and child is not target
        )
    return found


def _statement(name: str, node: Node, found: _Found, *, is_root: bool, is_query: bool) -> None:
    kind = name.removesuffix("Stmt").upper()
    if kind != QUERY and not is_root:
        found.problems["writes within WITH: one statement may write once"] = None
    if "returningList" in node:
        found.problems[_PROBLEMS["ReturningClause"]] = None
    if kind == "MERGE":
        found.actions.add(QUERY)
        branches = (each["MergeWhenClause"].get("commandType") for each in node.get("mergeWhenClauses", ()))
        found.actions.update(_BRANCHES[branch] for branch in branches if branch in _BRANCHES)
    elif kind != QUERY:
        found.actions.add(kind)
        if node.get("onConflictClause", {}).get("action") == "ONCONFLICT_UPDATE":
            found.actions.add("UPDATE")
        if node.get("fromClause") or node.get("usingClause"):
            found.actions.add(QUERY)
    elif is_query:
        found.actions.add(QUERY)


def push_with_queries(
    with_clause: Node, outer: frozenset[str], stack: list[tuple[str, Node, frozenset[str]]]
) -> frozenset[str]:
    """Return the names visible to the statement of a WITH; its queries are pushed on the stack with those visible to
    them."""
    ctes = [each["CommonTableExpr"] for each in with_clause["ctes"]]
    names = [query["ctename"] for query in ctes]
    for number, query in enumerate(ctes):
        seen = names if with_clause.get("recursive") else names[:number]
        stack.append(("CommonTableExpr", query, outer.union(seen)))
    return outer.union(names)


def _children(name: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the nodes within, with their kinds; one whose kind is not known is named after its member."""
    for member, held in node.items():
        values = [held]
        while values:
            value = values.pop()
            if isinstance(value, list):
                values.extend(value)
            elif isinstance(value, dict) and value:
                only = next(iter(value))
                if len(value) == 1 and only[0].isupper():
                    yield only, value[only]
                else:
                    yield _BARE.get(f"{name}.{member}") or _BARE.get(member, member), value


def _range_var(node: Node, queries: frozenset[str], found: _Found) -> None:
    if node.get("catalogname"):
        found.problems["names another database"] = None
    name, schema = node["relname"], node.get("schemaname")
    if schema is None and name in queries:
        return
    schema = schema or ("pg_catalog" if name.startswith("pg_") else found.schema)
    found.tables.add(f"{schema}.{name}")


def _texts(parts: Any) -> list[str]:
    """Return a name of several parts."""
    return [part["String"]["sval"] for part in parts or () if "String" in part]


def _func_call(node: Node, found: _Found) -> None:
    found.functions.add(_function_name(node["funcname"]))


def _function_name(parts: Any) -> str:
    names = _texts(parts)
    return names[-1] if names[:-1] in ([], ["pg_catalog"]) else ".".join(names)


def _range_function(node: Node, found: _Found) -> None:
    """Note a function in FROM: its alias stands for a single value, so that `alias.f` may be `f(value)`."""
    # Each is a list of the call and its column definitions.
    calls = [each["List"]["items"][0] for each in node["functions"]]
    called = [call["FuncCall"] for call in calls if "FuncCall" in call]
    given = node.get("alias")
    if given is None and len(called) < len(calls):
        found.problems["has an expression in FROM without an alias"] = None
    alias = given["aliasname"] if given is not None else ""
    names = set(_texts(given.get("colnames"))) if given is not None else set()
    names |= {column["ColumnDef"]["colname"] for column in node.get("coldeflist", ())}
    for name in (alias, *(_texts(call["funcname"])[-1] for call in called)):
        found.scanned.setdefault(name, set()).update(names, {name})


def _column_ref(node: Node, found: _Found) -> None:
    names = _texts(node["fields"])
    if len(node["fields"]) > 1 and len(names) == len(node["fields"]):
        found.dotted.append((names[-2], names[-1]))


def _indirection(node: Node, found: _Found) -> None:
    for name in _texts(node["indirection"]):
        if name not in _FIELDS:
            found.functions.add(name)


def _operator(node: Node, found: _Found) -> None:
    written = next(filter(None, (node.get(name) for name in ("name", "operName", "useOp"))), None)
    names = _texts(written)
    if len(names) > 1 and names[0] != "pg_catalog":
        found.problems["names an operator of another schema"] = None


def _sample(node: Node, found: _Found) -> None:
    if _function_name(node["method"]) not in _SAMPLING:
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
