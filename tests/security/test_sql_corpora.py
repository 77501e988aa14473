"""SQL that must not pass, and SQL that must: corpora of our own, at the guard and behind it.

tests/security/sql_corpus/bypass.yaml holds attacks by family, analytics.yaml honest queries.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import check_sql
from toolhub_service.tools.database.connection import Database, DatabaseLimits
from toolhub_service.tools.database.postgres import PostgresDatabase
from toolhub_service.tools.database.sqlite import SqliteDatabase

CORPUS = Path(__file__).parent / "sql_corpus"
BYPASS: Mapping[str, Mapping[str, Sequence[str]]] = yaml.safe_load((CORPUS / "bypass.yaml").read_text())
HONEST = {
    dialect: [line for line in text.splitlines() if line.strip()]
    for dialect, text in yaml.safe_load((CORPUS / "analytics.yaml").read_text()).items()
}
LISTED = {"postgres": ("public.orders",), "sqlite": ("orders",)}
REFUSALS = {ErrorKind.POLICY_DENIED, ErrorKind.INVALID_INPUT}
FAMILIES = [(dialect, family) for dialect, families in BYPASS.items() for family in families]
SQLITE_SCHEMA = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, secret TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, user_id INTEGER, total NUMERIC);
CREATE VIEW names AS SELECT name FROM users;
INSERT INTO users VALUES (1, 'Ada', 's3cr3t'); INSERT INTO orders VALUES (1, 1, 10);
"""
POSTGRES_SCHEMA = """
CREATE TABLE users (id serial PRIMARY KEY, name text, secret text);
CREATE TABLE orders (id serial PRIMARY KEY, user_id int, total numeric);
INSERT INTO users (name, secret) VALUES ('Ada', 's3cr3t'); INSERT INTO orders (user_id, total) VALUES (1, 10);
CREATE SCHEMA hidden; CREATE TABLE hidden.salaries (name text);
"""
EVERYTHING = """
SELECT (SELECT string_agg(o::text, ';') FROM orders o), (SELECT string_agg(u::text, ';') FROM users u),
    (SELECT string_agg(c.oid || relname || coalesce(relacl::text, ''), ';' ORDER BY c.oid) FROM pg_class c
        WHERE relnamespace IN ('public'::regnamespace, 'hidden'::regnamespace)),
    (SELECT string_agg(oid || rolname, ';' ORDER BY oid) FROM pg_roles), (SELECT count(*) FROM pg_proc),
    (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_replication_slots),
    (SELECT last_value FROM orders_id_seq), (SELECT count(*) FROM pg_prepared_xacts)
"""


def terms_of(dialect: Any, family: str = "") -> DatabaseTerms:
    return DatabaseTerms(dialect, dialect, tables=LISTED[dialect] if family in ("hidden", "unclear characters") else ())


def test_the_corpora_have_their_documented_size() -> None:
    assert sum(len(family) for families in BYPASS.values() for family in families.values()) >= 200
    assert sum(len(queries) for queries in HONEST.values()) >= 200


@pytest.mark.promise("databases.read-only")
@pytest.mark.parametrize(("dialect", "family"), FAMILIES)
def test_no_attack_passes_the_guard(dialect: str, family: str) -> None:
    passed = []
    for sql in BYPASS[dialect][family]:
        try:
            check_sql(sql, terms_of(dialect, family), writes=False)
            passed.append(sql)
        except ToolFailure as refusal:
            assert refusal.error.kind in REFUSALS, sql  # noqa: PT017 - of each statement of the family
    # A view that reads another table is known to SQLite alone: its authorizer refuses it, see below.
    assert [sql for sql in passed if sql != "SELECT * FROM names"] == []


@pytest.mark.promise("databases.checked-queries")
@pytest.mark.parametrize("dialect", HONEST)
def test_honest_queries_pass_the_guard(dialect: str) -> None:
    refused = {}
    for sql in HONEST[dialect]:
        try:
            check_sql(sql, terms_of(dialect), writes=False)
        except ToolFailure as refusal:
            refused[sql] = refusal.error.message
    assert len(refused) <= 0.05 * len(HONEST[dialect]), refused


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


async def attempt(database: Database, sql: str) -> list[Any] | ToolFailure:
    """What comes of a statement that no guard has seen."""
    deadline_s = asyncio.get_running_loop().time() + 1.0
    try:
        async with database.query(Statement("SELECT", sql), [], deadline_s, lambda _: None) as reading:
            return await reading.next_rows()
    except ToolFailure as refusal:
        return refusal


@pytest.mark.promise("databases.read-only")
async def test_without_a_guard_sqlite_still_refuses_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    connection = sqlite3.connect(file)
    connection.executescript(SQLITE_SCHEMA)
    connection.close()
    before = hashlib.sha256(file.read_bytes()).digest()
    let_through = []
    for family, statements in BYPASS["sqlite"].items():
        database = SqliteDatabase(terms_of("sqlite", family), DatabaseLimits(), file)
        for sql in statements:
            answer = await attempt(database, sql)
            if isinstance(answer, list) and answer:
                let_through.append(sql)
    assert let_through == []
    assert hashlib.sha256(file.read_bytes()).digest() == before
    assert names_in(tmp_path) == {"shop.db"}
    assert not {"evil.db", "x"} & names_in(Path("/tmp"))


@pytest.fixture
def reader_url(postgres_url: str) -> Iterator[str]:
    """A database, as a role that may read and write one of its tables."""
    url = urlsplit(postgres_url)
    role = f"corpus_{url.path.strip('/')}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(POSTGRES_SCHEMA)
        admin.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON orders TO {role}".encode())
        # The transaction is read-only, whatever the role may.
        admin.execute(f"GRANT INSERT, UPDATE, DELETE ON orders TO {role}".encode())
        admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}".encode())
        yield url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl()
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.promise("databases.read-only")
async def test_without_a_guard_postgres_still_changes_nothing(postgres_url: str, reader_url: str) -> None:
    database = PostgresDatabase(terms_of("postgres"), DatabaseLimits(), lambda: reader_url)
    # Of families that a cursor refuses alike whatever they say, some: each statement is a session.
    most = {"hidden": 0, "other classes": 10, "transactions and sessions": 10}
    statements = [sql for family, each in BYPASS["postgres"].items() for sql in each[: most.get(family)]]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        before = admin.execute(EVERYTHING).fetchone()
        # Those that would only make the test wait stand in the family of what is called.
        waiting = [sql for sql in statements if "sleep" in sql]
        answers = {sql: await attempt(database, sql) for sql in statements if sql not in waiting}
        assert isinstance(await attempt(database, waiting[0]), ToolFailure)
        assert admin.execute(EVERYTHING).fetchone() == before
    secret = [sql for sql, answer in answers.items() if "root:" in str(answer) or "s3cr3t" in str(answer)]
    assert secret == []
