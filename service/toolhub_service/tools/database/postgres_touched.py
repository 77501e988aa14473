"""Asks PostgreSQL itself what a statement touches, in the transaction in which it will run.

Whoever parses, rewrites and plans a statement locks each relation that it names, or that a view, a rule, a row security
policy, a partition or an inlined function adds, and keeps the locks until the end of the transaction. So once a
statement is declared as a cursor or explained, and before it runs, `pg_lock_status()` lists its relations and says
which of them it may change: whatever a parser made of its text. After a write it also lists what triggers, foreign keys
and functions have touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from toolhub_service.domain.statement import QUERY, Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import (
    describe_refused_function,
    describe_refused_table,
    may_call,
    may_use_table,
    refuse_statement,
)
from toolhub_service.tools.database.postgres_catalog import fetch_rows

if TYPE_CHECKING:
    from psycopg import AsyncConnection

# The function, not the view pg_locks: it locks nothing itself.
_LOCKS: Final = b"""
SELECT relation::bigint, bool_or(mode <> 'AccessShareLock') FROM pg_catalog.pg_lock_status()
WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'relation' GROUP BY 1"""
_NAMES: Final = b"""
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY($1::bigint[]::oid[]) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
# What a view or a rule reads and writes, what a row security policy reads, and the children and partitions of a table.
_EDGES: Final = b"""
SELECT w.ev_class::bigint, d.refobjid::bigint FROM pg_catalog.pg_rewrite w JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = w.oid
    AND d.refclassid = 'pg_catalog.pg_class'::regclass WHERE w.ev_class = ANY($1::bigint[]::oid[])
UNION SELECT y.polrelid::bigint, d.refobjid::bigint FROM pg_catalog.pg_policy y JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_policy'::regclass AND d.objid = y.oid
    AND d.refclassid = 'pg_catalog.pg_class'::regclass WHERE y.polrelid = ANY($1::bigint[]::oid[])
UNION SELECT inhparent::bigint, inhrelid::bigint FROM pg_catalog.pg_inherits
    WHERE inhparent = ANY($1::bigint[]::oid[])"""
# Functions that `row.f` calls where the row has no column f: those whose first argument may be a row.
_OF_ROWS: Final = b"""
SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_type t ON t.oid = p.proargtypes[0] LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
WHERE p.proname = ANY($1::text[]) AND n.nspname IN ($2, 'pg_catalog')
    AND p.pronargs - p.pronargdefaults - (p.provariadic <> 0)::int <= 1
    AND (t.typtype = 'c' OR b.typtype = 'c' OR t.typtype = 'p' OR EXISTS (SELECT FROM pg_catalog.pg_cast k
        JOIN pg_catalog.pg_type s ON s.oid = k.castsource WHERE k.casttarget = t.oid AND s.typtype = 'c'))
    AND NOT (n.nspname = 'pg_catalog' AND p.proname = ANY($3::text[]))"""
# Of those names the ones that are a column of each table that the statement touches: they call nothing there.
_COLUMNS: Final = b"""
SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY($1::bigint[]::oid[]) AND a.attnum > 0
    AND NOT a.attisdropped AND a.attname = ANY($2::text[]) GROUP BY 1 HAVING count(*) = cardinality($1::bigint[])"""
_CHANGED: Final = b"""
SELECT o::bigint, pg_catalog.pg_stat_get_xact_tuples_inserted(o) > 0, pg_catalog.pg_stat_get_xact_tuples_updated(o) > 0,
    pg_catalog.pg_stat_get_xact_tuples_deleted(o) > 0 FROM unnest($1::bigint[]::oid[]) AS o"""
_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
_CATALOGS: Final = ("pg_catalog", "information_schema", "pg_toast")


class Relation(msgspec.Struct, frozen=True):
    """One that a statement touches."""

    oid: int
    schema: str
    name: str
    kind: str
    """As in pg_class: r, p, v, m or f."""
    is_locked_for_more: bool
    """Whether it is locked for more than reading."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_catalog(self) -> bool:
        return self.schema in _CATALOGS


async def resolve_statement(
    connection: AsyncConnection[Any], parsed: Statement, terms: DatabaseTerms, plan: Sequence[Any] = ()
) -> tuple[Statement, frozenset[int]]:
    """Return the statement as PostgreSQL reads it, and the numbers of its relations; `plan`: of a write, as EXPLAIN
    says it.

    Raises ToolFailure POLICY_DENIED where the connection's terms do not allow it, or the parser has found a table that
    PostgreSQL has not.
    """
    locks = dict(await fetch_rows(connection, _LOCKS))
    relations = await _relations(connection, locks)
    _check_agreement(relations, parsed, terms)
    await _check_dotted(connection, relations, parsed, terms)
    edges = await fetch_rows(connection, _EDGES, sorted(locks))
    if problem := _why_not_listed(relations, edges, parsed, terms):
        raise refuse_statement(problem, parsed, terms)
    tables = {each.full_name for each in relations if not each.is_catalog or each.full_name in parsed.tables}
    actions = {*parsed.actions, *_operations(plan)}
    if parsed.kind == QUERY or any(not each.is_locked_for_more for each in relations):
        actions.add(QUERY)
    read = replace(parsed, tables=tuple(sorted(tables)), actions=tuple(sorted(actions)))
    return read, frozenset(locks)


async def add_side_effects(connection: AsyncConnection[Any], read: Statement, before: frozenset[int]) -> Statement:
    """Return the statement, which has run and is not committed, with what triggers, foreign keys, rules and functions
    have touched besides; `before`: as `resolve_statement` returned it."""
    locks = {oid: more for oid, more in await fetch_rows(connection, _LOCKS) if oid not in before}
    added = [each for each in await _relations(connection, locks) if not each.is_catalog]
    if not added:
        return read
    actions = set(read.actions)
    for _, *changes in await fetch_rows(connection, _CHANGED, [each.oid for each in added]):
        actions.update(action for action, has_happened in zip(_CHANGES, changes, strict=True) if has_happened)
    if any(not each.is_locked_for_more for each in added):
        actions.add(QUERY)
    tables = {*read.tables, *(each.full_name for each in added)}
    return replace(read, tables=tuple(sorted(tables)), actions=tuple(sorted(actions)))


async def _relations(connection: AsyncConnection[Any], locks: Mapping[int, bool]) -> list[Relation]:
    named = await fetch_rows(connection, _NAMES, sorted(locks)) if locks else []
    return [Relation(oid, schema, name, kind, locks[oid]) for oid, schema, name, kind in named]


def _check_agreement(relations: Sequence[Relation], parsed: Statement, terms: DatabaseTerms) -> None:
    if missing := sorted(set(parsed.tables) - {each.full_name for each in relations}):
        problem = f"PostgreSQL finds no table {missing[0]} in the statement. Write its name with its schema."
        raise refuse_statement(problem, parsed, terms)


def _why_not_listed(
    relations: Sequence[Relation], edges: Sequence[tuple[int, int]], parsed: Statement, terms: DatabaseTerms
) -> str:
    """Return why a relation may not be used; empty: all may. One that the statement does not name may be used where a
    listed one leads to it, and be changed where a changed one does."""
    allowed = {each.oid for each in relations if may_use_table(each.full_name, terms)}
    changed = {each.oid for each in relations if each.is_locked_for_more}
    has_view = any(each.kind == "v" for each in relations if each.oid in allowed)
    reached = _reachable(allowed, edges)
    reached_by_change = _reachable(allowed & changed, edges)
    for each in relations:
        if each.oid in allowed or each.oid in (reached_by_change if each.is_locked_for_more else reached):
            continue
        # Of what a view reads in the catalog PostgreSQL keeps no list.
        if each.is_catalog and has_view and not each.is_locked_for_more and each.full_name not in parsed.tables:
            continue
        return f"PostgreSQL says that the statement touches {each.full_name}. {describe_refused_table(each.full_name)}"
    return ""


def _reachable(start: set[int], edges: Sequence[tuple[int, int]]) -> set[int]:
    reached = set(start)
    while added := {target for source, target in edges if source in reached} - reached:
        reached |= added
    return reached


async def _check_dotted(
    connection: AsyncConnection[Any], relations: Sequence[Relation], parsed: Statement, terms: DatabaseTerms
) -> None:
    suspects = [name for name in parsed.dotted if name not in terms.functions]
    if not suspects:
        return
    built_in = [name for name in suspects if may_call(name, terms)]
    called = {name for (name,) in await fetch_rows(connection, _OF_ROWS, suspects, terms.schema, built_in)}
    if called and relations:
        tables = [each.oid for each in relations if each.full_name in parsed.tables]
        called -= {name for (name,) in await fetch_rows(connection, _COLUMNS, tables, sorted(called))}
    if called:
        name = min(called)
        message = (
            f"{name} after a dot may be a column, or the function {name} of the database. "
            f"{describe_refused_function(name, terms)} If a column is meant, select it without the dot."
        )
        raise refuse_statement(message, parsed, terms)


def _operations(plan: Sequence[Any]) -> Iterator[str]:
    """Yield what a plan does to rows; what a MERGE does is in its branches, which the parser has read."""
    nodes = [each["Plan"] for each in plan if "Plan" in each]
    while nodes:
        node = nodes.pop()
        operation = str(node.get("Operation", "")).upper()
        if operation in _CHANGES:
            yield operation
        if node.get("Conflict Resolution") == "UPDATE":
            yield "UPDATE"
        nodes.extend(node.get("Plans", ()))
