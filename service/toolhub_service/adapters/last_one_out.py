"""Connections that are closed once nobody uses them any more: a source that is taken away, or opened anew, lets calls
and jobs that are under way end where they began."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class LastOneOut:
    """`close` ends the connections; it is called once."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._users = 0
        self.is_closed = False
        """Whether nobody may begin to use them any more."""

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.is_closed and not self._users:
                await self._close()

    async def close(self) -> None:
        """Now, or when the last user is out."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self._users:
            await self._close()
