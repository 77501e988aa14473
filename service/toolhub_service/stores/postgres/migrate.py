"""Migrations of the tables in PostgreSQL: plain SQL files, applied in the order of their names.

Each is applied once, by one process at a time. Tables that are declared by their columns (`declared_table.py`) have
none: they are created when absent and not recorded, so that a hub of the version before starts beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from psycopg import AsyncConnection

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('toolhub stores'), hashtext(current_schema()))"
_IS_NEW: Final = "SELECT to_regclass('store_migrations') IS NULL"
_MAKE: Final = "CREATE TABLE store_migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"


def migrations() -> dict[str, str]:
    """Return the text of each file by its name, in order."""
    found = [file for file in (files(__package__) / "migrations").iterdir() if file.name.endswith(".sql")]
    return {file.name: file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)}


async def migrate(connection: AsyncConnection, declared: Sequence[str] = ()) -> list[str]:
    """Bring the tables up to this version, all or nothing; return the names of the migrations applied.

    `declared`: statements that create what is absent.

    Raises HubFailure STORE_TOO_NEW when a newer version of the hub has changed them already.
    """
    known = migrations()
    async with connection.transaction():
        await connection.execute(_LOCK)
        if await _is_new(connection):
            await connection.execute(_MAKE)
        applied = await _read_applied(connection)
        missing = [name for name in known if name not in applied]
        for name in missing:
            await connection.execute(known[name].encode())
            await connection.execute("INSERT INTO store_migrations (name) VALUES (%s)", (name,))
        for statement in declared:
            await connection.execute(statement.encode())
    return missing


async def check_version(connection: AsyncConnection) -> None:
    """Raise HubFailure STORE_TOO_NEW as `migrate` does. Changes nothing."""
    if not await _is_new(connection):
        await _read_applied(connection)


async def _is_new(connection: AsyncConnection) -> bool:
    return await (await connection.execute(_IS_NEW)).fetchone() == (True,)


async def _read_applied(connection: AsyncConnection) -> set[str]:
    """Return the names of the migrations that were applied. Raises HubFailure STORE_TOO_NEW."""
    rows = await (await connection.execute("SELECT name FROM store_migrations")).fetchall()
    applied = {name for (name,) in rows}
    if strange := sorted(applied - migrations().keys()):
        message = f"The tables in PostgreSQL belong to a newer version of the hub ({strange[-1]}); start that one."
        raise HubFailure(StartReason.STORE_TOO_NEW, message)
    return applied
