"""Hears of changed tools in the modern era: a `subscriptions/listen` stream, opened again when it breaks.

That it breaks says nothing of the connection (a proxy may cut idle streams), so calls in flight are left alone; what
was missed meanwhile is unknown, so each new stream counts as a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost

from toolhub_service.adapters.mcp.backoff import Backoff
from toolhub_service.domain.ports import Randomness

_ACKNOWLEDGED_WITHIN_S = 10.0
_FIRST_WITHIN_S = 1.0
"""How long a connection waits for its first stream before it stands without one."""


class Listening:
    """Listens between entering and leaving, in a task of its own."""

    def __init__(self, client: Client, randomness: Randomness, changed: Callable[[], None]) -> None:
        self._client = client
        self._backoff = Backoff(randomness)
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._hears = asyncio.Event()
        self._has_stood = False
        """Whether the connection stands: what comes to be heard later may have been missed."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_WITHIN_S):
                    await self._hears.wait()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._has_stood = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        return None

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                await self._hear()
            await asyncio.sleep(self._backoff.stood(loop.time() - began_s))

    async def _hear(self) -> None:
        subscription = self._client.listen(tools_list_changed=True)
        async with asyncio.timeout(_ACKNOWLEDGED_WITHIN_S):
            events = await subscription.__aenter__()
        try:
            self._hears.set()
            if self._has_stood:
                self._changed()
            async for _ in events:
                self._changed()
        finally:
            await subscription.__aexit__(None, None, None)
