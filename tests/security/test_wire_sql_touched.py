"""A call is decided by what the database itself says that its SQL touches: over the wire, in both kinds of database."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.hub import RunningHub, running_hub
from toolhub.v1 import error_pb2

GRANTS = """
extends: none
grants: [{principals: ["*"], capabilities: [read:db, write:db, danger:destructive]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
rules:
  - {id: may-write, effect: ALLOW, tools: [core/db.execute]}
"""
DENIED = (
    GRANTS
    + """
  - id: no-hidden
    effect: DENY
    tools: [core/db.*]
    when: sql.tables.exists(t, t.endsWith("hidden"))
"""
)
TABLES = """
CREATE TABLE ok (a integer PRIMARY KEY, b text);
CREATE TABLE hidden (a integer PRIMARY KEY, b text);
CREATE VIEW seen AS SELECT a, b FROM hidden;
CREATE TABLE child (a integer PRIMARY KEY, ok integer REFERENCES ok (a) ON DELETE CASCADE);
INSERT INTO ok VALUES (1, 'one'); INSERT INTO hidden VALUES (1, 's3cr3t'); INSERT INTO child VALUES (1, 1);
"""
POSTGRES = (
    TABLES
    + """
CREATE FUNCTION f(ok) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN 'called'; END $$;
CREATE FUNCTION g(anyelement) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'called' $$;
CREATE TABLE noted (a integer); CREATE TABLE later (a integer); CREATE TABLE ruled (a integer);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO hidden VALUES (7, 'x'); RETURN NULL; END $$;
CREATE TRIGGER t AFTER INSERT ON noted FOR EACH ROW EXECUTE FUNCTION note();
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
CREATE RULE r AS ON INSERT TO ruled DO ALSO INSERT INTO hidden VALUES (8, 'x');
CREATE TABLE parent (a integer, at date) PARTITION BY RANGE (at);
CREATE TABLE parent_hidden PARTITION OF parent FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE owned (a integer); ALTER TABLE owned ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON owned USING (a IN (SELECT a FROM hidden));
"""
)
SQLITE = (
    TABLES
    + """
CREATE TABLE noted (a integer);
CREATE TRIGGER t AFTER INSERT ON noted BEGIN INSERT INTO hidden VALUES (7, 'x'); END;
CREATE VIRTUAL TABLE docs USING fts5(title); INSERT INTO docs VALUES ('rising seas');
"""
)


@dataclass(frozen=True)
class Databases:
    """The same tables in PostgreSQL and in a SQLite file."""

    admin: str
    writer: str
    file: Path

    def entries(self, **more: Any) -> list[dict[str, Any]]:
        tables = more.get("tables", ())
        schemas = {**more, "tables": [f"public.{table}" for table in tables]}
        return [
            {"name": "pg", "url": self.writer, "read_only": False, **schemas},
            {"name": "lite", "file": str(self.file), "read_only": False, **more, "tables": list(tables)},
        ]

    def rows(self, table: str) -> list[list[Any]]:
        """Those of PostgreSQL and of SQLite."""
        asked = f"SELECT * FROM {table} ORDER BY 1"
        with psycopg.connect(self.admin) as server, closing(sqlite3.connect(self.file)) as file:
            return [server.execute(asked.encode()).fetchall(), file.execute(asked).fetchall()]

    def is_untouched(self) -> bool:
        return all(self.rows("hidden")[at] == [(1, "s3cr3t")] for at in (0, 1))


@pytest.fixture
def databases(postgres_url: str, tmp_path: Path) -> Iterator[Databases]:
    url, file = urlsplit(postgres_url), tmp_path / "shop.db"
    role = f"toucher_{url.path.strip('/')}"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SQLITE)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(POSTGRES.encode())
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
    writer = url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl()
    yield Databases(postgres_url, writer, file)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@asynccontextmanager
async def hub_of(home: Path, entries: Sequence[Mapping[str, Any]], policy: str) -> AsyncIterator[RunningHub]:
    async with running_hub(home, policy=policy, settings={"databases": list(entries)}) as hub:
        yield hub


async def sent(hub: RunningHub, connection: str, query: str, params: Sequence[Any] = ()) -> Any:
    """The result of the statement, by the tool that runs statements of its kind."""
    is_read = query.lstrip().split(" ")[0] in ("SELECT", "TABLE", "VALUES") or query.endswith("-- reads")
    args = {"connection": connection, "query": query.removesuffix("-- reads"), "params": list(params)}
    return await hub.invoke("core/db.query" if is_read else "core/db.execute", args, purpose="test")


def refused(result: Any, *words: str) -> None:
    assert result.error.kind in (error_pb2.ERROR_KIND_POLICY_DENIED, error_pb2.ERROR_KIND_INVALID_INPUT), result
    for word in words:
        assert word in result.error.message


TARGETS = [
    "WITH hidden AS (SELECT 1) UPDATE hidden SET b = 'x' WHERE true",
    "WITH hidden AS (SELECT 1 AS a, 'x' AS b) INSERT INTO hidden (a, b) SELECT 9, 'x' FROM hidden",
    "WITH hidden AS (SELECT 1) DELETE FROM hidden",
    "WITH ok AS (SELECT 1), hidden AS (SELECT 2) DELETE FROM hidden WHERE a > 0",
    "WITH RECURSIVE hidden(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM hidden WHERE a < 3) DELETE FROM hidden",
]
MERGE = "WITH hidden AS (SELECT 1 AS a) MERGE INTO hidden h USING ok ON ok.a = h.a WHEN MATCHED THEN DELETE"


@pytest.mark.promise("databases.decided-by-the-database")
@pytest.mark.parametrize("policy", [GRANTS, DENIED], ids=["listed tables", "a rule that denies"])
async def test_the_target_of_a_write_is_never_a_with_query(tmp_path: Path, databases: Databases, policy: str) -> None:
    entries = databases.entries(tables=["ok"] if policy is GRANTS else [])
    async with hub_of(tmp_path, entries, policy) as hub:
        for query in TARGETS:
            for connection in ("pg", "lite"):
                refused(await sent(hub, connection, query))
        refused(await sent(hub, "pg", MERGE))
    assert databases.is_untouched()


UNCLEAR = "\ufeff\v\f\u00a0\u2028\u3000\u200b\u202e\u0085\u180e\u3164\ufe0f"


async def test_a_character_that_two_readers_see_differently_is_refused(tmp_path: Path, databases: Databases) -> None:
    async with hub_of(tmp_path, databases.entries(tables=["ok"]), DENIED) as hub:
        for connection, mark in (("pg", "$1"), ("lite", "?")):
            for space in UNCLEAR:
                for query in (f"SELECT * FROM {space}hidden", f"SELECT b{space}FROM ok", f'SELECT b FROM "ok{space}"'):
                    refused(await sent(hub, connection, query), f"U+{ord(space):04X}", "params")
                refused(await sent(hub, connection, f"SELECT 1 -- it's{space}a note\n, '{space}'"), "Leave it out")
                assert (await sent(hub, connection, f"SELECT b FROM ok WHERE b <> {mark}", [space])).ok
            refused(await sent(hub, connection, "SELECT 1 -- \rFROM hidden"), "U+000D")


PLAIN = [
    "SELECT '小明 – «é» 👩\u200d💻 می\u200cخواهم\u3000'",
    'SELECT b AS "größe (€)" FROM ok -- → 1',
    "SELECT b AS größe FROM ok /* — “so” */",
]


async def test_text_of_any_script_may_stand_in_a_plain_literal(tmp_path: Path, databases: Databases) -> None:
    async with hub_of(tmp_path, databases.entries(), GRANTS) as hub:
        for connection in ("pg", "lite"):
            for query in PLAIN:
                assert (await sent(hub, connection, query)).ok, query


DOTTED = [
    "SELECT o.f FROM ok o",
    "SELECT ok.f FROM ok",
    "SELECT public.ok.f FROM ok",
    "SELECT s.g FROM (SELECT a FROM ok) AS s",
    "SELECT a FROM ok o ORDER BY o.g",
    "WITH c AS (SELECT a FROM ok) SELECT c.g FROM c -- reads",
    "UPDATE ok SET b = ok.f",
]


async def test_a_function_that_is_called_like_a_column_is_refused_unless_it_is_listed(
    tmp_path: Path, databases: Databases
) -> None:
    listed = {**databases.entries()[0], "name": "listed", "functions": ["f", "g"]}
    async with hub_of(tmp_path, [*databases.entries(), listed], GRANTS) as hub:
        for query in DOTTED:
            refused(await sent(hub, "pg", query), "`functions`")
            assert (await sent(hub, "listed", query)).ok, query
        assert (await sent(hub, "pg", "SELECT o.a, o.b FROM ok o")).ok


ACTIONS = (
    GRANTS
    + """
  - {id: no-delete, effect: DENY, tools: [core/db.execute], when: '"DELETE" in sql.actions'}
"""
)


DELETING = [
    ("pg", "MERGE INTO ok USING (SELECT 1 AS a) s ON ok.a = s.a WHEN MATCHED THEN DELETE"),
    (
        "pg",
        "MERGE INTO ok USING child c ON c.ok = ok.a WHEN MATCHED AND false THEN DO NOTHING WHEN MATCHED THEN DELETE",
    ),
    ("lite", "INSERT OR REPLACE INTO ok VALUES (1, 'x')"),
    ("lite", "WITH c AS (SELECT 1) DELETE FROM ok"),
]


async def test_conditions_see_each_action_of_a_statement(tmp_path: Path, databases: Databases) -> None:
    async with hub_of(tmp_path, databases.entries(), ACTIONS) as hub:
        for connection, query in DELETING:
            result = await sent(hub, connection, query)
            refused(result)
            assert result.error.details["rule_id"] == "no-delete"
        merged = "MERGE INTO ok USING child ON ok.a = child.ok WHEN MATCHED THEN UPDATE SET b = 'two'"
        for connection, query in (("pg", merged), ("lite", "UPDATE ok SET b = 'two' WHERE a = 1")):
            assert (await sent(hub, connection, query)).ok
    assert databases.rows("ok") == [[(1, "two")], [(1, "two")]]


ADDING = [
    ("pg", "SELECT * FROM seen"),
    ("lite", "SELECT * FROM seen"),
    ("lite", "SELECT count(*) FROM seen"),
    ("pg", "SELECT 1 FROM seen WHERE false"),
    ("pg", "SELECT * FROM parent"),
    ("pg", "SELECT * FROM owned"),
    ("pg", "UPDATE seen SET b = 'x'"),
    ("pg", "INSERT INTO ruled VALUES (1)"),
    ("pg", "INSERT INTO noted VALUES (1)"),
    ("pg", "INSERT INTO later VALUES (1)"),
    ("pg", "INSERT INTO parent VALUES (1, '2026-02-03')"),
    ("lite", "INSERT INTO noted VALUES (1)"),
]


@pytest.mark.promise("databases.decided-by-the-database")
async def test_a_rule_sees_what_views_rules_triggers_policies_and_partitions_add(
    tmp_path: Path, databases: Databases
) -> None:
    async with hub_of(tmp_path, databases.entries(), DENIED) as hub:
        for connection, query in ADDING:
            refused(await sent(hub, connection, query), "The database says", "hidden")
    assert databases.is_untouched()
    assert databases.rows("noted") == [[], []]
    with psycopg.connect(databases.admin) as admin:
        written = "SELECT a FROM ruled UNION SELECT a FROM later UNION SELECT a FROM parent"
        assert admin.execute(written).fetchall() == []


CASCADES = (
    GRANTS
    + """
  - {id: no-child, effect: DENY, tools: [core/db.execute], when: 'sql.tables.exists(t, t.endsWith("child"))'}
"""
)


async def test_a_rule_sees_the_rows_that_a_foreign_key_deletes(tmp_path: Path, databases: Databases) -> None:
    async with hub_of(tmp_path, databases.entries(), CASCADES) as hub:
        for connection in ("pg", "lite"):
            refused(await sent(hub, connection, "DELETE FROM ok WHERE a = 1"), "child")
    assert databases.rows("child") == [[(1, 1)], [(1, 1)]]
    assert databases.rows("ok") == [[(1, "one")], [(1, "one")]]


async def test_what_a_listed_view_partition_or_trigger_leads_to_may_be_used(
    tmp_path: Path, databases: Databases
) -> None:
    entries = databases.entries(tables=["seen", "parent", "ruled", "noted", "owned"])
    async with hub_of(tmp_path, entries[:1], GRANTS) as hub:
        for query in (
            "SELECT * FROM seen",
            "SELECT * FROM parent",
            "SELECT * FROM owned",
            "UPDATE seen SET b = 'y'",
            "INSERT INTO ruled VALUES (1)",
            "INSERT INTO noted VALUES (1)",
        ):
            assert (result := await sent(hub, "pg", query)).ok, result.error
        named = ("SELECT * FROM hidden", "SELECT * FROM seen, hidden", "WITH hidden AS (TABLE seen) DELETE FROM hidden")
        for query in named:
            refused(await sent(hub, "pg", query), "public.hidden")


PLANNED = """
extends: none
grants: [{principals: ["*"], capabilities: [read:db, write:db, danger:destructive]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
rules:
  - {id: plan, effect: REQUIRE_PLAN, tools: [core/db.execute]}
  - id: ask-hidden
    effect: REQUIRE_APPROVAL
    tools: [core/db.query]
    when: sql.tables.exists(t, t.endsWith("hidden"))
"""


async def test_a_plan_that_was_shown_counts_and_an_approval_that_nobody_was_asked_for_is_missing(
    tmp_path: Path, databases: Databases
) -> None:
    async with hub_of(tmp_path, databases.entries(), PLANNED) as hub:
        for connection in ("pg", "lite"):
            args = {"connection": connection, "query": "INSERT INTO noted VALUES (1)"}
            plan = await hub.plan("core/db.execute", args)
            assert (await hub.invoke("core/db.execute", args, plan_digest=plan.plan_digest)).ok
            refused(await sent(hub, connection, "SELECT * FROM seen"), "ask-hidden", "wants an approval", "hidden")
    assert databases.rows("noted") == [[(1,)], [(1,)]]


async def test_with_queries_json_and_full_text_search_work_with_a_list_of_tables(
    tmp_path: Path, databases: Databases
) -> None:
    async with hub_of(tmp_path, databases.entries(tables=["ok", "docs"]), GRANTS) as hub:
        for query, rows in {
            "WITH c AS (SELECT 1 AS x) SELECT count(*) FROM c -- reads": [[1]],
            "WITH c AS (SELECT a FROM ok), d AS (SELECT 1 FROM c) SELECT count(*) FROM d -- reads": [[1]],
            "SELECT count(*) FROM (SELECT 1 UNION ALL SELECT 2)": [[2]],
            "SELECT count(*) FROM ok": [[1]],
            "SELECT value FROM json_each('[3, 4]') ORDER BY 1": [[3], [4]],
            "SELECT count(*) FROM json_tree('[3]'), ok": [[2]],
            "SELECT title FROM docs WHERE docs MATCH 'seas'": [["rising seas"]],
        }.items():
            args = {"connection": "lite", "query": query.removesuffix("-- reads")}
            assert (await hub.value("core/db.query", args))["rows"] == rows, query
        hidden = "WITH hidden AS (SELECT 1 AS x) SELECT count(*) FROM main.hidden -- reads"
        refused(await sent(hub, "lite", hidden), "hidden")


COUNTED = [
    "WITH c AS (SELECT 1 AS a) UPDATE ok SET b = 'x' WHERE a IN (SELECT a FROM c)",
    "WITH c AS (SELECT 5 AS a) INSERT INTO ok (a) SELECT a FROM c",
    "WITH c AS (SELECT 5 AS a) DELETE FROM ok WHERE a IN (SELECT a FROM c)",
    "INSERT INTO noted VALUES (6)",
]


async def test_a_write_reports_how_many_rows_it_changed_itself(tmp_path: Path, databases: Databases) -> None:
    async with hub_of(tmp_path, databases.entries(), GRANTS) as hub:
        for query in COUNTED:
            for connection in ("pg", "lite"):
                args = {"connection": connection, "query": query}
                assert await hub.value("core/db.execute", args, purpose="test") == {"rowsAffected": 1}, query
        two = {"connection": "lite", "query": "INSERT INTO docs (title) VALUES ('a'), ('b')"}
        assert (await hub.value("core/db.execute", two, purpose="test")) == {"rowsAffected": 2}


TOO_MUCH = {
    "SUPERUSER": "is a superuser",
    "BYPASSRLS": "BYPASSRLS",
    "IN ROLE pg_write_all_data": "pg_write_all_data",
    "IN ROLE pg_execute_server_program": "pg_execute_server_program",
}


async def test_a_role_with_more_rights_than_terms_can_hold_back_is_refused_for_writing(
    tmp_path: Path, databases: Databases
) -> None:
    url, role = urlsplit(databases.writer), f"mighty_{urlsplit(databases.admin).path.strip('/')}"
    mighty = url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl()
    entry = {"name": "pg", "url": mighty, "read_only": False}
    async with hub_of(tmp_path, [entry], GRANTS) as hub:
        for right, words in TOO_MUCH.items():
            with psycopg.connect(databases.admin, autocommit=True) as admin:
                admin.execute(f"CREATE ROLE {role} LOGIN {right}".encode())
                try:
                    for query in ("UPDATE ok SET b = 'x'", "SELECT 1"):
                        result = await sent(hub, "pg", query)
                        assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
                        assert words in result.error.message
                        assert "give it one that may only write" in result.error.message
                finally:
                    admin.execute(f"DROP ROLE {role}".encode())
    assert databases.rows("ok")[0] == [(1, "one")]
