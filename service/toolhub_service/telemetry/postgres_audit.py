"""The audit log in PostgreSQL, which many hubs may share: the calls of all in one place, a chain for each writer.

The chain, the group commit in a thread of its own and the checkpoint file are those of every audit log. What differs:
whoever watches is woken by NOTIFY, and looks by itself every few seconds in case that was lost.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Identifier

from toolhub_service.domain.event import Event
from toolhub_service.telemetry import postgres_audit_sql as sql
from toolhub_service.telemetry.audit import ChainedAuditLog
from toolhub_service.telemetry.audit_store import Row
from toolhub_service.telemetry.postgres_audit_rows import PostgresEvents, without_nul

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


def postgres_events(url: str, checkpoints: Path, site: str = "") -> PostgresEvents:
    """The events that a hub with this checkpoint file writes. Raises HubFailure POSTGRES_URL_INVALID.

    `site` names the file among those of all machines, for as long as it lives; empty: host name and path.
    """
    return PostgresEvents(url, site or f"{socket.gethostname()}:{checkpoints.absolute()}")


class PostgresAuditLog(ChainedAuditLog):
    """Hubs that share the database share the key file; every machine has a checkpoint file of its own."""

    def __init__(self, url: str, checkpoints: Path, key: Path, *, site: str = "", **options: Any) -> None:
        """`options` are those of `ChainedAuditLog`. Raises HubFailure POSTGRES_URL_INVALID."""
        self._shared = postgres_events(url, checkpoints, site)
        super().__init__(self._shared, checkpoints, key, **options)
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises HubFailure AUDIT_UNREACHABLE, and as `ChainedAuditLog.start`."""
        await super().start()
        self._listener = asyncio.create_task(self._keep_listening())

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])
        await super().close()

    def _sealed(self, event: Event) -> Row:
        return super()._sealed(without_nul(event))

    async def _keep_listening(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                async with await self._connection() as connection:
                    retry_s = _FIRST_RETRY_S
                    await self._listen(connection)
            except (psycopg.Error, OSError):
                pass  # The writer tells that the database is gone; until it is back nobody can write news.
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _connection(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self._shared.target.conninfo, autocommit=True)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        ((channel,),) = await (await connection.execute(sql.CHANNEL)).fetchall()
        await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
        ((last_row,),) = await (await connection.execute(sql.LAST_ROW)).fetchall()
        self._hear(last_row)
        async for news in connection.notifies():
            if news.payload.isdecimal():
                self._hear(int(news.payload))

    def _hear(self, last_row: int) -> None:
        """Look for news while somebody watches, and always know where they begin."""
        if last_row > self._shared.last_row() and self._tails and self._group is not None:
            self._group.hurry()
        self._shared.heard_of(last_row)
