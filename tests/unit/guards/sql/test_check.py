"""What one SQL statement is read as, and what a connection lets through."""

from __future__ import annotations

import pytest

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.sql.check import MAX_CHARS, check_sql, find_database

POSTGRES = DatabaseTerms("pg", "postgres")
SQLITE = DatabaseTerms("lite", "sqlite")
WRITING = {
    "postgres": DatabaseTerms("pg", "postgres", may_write=True),
    "sqlite": DatabaseTerms("lite", "sqlite", may_write=True),
}


def refusal(sql: str, terms: DatabaseTerms, *, writes: bool = False) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        check_sql(sql, terms, writes=writes)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM orders o JOIN sales.users u ON u.id = o.user_id", ("public.orders", "sales.users")),
        ('SELECT * FROM "Orders"', ("public.Orders",)),
        ("TABLE orders", ("public.orders",)),
        ("VALUES (1), (2)", ()),
        ("WITH secrets AS (SELECT 1) SELECT * FROM secrets", ()),
        ("WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets", ("public.secrets",)),
        ("WITH RECURSIVE s AS (SELECT 1 UNION ALL SELECT * FROM s) SELECT * FROM s", ()),
        ("WITH secrets AS (SELECT 1) SELECT * FROM public.secrets", ("public.secrets",)),
        ("SELECT * FROM (WITH secrets AS (SELECT 1) SELECT 1) AS x, secrets", ("public.secrets",)),
        ("SELECT (SELECT max(id) FROM a), EXISTS (SELECT FROM b) FROM c", ("public.a", "public.b", "public.c")),
        ("SELECT JSON_OBJECT('a' VALUE (SELECT 1 FROM b))", ("public.b",)),
        (
            "SELECT count(*) FILTER (WHERE x IN (TABLE b)) OVER (ORDER BY (SELECT 1 FROM c)) FROM a",
            ("public.a", "public.b", "public.c"),
        ),
    ],
)
def test_tables_of_postgres_are_those_that_it_would_touch(sql: str, tables: tuple[str, ...]) -> None:
    assert check_sql(sql, POSTGRES, writes=False).tables == tables


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM Orders o JOIN main.users u USING (id)", ("orders", "users")),
        ("WITH s AS (SELECT * FROM s) SELECT * FROM s", ("s",)),
        ("WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT n FROM s", ()),
        ("SELECT 1 WHERE 1 IN secrets", ("secrets",)),
        ("SELECT 1 FROM orders WHERE id IN (1, 2)", ("orders",)),
        ("SELECT value FROM json_each('[1]')", ()),
        ("SELECT * FROM (WITH t AS (SELECT 1) SELECT * FROM t), t", ("t",)),
        ("WITH t AS (SELECT 1 AS a) SELECT 1 WHERE 1 IN t", ()),
        ("WITH t AS (SELECT 1 AS a) SELECT 1 WHERE 1 IN main.t", ("t",)),
        ("SELECT * FROM \u212aunden", ("\u212aunden",)),
    ],
)
def test_tables_of_sqlite_are_at_least_those_that_it_would_touch(sql: str, tables: tuple[str, ...]) -> None:
    assert check_sql(sql, SQLITE, writes=False).tables == tables


@pytest.mark.promise("databases.read-only")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ('/etc/passwd'::text).pg_read_file",
        "SELECT (v).pg_read_file FROM (VALUES ('/etc/passwd'::text)) AS t(v)",
        "SELECT t.pg_read_file FROM unnest(ARRAY['/etc/passwd']) AS t",
        "SELECT t.f FROM unnest(ARRAY['/etc/passwd']) AS t",
        "SELECT unnest.f FROM unnest(ARRAY['/etc/passwd'])",
        """SELECT "coalesce".f FROM coalesce('/etc/passwd', '')""",
        "SELECT (ARRAY['a'])[1].f FROM t",
    ],
)
def test_a_function_that_is_called_behind_a_dot_is_a_function(sql: str) -> None:
    assert refusal(sql, POSTGRES).error.kind in (ErrorKind.POLICY_DENIED, ErrorKind.INVALID_INPUT)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT e.key, e.value FROM jsonb_each('{}') AS e",
        "SELECT d.day FROM generate_series(1, 2) AS d(day)",
        "SELECT u.x, u.ordinality FROM unnest(ARRAY[1]) WITH ORDINALITY AS u(x)",
        "SELECT r.a FROM jsonb_to_recordset('[]') AS r(a int)",
        "SELECT o.total, u.name FROM orders o JOIN users u ON true",
        "SELECT (x).key FROM (SELECT jsonb_each('{}') AS x) AS s",
    ],
)
def test_columns_behind_a_dot_are_no_functions(sql: str) -> None:
    assert check_sql(sql, POSTGRES, writes=False).problems == ()


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_each_tool_runs_its_own_classes_of_statements(dialect: str) -> None:
    terms = WRITING[dialect]
    assert "core/db.execute" in refusal("DELETE FROM t", terms).error.message
    assert "core/db.query" in refusal("SELECT 1", terms, writes=True).error.message
    read_only = DatabaseTerms("x", terms.dialect)
    assert "read-only" in refusal("DELETE FROM t", read_only, writes=True).error.message
    changed = check_sql("UPDATE t SET a = 1", terms, writes=True)
    assert (changed.kind, changed.has_condition) == ("UPDATE", False)
    assert check_sql("DELETE FROM t WHERE a = 1;", terms, writes=True) == Statement(
        "DELETE",
        "DELETE FROM t WHERE a = 1",
        ("public.t" if dialect == "postgres" else "t",),
        actions=("DELETE",),
    )
    for sql in ("DROP TABLE t", "INSERT INTO t VALUES (1) RETURNING a", "DELETE FROM t; DELETE FROM u", ""):
        assert refusal(sql, terms, writes=True).error.kind is ErrorKind.POLICY_DENIED, sql


@pytest.mark.parametrize(
    ("dialect", "sql", "tables", "actions"),
    [
        ("postgres", "WITH t AS (SELECT 1) UPDATE t SET a = 1", ("public.t",), ("SELECT", "UPDATE")),
        ("postgres", "WITH t AS (SELECT 1) INSERT INTO t TABLE t", ("public.t",), ("INSERT", "SELECT")),
        ("postgres", "WITH t AS (SELECT 1) DELETE FROM t USING t AS u", ("public.t",), ("DELETE", "SELECT")),
        (
            "postgres",
            "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2",
            ("public.t",),
            ("INSERT", "UPDATE"),
        ),
        (
            "postgres",
            "MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1)",
            ("public.t", "public.u"),
            ("DELETE", "INSERT", "SELECT"),
        ),
        ("sqlite", "WITH t AS (SELECT 1) UPDATE t SET a = 1", ("t",), ("SELECT", "UPDATE")),
        ("sqlite", "WITH t AS (SELECT 1) INSERT INTO T (a) SELECT * FROM t", ("t",), ("INSERT", "SELECT")),
        ("sqlite", "WITH t AS (SELECT 1) DELETE FROM [t]", ("t",), ("DELETE", "SELECT")),
        ("sqlite", "INSERT OR REPLACE INTO t VALUES (1)", ("t",), ("DELETE", "INSERT")),
        ("sqlite", "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2", ("t",), ("INSERT", "UPDATE")),
    ],
)
def test_a_write_names_its_target_and_all_that_it_does(
    dialect: str, sql: str, tables: tuple[str, ...], actions: tuple[str, ...]
) -> None:
    statement = check_sql(sql, WRITING[dialect], writes=True)
    assert (statement.tables, statement.actions) == (tables, actions)


@pytest.mark.parametrize("word", ["DROP", "VACUUM", "EXPLAIN"])
def test_statement_that_no_tool_runs_is_refused_by_its_first_word(word: str) -> None:
    rest = {"DROP": " TABLE t", "EXPLAIN": " SELECT 1"}.get(word, "")
    assert f"is {word}, which no tool runs" in refusal(word + rest, WRITING["sqlite"], writes=True).error.message


@pytest.mark.parametrize("terms", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_invalid_or_too_large_statements_are_invalid_input_with_their_place(terms: DatabaseTerms) -> None:
    assert refusal("SELEC 1 FROM", terms).error.kind in (ErrorKind.INVALID_INPUT, ErrorKind.POLICY_DENIED)
    assert refusal("SELECT 1 +", terms).error.kind is ErrorKind.INVALID_INPUT
    assert refusal("SELECT 1\0", terms).error.kind is ErrorKind.INVALID_INPUT
    assert refusal("SELECT '\ud800'", terms).error.kind is ErrorKind.INVALID_INPUT
    assert refusal(f"SELECT '{'x' * MAX_CHARS}'", terms).error.details["max_chars"] == MAX_CHARS
    assert "words and signs" in refusal(f"SELECT {'+'.join('1' * 3_000)}", terms).error.message
    deeps = ("SELECT " + "(" * 1_900 + "1" + ")" * 1_900, "SELECT " + "(SELECT " * 1_300 + "1" + ")" * 1_300)
    for deep in (*deeps, f"SELECT {'+'.join('1' * 1_900)}", f"SELECT {'NOT ' * 3_900} true"):
        try:
            check_sql(deep, terms, writes=False)
        except ToolFailure as failure:
            assert failure.error.kind is ErrorKind.INVALID_INPUT  # noqa: PT017 - either way, but no crash


def test_lists_of_a_connection_open_and_close() -> None:
    listed = DatabaseTerms("x", "postgres", tables=("public.orders", "sales.*"), functions=("st_area", "my.f"))
    check_sql("SELECT st_area(g), my.f(1) FROM orders, sales.a", listed, writes=False)
    assert "public.users" in refusal("SELECT 1 FROM orders, users", listed).error.message
    assert "pg_sleep" in refusal("SELECT pg_sleep(1)", listed).error.message
    assert "other.st_area" in refusal("SELECT other.st_area(1)", listed).error.message
    cased = DatabaseTerms("x", "sqlite", tables=("Orders",))
    check_sql("SELECT 1 FROM ORDERS", cased, writes=False)
    for table in ("pg_shadow", "pg_catalog.pg_authid", "pg_stat_activity"):
        assert "may not be used" in refusal(f"SELECT * FROM {table}", POSTGRES).error.message


def test_an_unknown_connection_is_refused_with_the_known_ones() -> None:
    for databases, known in (((POSTGRES, SQLITE), "pg, lite"), ((), "none is configured")):
        with pytest.raises(ToolFailure) as caught:
            find_database("other", databases)
        assert known in caught.value.error.message


def test_a_statement_of_just_as_many_words_and_signs_as_are_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolhub_service.guards.sql.check._MAX_TOKENS", 4)
    assert check_sql("SELECT 1, 2", SQLITE, writes=False).kind == "SELECT"
    assert "words and signs" in refusal("SELECT 1, -2", SQLITE).error.message
