"""What tools were used for, in the hub's own file, shared by its processes.

A row's number is its place in the order: AUTOINCREMENT reuses none, and a single writer at
a time makes their order that of the commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import astuple

from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.rows import insert
from toolhub_service.stores.sqlite.writer import Change, one_by_one

_TRIM: Final = """
    DELETE FROM tool_uses WHERE row IN (
        SELECT row FROM tool_uses WHERE tenant = ? AND tool = ? ORDER BY row DESC LIMIT -1 OFFSET ?)"""
_FORGET: Final = """
    DELETE FROM tool_uses WHERE row IN (
        SELECT row FROM tool_uses WHERE at_unix_ms < ? ORDER BY at_unix_ms, row LIMIT ?)"""
_AFTER: Final = "SELECT row, tenant, tool, agent, purpose, at_unix_ms FROM tool_uses WHERE row > ? ORDER BY row LIMIT ?"


class _Added(NamedTuple):
    uses: Sequence[ToolUse]
    keep: int


class SqliteUsage:
    """Implements `UsageStore`. The file is started before and closed after it."""

    def __init__(self, file: SqliteFile, keep: int) -> None:
        self._file = file
        self._keep = keep

    async def add(self, uses: Sequence[ToolUse]) -> None:
        if uses:
            await self._file.change(_ADDING, _Added(uses, self._keep))

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        return await self._file.read(partial(_after, cursor=cursor, limit=limit))

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return await self._file.change(_FORGETTING, (before_unix_ms, limit))

    async def start(self) -> None:
        """Do nothing: the file is open."""

    async def close(self) -> None:
        """The file is closed by its owner."""


def _add(connection: sqlite3.Connection, added: _Added) -> None:
    uses, keep = added
    insert(connection, "tool_uses (tenant, tool, agent, purpose, at_unix_ms)", [astuple(use) for use in uses])
    grown = {(use.tenant, use.tool) for use in uses}
    connection.executemany(_TRIM, [(tenant, tool, keep) for tenant, tool in grown])


def _after(connection: sqlite3.Connection, cursor: int, limit: int) -> tuple[list[ToolUse], int]:
    rows = connection.execute(_AFTER, (cursor, limit)).fetchall()
    return [ToolUse(*columns) for _, *columns in rows], rows[-1][0] if rows else cursor


_ADDING: Change[_Added, None] = Change(one_by_one(_add))
_FORGETTING: Change[tuple[int, int], int] = Change(
    one_by_one(lambda connection, bounds: connection.execute(_FORGET, bounds).rowcount)
)
