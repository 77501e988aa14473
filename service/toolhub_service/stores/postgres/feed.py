"""The connection on which a process listens for changes (LISTEN).

It is reopened with backoff when it is lost, after which a gap is announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from toolhub_service.stores.postgres.errors import TROUBLE, reason_of

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


class PostgresFeed:
    """Calls a channel's listener, on the event loop, with each payload; all listeners get None after a gap."""

    def __init__(
        self, conninfo: str, names: Mapping[str, str], listeners: Mapping[str, Callable[[str | None], None]]
    ) -> None:
        """`names` by channel. `listeners` by name: the current ones."""
        self._conninfo = conninfo
        self.names = names
        self._listeners = listeners
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why it does not listen at the moment; empty while it does."""

    async def start(self, patience_s: float) -> bool:
        """Connect; return whether it listens. It is closed when it does not."""
        self._task = asyncio.create_task(self._keep_listening())
        try:
            async with asyncio.timeout(patience_s):
                await self._listening.wait()
        except TimeoutError:
            await self.close()
            return False
        return True

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def report_gap(self) -> None:
        for on_event in list(self._listeners.values()):
            on_event(None)

    async def _keep_listening(self) -> None:
        retry_s, listened_before = _FIRST_RETRY_S, False
        while True:
            try:
                async with self._open_connection() as connection:
                    self._listening.set()
                    retry_s, self.trouble = _FIRST_RETRY_S, ""
                    if listened_before:
                        self.report_gap()
                    listened_before = True
                    async for news in connection.notifies():
                        if on_event := self._listeners.get(self.names[news.channel]):
                            on_event(news.payload)
            except TROUBLE as error:
                self.trouble = reason_of(error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    @asynccontextmanager
    async def _open_connection(self) -> AsyncIterator[AsyncConnection]:
        async with await AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
            for channel in self.names:
                await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
            yield connection
