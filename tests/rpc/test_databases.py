"""core/db.* through a whole hub, on SQLite files and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.fakes.planned_calls import a_call
from tests.hub import RunningHub, request, running_hub, settings_of
from toolhub.v1 import artifact_service_pb2, error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.doctor.remote import database_checks
from toolhub_service.app.offline import configured_tools
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.explain import explain

POLICY = """
extends: none
grants:
  - principals: ["*"]
    capabilities: [read:db, write:db, danger:destructive]
roles:
  - principals: [local]
    roles: [agent, operator, approver, auditor]
"""
SCHEMA = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, secret TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id), total NUMERIC,
    note TEXT DEFAULT 'x');
INSERT INTO users VALUES (1, 'Ada', 's3'), (2, '小明', NULL);
INSERT INTO orders VALUES (1, 1, 10, 'a'), (2, 1, 20.5, NULL), (3, 2, 9007199254740993, x'00ff');
"""


def sqlite_file(folder: Path, script: str = SCHEMA) -> Path:
    file = folder / "shop.db"
    connection = sqlite3.connect(file)
    connection.executescript(script)
    connection.close()
    return file


@asynccontextmanager
async def db_hub(home: Path, *databases: Mapping[str, Any], policy: str = POLICY) -> AsyncIterator[RunningHub]:
    async with running_hub(home, policy=policy, settings={"databases": list(databases)}) as hub:
        yield hub


async def whole(hub: RunningHub, result: Any) -> bytes:
    (ref,) = result.artifacts
    stub = ArtifactServiceStub(hub.channel)
    asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=ref.artifact_id)
    return b"".join([answer.chunk async for answer in stub.ReadArtifact(asked)])


PG_SCHEMA = """
CREATE TABLE users (id bigint PRIMARY KEY, name text NOT NULL, secret text);
COMMENT ON TABLE users IS 'Who buys.';
CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint REFERENCES users, total numeric(20, 4), placed timestamptz);
INSERT INTO users VALUES (1, 'Ada', 's3'), (2, '小明', NULL);
INSERT INTO orders VALUES (1, 1, 10, '2026-01-02 03:04:05.678901+00'), (2, 1, 12345678901234.5678, NULL);
CREATE SCHEMA hidden; CREATE TABLE hidden.salaries (name text);
"""


@dataclass(frozen=True)
class DatabaseHarness:
    """A database, and the roles that a connection may have."""

    admin: str
    reader: str
    writer: str

    def entry(self, name: str = "shop", **more: Any) -> dict[str, Any]:
        return {"name": name, "url": self.reader, **more}

    def rows(self, sql: str) -> list[Any]:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()


@pytest.fixture
def harness(postgres_url: str) -> Iterator[DatabaseHarness]:
    database = urlsplit(postgres_url).path.strip("/")
    reader, writer = f"reader_{database}", f"writer_{database}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(PG_SCHEMA)
        for role, rights in ((reader, "SELECT"), (writer, "SELECT, INSERT, UPDATE, DELETE")):
            admin.execute(f"CREATE ROLE {role} LOGIN".encode())
            admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {role}".encode())

    def as_role(role: str) -> str:
        url = urlsplit(postgres_url)
        return url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl()

    yield DatabaseHarness(postgres_url, as_role(reader), as_role(writer))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {reader}, {writer}; DROP ROLE {reader}, {writer}".encode())


@pytest.mark.promise("databases.exact-values")
async def test_sqlite_is_described_and_queried_with_exact_values(tmp_path: Path) -> None:
    harness = {"name": "shop", "file": str(sqlite_file(tmp_path)), "description": "A small shop."}
    async with db_hub(tmp_path, harness) as hub:
        listed = await hub.value("core/db.describe", purpose="")
        assert listed["connections"] == [
            {"name": "shop", "dialect": "sqlite", "readOnly": True, "description": "A small shop."}
        ]
        description = await hub.value("core/db.describe", {"connection": "shop"})
        orders = next(table for table in description["tables"] if table["name"] == "orders")
        assert [(column["name"], column["nullable"], column["default"]) for column in orders["columns"]][-1] == (
            "note",
            True,
            "'x'",
        )
        assert orders["primaryKey"] == ["id"]
        assert orders["foreignKeys"] == [{"columns": ["user_id"], "table": "users", "targetColumns": ["id"]}]
        query = "SELECT o.id, u.name, o.total, o.note FROM orders o JOIN users u ON u.id = o.user_id WHERE o.id >= ?"
        value = await hub.value("core/db.query", {"connection": "shop", "query": query, "params": [1]}, purpose="")
        assert value["rows"] == [
            [1, "Ada", 10, "a"],
            [2, "Ada", 20.5, None],
            [3, "小明", "9007199254740993", base64.b64encode(b"\0\xff").decode()],
        ]
        assert value["columns"] == [
            {"name": "id", "type": "integer"},
            {"name": "name", "type": "text"},
            {"name": "total", "type": "integer|real"},
            {"name": "note", "type": "text|blob"},
        ]
        assert (value["rowCount"], value["truncated"], value["artifactRows"]) == (3, False, 0)
        named = {"connection": "shop", "query": "SELECT name FROM users WHERE name = :who", "params": {"who": "小明"}}
        assert (await hub.value("core/db.query", named))["rows"] == [["小明"]]


VALUES = {
    "numeric": ("123456789012345678.901234567890::numeric", "123456789012345678.901234567890"),
    "bigint": ("9007199254740993::bigint", "9007199254740993"),
    "integer": ("42", 42),
    "double precision": ("'NaN'::float8", "NaN"),
    "real": ("1.5::real", 1.5),
    "boolean": ("true", True),
    "text": ("'小明'::text", "小明"),
    "bytea": ("'\\x00ff'::bytea", base64.b64encode(b"\0\xff").decode()),
    "date": ("'2026-02-03'::date", "2026-02-03"),
    "timestamp without time zone": ("'2026-02-03 04:05:06.123456'::timestamp", "2026-02-03 04:05:06.123456"),
    "interval": ("'1 day 2 hours'::interval", "P1DT2H"),
    "uuid": ("'00000000-0000-0000-0000-000000000001'::uuid", "00000000-0000-0000-0000-000000000001"),
    "jsonb": ("'{\"a\": 12345678901234567890}'::jsonb", '{"a": 12345678901234567890}'),
    "integer[]": ("ARRAY[1,2,NULL]::int[]", "{1,2,NULL}"),
    "int4range": ("int4range(1,5)", "[1,5)"),
    "inet": ("'10.0.0.1'::inet", "10.0.0.1"),
}


@pytest.mark.promise("databases.exact-values")
async def test_postgres_is_described_and_queried_with_exact_values(tmp_path: Path, harness: DatabaseHarness) -> None:
    async with db_hub(tmp_path, harness.entry(description="Sales.")) as hub:
        description = await hub.value("core/db.describe", {"connection": "shop"})
        assert [(table["name"], table["comment"]) for table in description["tables"]] == [
            ("orders", ""),
            ("users", "Who buys."),
        ]
        orders = description["tables"][0]
        assert orders["columns"][2]["type"] == "numeric(20,4)"
        assert (orders["primaryKey"], orders["foreignKeys"][0]["table"]) == (["id"], "users")
        query = (
            "SELECT name, total, placed FROM orders o JOIN users u ON u.id = user_id WHERE o.id > $1 ORDER BY 2 -- end"
        )
        value = await hub.value("core/db.query", {"connection": "shop", "query": query, "params": [0]}, purpose="")
        assert [row[:2] for row in value["rows"]] == [["Ada", "10.0000"], ["Ada", "12345678901234.5678"]]
        assert value["rows"][0][2].startswith("2026-01-02 03:04:05.678901")
        select = ", ".join(f'{sql} AS "{name}"' for name, (sql, _) in VALUES.items())
        value = await hub.value("core/db.query", {"connection": "shop", "query": f"SELECT {select}, NULL AS nothing"})
        assert value["rows"] == [[*(expected for _, expected in VALUES.values()), None]]
        assert [column["type"] for column in value["columns"][:-1]] == list(VALUES)
        one = {"connection": "shop", "query": "SELECT $1::int + 1, $2::text, $3::jsonb", "params": [1, "x", {"a": 1}]}
        assert (await hub.value("core/db.query", one))["rows"] == [[2, "x", '{"a": 1}']]


@pytest.mark.promise("databases.exact-values")
@pytest.mark.parametrize("export", ["csv", "jsonl", "parquet"])
async def test_a_cut_result_is_whole_in_its_artifact_and_rows_are_streamed(
    tmp_path: Path, harness: DatabaseHarness, export: str
) -> None:
    lite = {"name": "lite", "file": str(sqlite_file(tmp_path)), "export": export, "max_rows": 300}
    async with db_hub(tmp_path, lite, harness.entry(export=export, max_rows=300)) as hub:
        numbers = {
            "shop": "SELECT g AS n, repeat('é', 3) AS t FROM generate_series(1, $1) AS g",
            "lite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?) "
            "SELECT n, replace('xxx', 'x', 'é') AS t FROM c",
        }
        for connection, query in numbers.items():
            for rows, kept in ((250, 250), (1_000, 300)):
                args = {"connection": connection, "query": query, "params": [rows], "limit": 100}
                messages = [
                    message
                    async for message in hub.stub.InvokeStream(
                        request("core/db.query", args, message=pb.InvokeStreamRequest)
                    )
                ]
                result = messages[-1].result
                value = json.loads(result.result_json)
                assert (value["rowCount"], value["truncated"], value["artifactRows"]) == (100, True, kept)
                assert result.truncated
                assert f"{kept} rows" in " ".join(proof.summary for proof in result.evidence)
                chunks = [message.chunk for message in messages if message.WhichOneof("event") == "chunk"]
                assert [json.loads(chunk.data) for chunk in chunks if chunk.stream == "rows"] == value["rows"]
                data = await whole(hub, result)
                assert read(export, data) == [[n, "ééé"] for n in range(1, kept + 1)]


def read(export: str, data: bytes) -> list[list[Any]]:
    if export == "csv":
        header, *rows = csv.reader(io.StringIO(data.decode()))
        assert header == ["n", "t"]
        return [[int(n), text] for n, text in rows]
    if export == "jsonl":
        return [list(json.loads(line).values()) for line in data.splitlines()]
    table = pyarrow.parquet.read_table(io.BytesIO(data))
    return [[int(row["n"]), row["t"]] for row in table.to_pylist()]


@pytest.mark.promise("databases.writes-are-planned")
async def test_writing_needs_a_plan_and_a_connection_of_its_own(tmp_path: Path, harness: DatabaseHarness) -> None:
    lite = sqlite_file(tmp_path)
    entries = (
        harness.entry(),
        {"name": "pg-write", "url": harness.writer, "read_only": False},
        {"name": "lite", "file": str(lite)},
        {"name": "lite-write", "file": str(lite), "read_only": False},
    )
    async with db_hub(tmp_path, *entries) as hub:
        for connection, mark in (("pg-write", "$1"), ("lite-write", "?")):
            args = {"connection": connection, "query": f"UPDATE orders SET total = {mark}", "params": [7]}
            refused = await hub.invoke("core/db.execute", args)
            assert refused.error.kind == error_pb2.ERROR_KIND_PLAN_REQUIRED
            plan = await hub.plan("core/db.execute", args)
            assert "every row" in plan.effects[0]
            assert "orders" in plan.effects[0]
            value = await hub.value("core/db.execute", args, plan_digest=plan.plan_digest)
            assert value == {"rowsAffected": 2 if connection == "pg-write" else 3}
            for denied in ("DROP TABLE orders", "TRUNCATE orders", "SELECT 1", "DELETE FROM orders; DELETE FROM users"):
                result = await hub.invoke("core/db.execute", {"connection": connection, "query": denied})
                assert result.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED, denied
        for connection in ("shop", "lite"):
            args = {"connection": connection, "query": "DELETE FROM orders"}
            result = await hub.invoke("core/db.execute", args)
            assert result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
            assert "pg-write, lite-write" in result.error.message
            asked = {"connection": connection, "query": "DELETE FROM orders"}
            assert (await hub.invoke("core/db.query", asked)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
    assert harness.rows("SELECT DISTINCT total::int FROM orders") == [(7,)]


async def test_tools_without_a_database_or_one_for_writing_name_the_setting(tmp_path: Path) -> None:
    async with db_hub(tmp_path) as hub:
        for tool in ("core/db.query", "core/db.execute", "core/db.describe"):
            spec = hub.hub.toolbox.catalog.get(tool)
            assert spec is not None
            assert "`databases`" in spec.state_reason
    async with db_hub(tmp_path / "other", {"name": "shop", "file": str(sqlite_file(tmp_path))}) as hub:
        spec = hub.hub.toolbox.catalog.get("core/db.execute")
        assert spec is not None
        assert "`read_only: false`" in spec.state_reason


async def test_a_superuser_is_refused_for_reading_and_no_host_is_disclosed(
    tmp_path: Path, harness: DatabaseHarness
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    entries = (harness.entry("admin") | {"url": harness.admin}, harness.entry("gone") | {"url": nowhere})
    async with db_hub(tmp_path, *entries, {"name": "nofile", "file": str(tmp_path / "none.db")}) as hub:
        for connection, reason in (("admin", "superuser"), ("gone", "no connection"), ("nofile", "its file")):
            result = await hub.invoke("core/db.query", {"connection": connection, "query": "SELECT 1"})
            assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
            assert reason in result.error.message
            assert "127.0.0.1" not in str(result.error)
        assert not (tmp_path / "none.db").exists()


RULES = """
rules:
  - id: no-users
    effect: DENY
    tools: [core/db.query]
    when: sql.tables.exists(t, t.endsWith("users"))
  - id: deletes
    effect: REQUIRE_APPROVAL
    tools: [core/db.execute]
    when: sql.kind == "DELETE"
"""


async def test_policy_checks_tables_and_kinds_of_statements(tmp_path: Path, harness: DatabaseHarness) -> None:
    writing = {"name": "writing", "url": harness.writer, "read_only": False}
    listed = {"name": "listed", "url": harness.reader, "tables": ["public.orders"]}
    async with db_hub(tmp_path, harness.entry(), writing, listed, policy=POLICY + RULES) as hub:
        denied = await hub.invoke("core/db.query", {"connection": "shop", "query": 'SELECT name FROM "users"'})
        assert denied.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        assert "no-users" in str(denied.error)
        asked = await hub.invoke("core/db.execute", {"connection": "writing", "query": "DELETE FROM orders"})
        assert asked.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        assert (await hub.invoke("core/db.query", {"connection": "listed", "query": "TABLE orders"})).ok
        query = "WITH users AS (SELECT 1) SELECT * FROM hidden.salaries"
        denied = await hub.invoke("core/db.query", {"connection": "listed", "query": query})
        assert "hidden.salaries may not be used" in denied.error.message
        assert denied.error.details["statement_class"] == "SELECT"


async def test_a_part_of_the_statement_that_has_a_name_is_no_table_that_must_be_allowed(tmp_path: Path) -> None:
    lite = {"name": "lite", "file": str(sqlite_file(tmp_path)), "tables": ["users"]}
    async with db_hub(tmp_path, lite) as hub:
        counted = "WITH c AS (SELECT 1 AS x) SELECT count(*) FROM c"
        assert (await hub.value("core/db.query", {"connection": "lite", "query": counted}))["rows"] == [[1]]
        other = {"connection": "lite", "query": "WITH c AS (SELECT * FROM sqlite_master) SELECT count(*) FROM c"}
        assert (await hub.invoke("core/db.query", other)).error.kind == error_pb2.ERROR_KIND_POLICY_DENIED


async def test_the_databases_error_is_reported_and_a_costly_statement_is_not_run(
    tmp_path: Path, harness: DatabaseHarness
) -> None:
    lite = {"name": "lite", "file": str(sqlite_file(tmp_path))}
    async with db_hub(tmp_path, harness.entry(), harness.entry("cheap", max_cost=1_000), lite) as hub:
        for connection, query, expected in (
            ("shop", "SELECT nme FROM users", 'column "nme" does not exist'),
            ("shop", "SELECT 1 / 0", "division by zero"),
            ("shop", "SELECT $1::int", "requires 1"),
            ("lite", "SELECT nme FROM users", "no such column: nme"),
            ("lite", "SELECT name FROM users WHERE id = ?", "binding"),
            ("shop", "SELEC 1", "syntax error"),
        ):
            result = await hub.invoke("core/db.query", {"connection": connection, "query": query})
            assert result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT, query
            assert expected in result.error.message
        hidden = await hub.invoke("core/db.query", {"connection": "shop", "query": "SELECT * FROM hidden.salaries"})
        assert hidden.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        costly = {"connection": "cheap", "query": "SELECT count(*) FROM generate_series(1, 1000000) AS n"}
        assert "estimates the cost" in (await hub.invoke("core/db.query", costly)).error.message
        assert (await hub.invoke("core/db.query", {**costly, "query": "SELECT count(*) FROM users"})).ok


def test_explain_shows_what_a_statement_was_read_as(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"databases": [{"name": "lite", "file": "/nowhere.db"}]})
    spec = next(spec for spec in asyncio.run(configured_tools(settings)) if spec.name == "core/db.query")
    policy = PolicySnapshot.load(POLICY)
    for query, verdict in (
        ("SELECT 1 FROM users", "passes (SELECT; tables: users)"),
        ("SELECT load_extension('x') FROM users", "load_extension is not on the list"),
        ("DELETE FROM users", "(DELETE; tables: users)"),
    ):
        planned = a_call(spec, {"connection": "lite", "query": query})
        guard = next(one for one in explain(policy, planned).considerations if one.id == "guard:sql")
        assert verdict in guard.why


def test_a_password_does_not_stand_in_the_settings(tmp_path: Path) -> None:
    for entry, expected in (
        ({"url": "postgresql://me:secret-password@db/shop"}, "holds a password"),
        ({}, "either file"),
        ({"file": "a", "url": "postgresql://db/shop"}, "either file"),
    ):
        with pytest.raises(msgspec.ValidationError, match=expected) as caught:
            settings_of(tmp_path, {"databases": [{"name": "shop", **entry}]})
        assert "secret-password" not in str(caught.value)
    twice = [{"name": "shop", "file": "a"}, {"name": "shop", "file": "b"}]
    with pytest.raises(msgspec.ValidationError, match="same name"):
        settings_of(tmp_path, {"databases": twice})


async def test_doctor_asks_each_database(tmp_path: Path, harness: DatabaseHarness) -> None:
    entries = [
        harness.entry(),
        {"name": "admin", "url": harness.admin},
        {"name": "lite", "file": str(sqlite_file(tmp_path)), "read_only": False},
        {"name": "gone", "url": {"env": "TOOLHUB_NOT_SET_ANYWHERE"}},
    ]
    settings = settings_of(tmp_path, {"databases": entries})
    findings = {finding.name: (finding.state.value, finding.text) async for finding in database_checks(settings)}
    assert findings["database shop"] == ("ok", "answers; 2 tables, read-only")
    assert findings["database lite"] == ("ok", "answers; 2 tables, writable")
    for name, expected in (("admin", "superuser"), ("gone", "TOOLHUB_NOT_SET_ANYWHERE is not set")):
        state, text = findings[f"database {name}"]
        assert state == "warn"
        assert expected in text
