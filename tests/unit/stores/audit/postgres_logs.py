"""Audit logs in PostgreSQL with their key and checkpoints in a temporary folder, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tests.unit.stores.audit.logs_in import WallClock, files_in
from toolhub_service.domain.event import Verification
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.postgres import PostgresAuditLog, postgres_events
from toolhub_service.stores.audit.verify import verify_events


def postgres_log(url: str, folder: Path, *, redactor: Redactor | None = None, **options: Any) -> PostgresAuditLog:
    _, checkpoints, key = files_in(folder)
    return PostgresAuditLog(url, checkpoints, key, clock=WallClock(), redactor=redactor or Redactor(), **options)


async def started_postgres_log(url: str, folder: Path, **options: Any) -> PostgresAuditLog:
    log = postgres_log(url, folder, **options)
    await log.start()
    return log


def postgres_verified(url: str, folder: Path, **options: Any) -> Verification:
    """What is found with no hub running."""
    _, checkpoints, key = files_in(folder)
    return verify_events(postgres_events(url, checkpoints), checkpoints, open_keyring(key, create=False), **options)


def execute(url: str, *statements: str, **values: object) -> list[Any]:
    """What somebody with the database's password can do; the rows of the last statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement, values)  # type: ignore[call-overload, unused-ignore]
        return cursor.fetchall() if cursor.description else []
