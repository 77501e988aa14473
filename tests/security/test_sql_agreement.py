"""The parser against the database: what policy is shown of a statement is what the database touches.

Over both corpora, and over statements made at random: `TOOLHUB_SQL_STATEMENTS` sets how many, in PostgreSQL a third of
them, and `TOOLHUB_SQL_SEED` which.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from tests.security.sql_statements import Statements
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.statement import QUERY, WRITES, Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import read_sql
from toolhub_service.tools.database.postgres_touched import resolve_statement
from toolhub_service.tools.database.sqlite_authorizer import StatementAuthorizer

CORPUS = Path(__file__).parent / "sql_corpus"
SEED = int(os.environ.get("TOOLHUB_SQL_SEED", "29"))
STATEMENTS = int(os.environ.get("TOOLHUB_SQL_STATEMENTS", "1000"))
RANDOM_TABLES = """
CREATE TABLE ok (a integer PRIMARY KEY, b text); CREATE TABLE hidden (a integer PRIMARY KEY, b text);
"""
OPEN = {dialect: DatabaseTerms("open", dialect, may_write=True) for dialect in ("postgres", "sqlite")}
# Of SQLite, the instructions that open the tree of a table, or empty it.
_OPENS = frozenset({"OpenRead", "OpenWrite", "ReopenIdx", "Clear"})


def statements_of(dialect: str) -> list[str]:
    """Those of both corpora that read."""
    honest = yaml.safe_load((CORPUS / "analytics.yaml").read_text())[dialect].splitlines()
    attacks = yaml.safe_load((CORPUS / "bypass.yaml").read_text())[dialect].values()
    return [sql for sql in (*honest, *(sql for family in attacks for sql in family)) if sql.strip()]


def parsed(sql: str, dialect: str) -> Statement | None:
    """The statement as policy is shown it; None where the guard refuses it whatever it touches."""
    try:
        statement = read_sql(sql, OPEN[dialect])
    except ToolFailure:
        return None
    is_run = statement.kind == QUERY or statement.kind in WRITES
    return None if statement.problems or not is_run else statement


def params_of(sql: str, dialect: str) -> Any:
    if dialect == "postgres":
        return [1] * len(set(re.findall(r"\$\d", sql)))
    names = re.findall(r" :(\w+)", sql)
    return dict.fromkeys(names, 1) if names else [1] * sql.endswith("?")


@pytest.fixture
def reader_url(postgres_url: str) -> Iterator[str]:
    url = urlsplit(postgres_url)
    role = f"agreeing_{url.path.strip('/')}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute((CORPUS / "postgres.sql").read_bytes() + RANDOM_TABLES.encode())
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
        yield url._replace(netloc=f"{role}@{url.netloc.rpartition('@')[2]}").geturl()
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_in_sqlite_policy_is_shown_the_tables_that_a_statement_touches() -> None:
    compared, unused = 0, []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript((CORPUS / "sqlite.sql").read_text())
        connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").close()
        for sql in statements_of("sqlite"):
            statement = parsed(sql, "sqlite")
            read = None if statement is None else read_by_sqlite(connection, statement, params_of(sql, "sqlite"))
            if statement is None or read is None:
                continue
            compared += 1
            assert set(read.tables) <= set(statement.tables), sql
            assert set(read.actions) <= set(statement.actions), sql
            if read.tables != statement.tables:
                unused.append(sql)
    # A WITH query that nothing uses is not read.
    assert len(unused) <= 1, unused
    assert compared >= 80


def read_by_sqlite(connection: sqlite3.Connection, statement: Statement, params: Any = ()) -> Statement | None:
    """The statement as SQLite reads it; None where it does not accept it."""
    authorizer = StatementAuthorizer(OPEN["sqlite"], writes=statement.kind != QUERY)
    connection.set_authorizer(authorizer)
    try:
        program = connection.execute(f"EXPLAIN {statement.text}", params).fetchall()
        authorizer.settle(connection, program)
    except sqlite3.Error:
        return None
    finally:
        connection.set_authorizer(None)
    # Nothing of what the parser has found is given to it.
    return authorizer.read(Statement(statement.kind))


async def read_by_postgres(
    session: psycopg.AsyncConnection[Any], statement: Statement, params: Any = ()
) -> Statement | None:
    """The statement as PostgreSQL reads it; None where it does not accept it."""
    await session.execute("BEGIN")
    try:
        cursor = psycopg.AsyncRawCursor(session)
        await cursor.execute(f"EXPLAIN (FORMAT JSON) {statement.text}".encode(), params, prepare=True)
        ((plan,),) = await cursor.fetchall()
        read, _ = await resolve_statement(session, statement, OPEN["postgres"], plan)
    except psycopg.Error:
        return None
    finally:
        await session.execute("ROLLBACK")
    return read


async def test_in_postgres_policy_is_shown_the_tables_that_a_statement_touches(
    session: psycopg.AsyncConnection[Any],
) -> None:
    compared = 0
    for sql in statements_of("postgres"):
        statement = parsed(sql, "postgres")
        if statement is None or any(table.startswith("pg_catalog.") for table in statement.tables):
            continue
        read = await read_by_postgres(session, statement, params_of(sql, "postgres"))
        if read is None:
            continue
        compared += 1
        assert (read.tables, read.actions) == (statement.tables, statement.actions), sql
    assert compared >= 140


def trees(connection: sqlite3.Connection, program: list[Any]) -> set[str]:
    """The tables whose trees a program of SQLite opens: what it does, whoever was asked."""
    names = dict(connection.execute("SELECT rootpage, tbl_name FROM sqlite_schema").fetchall())
    opened = {(row[3], row[4]) if row[1] != "Clear" else (row[2], row[3]) for row in program if row[1] in _OPENS}
    return {names[root] for root, database in opened if database == 0 and root in names}


@pytest.mark.promise("databases.decided-by-the-database")
def test_in_sqlite_no_random_statement_touches_what_policy_is_not_shown() -> None:
    statements = Statements("sqlite", SEED)
    compared = 0
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(RANDOM_TABLES)
        for _ in range(STATEMENTS):
            sql = statements.next()
            statement = parsed(sql, "sqlite")
            if statement is None:
                continue
            read = read_by_sqlite(connection, statement)
            if read is None:
                continue
            compared += 1
            touched = trees(connection, connection.execute(f"EXPLAIN {statement.text}").fetchall())
            assert touched <= set(statement.tables), sql
            assert touched <= set(read.tables), sql
            assert set(read.actions) <= set(statement.actions), (sql, read.actions, statement.actions)
    assert compared >= STATEMENTS // 5


@pytest.fixture
async def session(reader_url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(reader_url, autocommit=True) as connection:
        await connection.execute("SET search_path = public")
        yield connection


@pytest.mark.promise("databases.decided-by-the-database")
async def test_in_postgres_no_random_statement_touches_what_policy_is_not_shown(
    session: psycopg.AsyncConnection[Any],
) -> None:
    statements = Statements("postgres", SEED)
    compared = 0
    for _ in range(STATEMENTS // 3):
        sql = statements.next()
        statement = parsed(sql, "postgres")
        read = None if statement is None else await read_by_postgres(session, statement)
        if statement is None or read is None:
            continue
        compared += 1
        assert read.tables == statement.tables, sql
        assert set(read.actions) <= set(statement.actions), (sql, read.actions, statement.actions)
    assert compared >= STATEMENTS // 15
