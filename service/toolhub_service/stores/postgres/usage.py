"""What tools were used for, in PostgreSQL, shared by all hubs of one schema.

A row's number is its place in the order: a single writer at a time makes it the commit order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import orjson

from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores.codec import decode_use, encode_use, readable
from toolhub_service.stores.postgres.column_text import escape_text
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.writer import TableWriter

_ADD_USES: Final = """
INSERT INTO tool_uses (tenant, tool, record, at_unix_ms)
SELECT tenant, tool, record, at_unix_ms FROM json_populate_recordset(NULL::tool_uses, %s::json) RETURNING 1"""
_TRIM_USES: Final = """
DELETE FROM tool_uses WHERE row IN (
    SELECT row FROM (
        SELECT row, row_number() OVER (PARTITION BY tenant, tool ORDER BY row DESC) AS place FROM tool_uses
        WHERE (tenant, tool) IN (SELECT tenant, tool FROM json_populate_recordset(NULL::tool_uses, %s::json))
    ) AS placed WHERE place > %s) RETURNING 1"""
_FORGET_USES: Final = """
DELETE FROM tool_uses WHERE row IN (
    SELECT row FROM tool_uses WHERE at_unix_ms < %s ORDER BY at_unix_ms, row LIMIT %s) RETURNING 1"""


class PostgresUsage:
    """Implements `UsageStore`. The link is closed by its owner, after the store."""

    def __init__(self, link: PostgresLink, keep: int) -> None:
        self._link = link
        self._keep = keep
        self._writer = TableWriter(link, "tool_uses")

    async def add(self, uses: Sequence[ToolUse]) -> None:
        if uses:
            rows = [
                {
                    "tenant": escape_text(use.tenant),
                    "tool": escape_text(use.tool),
                    "at_unix_ms": use.at_unix_ms,
                    "record": rf"\x{encode_use(use).hex()}",
                }
                for use in uses
            ]
            written = orjson.dumps(rows).decode()
            # Both statements are in one group, one after the other.
            await asyncio.gather(
                self._writer.run(_ADD_USES, (written,)), self._writer.run(_TRIM_USES, (written, self._keep))
            )

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        rows = await self._link.rows(
            "SELECT row, record FROM tool_uses WHERE row > %s ORDER BY row LIMIT %s", cursor, limit
        )
        return readable([record for _, record in rows], decode_use), rows[-1][0] if rows else cursor

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        return len(await self._writer.run(_FORGET_USES, (before_unix_ms, limit)))

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        await self._writer.close()
