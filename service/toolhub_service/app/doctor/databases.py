"""Whether the databases of core/db.* answer, and as what kind of role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from toolhub_service.app.doctor import Finding, ok, warn
from toolhub_service.app.wiring_endpoints import make_databases
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.export import missing_for

_WAIT_S = 5.0


async def database_checks(settings: Settings) -> AsyncIterator[Finding]:
    """A finding for each configured database."""
    for database in make_databases(settings, Redactor()):
        yield await _asked(database)


async def _asked(database: Database) -> Finding:
    name = f"database {database.terms.name}"
    if missing := database.missing():
        return warn(name, missing, "Install it; calls on this connection are refused.")
    try:
        tables, more = await database.describe("", asyncio.get_running_loop().time() + _WAIT_S)
    except ToolFailure as failure:
        return warn(name, failure.error.message, "Correct the entry under `databases`, or what it names.")
    if missing := missing_for(database.limits.export):
        return warn(name, missing, "Install it, or set `export` to csv or jsonl: cut results are not kept.")
    count = f"more than {len(tables)}" if more else str(len(tables))
    return ok(name, f"answers; {count} tables, {'writable' if database.terms.may_write else 'read-only'}")
