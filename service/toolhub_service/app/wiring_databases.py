"""Wires the databases of the configuration. Nothing is connected and no driver imported before a call needs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from toolhub_service.adapters.source_config import SourceValues
from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings
from toolhub_service.settings.tool_sections import DatabaseSettings
from toolhub_service.tools.database.connection import Database, DatabaseLimits
from toolhub_service.tools.database.postgres import PostgresDatabase
from toolhub_service.tools.database.sqlite import SqliteDatabase


def make_databases(settings: Settings, redactor: Redactor) -> list[Database]:
    """In the order of the configuration; `redactor` learns the secrets of their URLs when they are read."""
    return [_database(entry, SourceValues(redactor)) for entry in settings.databases]


def _database(entry: DatabaseSettings, values: SourceValues) -> Database:
    terms = DatabaseTerms(
        name=entry.name,
        dialect="sqlite" if entry.file else "postgres",
        may_write=not entry.read_only,
        tables=entry.tables,
        functions=entry.functions,
        schema=entry.schema,
    )
    limits = DatabaseLimits(
        timeout_s=entry.timeout_s,
        max_rows=entry.max_rows,
        max_bytes=entry.max_bytes,
        max_cost=entry.max_cost,
        export=entry.export,
    )
    if entry.file:
        return SqliteDatabase(terms, limits, Path(entry.file).expanduser(), entry.description)
    return PostgresDatabase(terms, limits, partial(values.one, entry.url), entry.description)
