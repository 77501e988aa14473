"""Databases that are emptied and used again: to make and to drop one costs PostgreSQL ten times as much."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import psycopg

_ALONE: Final[LiteralString] = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_TABLES: Final[LiteralString] = """
FOR found IN SELECT oid::regclass AS name FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
"""
_EMPTY: Final[LiteralString] = f"""
DO $$ DECLARE found record; BEGIN
    {_TABLES} LOOP EXECUTE 'DROP TABLE IF EXISTS ' || found.name || ' CASCADE'; END LOOP;
    FOR found IN SELECT oid::regprocedure AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        LOOP EXECUTE 'DROP FUNCTION ' || found.name; END LOOP;
END $$
"""
# Deleted rather than truncated: there are few rows, and TRUNCATE makes new files of every table and index.
_EMPTY_TABLES: Final[LiteralString] = f"""
SET session_replication_role = replica;
DO $$ DECLARE found record; BEGIN
    {_TABLES} AND relname <> 'store_migrations' LOOP EXECUTE 'DELETE FROM ' || found.name; END LOOP;
    FOR found IN SELECT oid::regclass AS name FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
        LOOP EXECUTE 'ALTER SEQUENCE ' || found.name || ' RESTART'; END LOOP;
END $$
"""
_STATE: Final[LiteralString] = """
SELECT datacl::text, datdba, datallowconn, datconnlimit,
    (SELECT array_agg((nspname, nspowner, nspacl)::text ORDER BY nspname) FROM pg_namespace WHERE nspname !~ '^pg_'),
    (SELECT array_agg((relname, relkind, relowner, relacl, relnatts)::text ORDER BY relname) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_type WHERE typnamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = pg_database.oid),
    (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_event_trigger),
    (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_publication)
FROM pg_database WHERE datname = current_database()
"""
"""What a test may leave behind besides tables: a database that differs in it from a fresh one is dropped."""


_numbers = count()


class EmptyDatabases:
    """Of one server, whose user may create databases."""

    def __init__(self, server_url: str, make_tables: Callable[[str], None] | None = None) -> None:
        """`make_tables`: what lies in each of them, empty; given the URL of a new one."""
        self._server_url = server_url
        self._make_tables = make_tables
        self._free: list[str] = []
        self._fresh: tuple[Any, ...] | None = None

    def url(self, name: str) -> str:
        return urlsplit(self._server_url)._replace(path=f"/{name}").geturl()

    def take(self) -> str:
        """The name of one that nobody else uses."""
        if self._free:
            return self._free.pop()
        name = f"toolhub_{os.getpid()}_{next(_numbers)}"
        self._run(f'CREATE DATABASE "{name}" TEMPLATE template0')
        if self._make_tables is not None:
            self._make_tables(self.url(name))
        if self._fresh is None:
            with psycopg.connect(self.url(name), autocommit=True) as database:
                self._fresh = database.execute(_STATE).fetchone()
        return name

    def give_back(self, name: str) -> None:
        """Ends the sessions that are open there."""
        if self._is_emptied(name):
            self._free.append(name)
        else:
            self._drop(name)

    def close(self) -> None:
        while self._free:
            self._drop(self._free.pop())

    def _is_emptied(self, name: str) -> bool:
        try:
            with psycopg.connect(self.url(name), autocommit=True) as database:
                database.execute(_ALONE)
                database.execute(_EMPTY_TABLES if self._make_tables else _EMPTY)
                return database.execute(_STATE).fetchone() == self._fresh
        except psycopg.Error:
            return False

    def _drop(self, name: str) -> None:
        self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._server_url, autocommit=True) as server:
            server.execute(statement)  # type: ignore[call-overload, unused-ignore]
