"""Plain SQL files, applied in the order of their names, each once, by one process at a time."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from psycopg import AsyncConnection

from toolhub_service.domain.errors import HubFailure, HubStatus

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('toolhub stores'), hashtext(current_schema()))"
_IS_NEW: Final = "SELECT to_regclass('store_migrations') IS NULL"
_MAKE: Final = "CREATE TABLE store_migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"


def migrations() -> dict[str, str]:
    """The text of each file by its name, in order."""
    found = [file for file in (files(__package__) / "migrations").iterdir() if file.name.endswith(".sql")]
    return {file.name: file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)}


async def migrate(connection: AsyncConnection) -> list[str]:
    """Bring the tables up to this version, all or nothing; the names of what was applied.

    Raises HubFailure STORE_TOO_NEW when a newer version of the hub has changed them already.
    """
    known = migrations()
    async with connection.transaction():
        await connection.execute(_LOCK)
        applied = await _applied(connection)
        if strange := sorted(applied - known.keys()):
            message = f"The tables in PostgreSQL belong to a newer version of the hub ({strange[-1]}); start that one."
            raise HubFailure(HubStatus.FAILED_PRECONDITION, "STORE_TOO_NEW", message)
        missing = [name for name in known if name not in applied]
        for name in missing:
            await connection.execute(known[name].encode())
            await connection.execute("INSERT INTO store_migrations (name) VALUES (%s)", (name,))
    return missing


async def _applied(connection: AsyncConnection) -> set[str]:
    if await (await connection.execute(_IS_NEW)).fetchone() == (True,):
        await connection.execute(_MAKE)
    rows = await (await connection.execute("SELECT name FROM store_migrations")).fetchall()
    return {name for (name,) in rows}
