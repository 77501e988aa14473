"""The one connection of a process that listens: opened anew with backoff when it is lost, and then a gap is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from toolhub_service.stores.postgres_trouble import TROUBLE, reason_of

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


class PostgresFeed:
    """Tells `heard` of each payload on the channel, and of None when some may have been missed; on the event loop."""

    def __init__(self, conninfo: str, channel: str, heard: Callable[[str | None], None]) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._heard = heard
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why it does not listen at the moment; empty while it does."""

    async def start(self, patience_s: float) -> bool:
        """Whether it listens; it goes on trying where it does not."""
        self._task = asyncio.create_task(self._keep_listening())
        try:
            async with asyncio.timeout(patience_s):
                await self._listening.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_listening(self) -> None:
        retry_s, heard_before = _FIRST_RETRY_S, False
        while True:
            try:
                async with self._connected() as connection:
                    self._listening.set()
                    retry_s, self.trouble = _FIRST_RETRY_S, ""
                    if heard_before:
                        self._heard(None)
                    heard_before = True
                    async for news in connection.notifies():
                        self._heard(news.payload)
            except TROUBLE as error:
                self.trouble = reason_of(error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            await connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
            yield connection
