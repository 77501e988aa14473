"""Changed tools and a changed policy, told to clients as `tools/list_changed`: at most twice a second."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged

from toolhub_service.mcp_server.engine import Engine

_EVERY_S: Final = 0.5
_SEND_S: Final = 1.0
# Sessions of the older era that are told; of more, those that began first are not.
_SESSIONS_MAX: Final = 1_000


class Changes:
    """`start`, then `close`. What changes is not told: a list is each caller's own."""

    def __init__(self, engine: Engine) -> None:
        self.bus = InMemorySubscriptionBus()
        """For who listens in the newer era."""
        self._engine = engine
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._changed = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop = self._engine.catalog.subscribe(lambda _: self._changed.set())
        self._engine.on_policy(self._changed.set)
        self._telling = asyncio.create_task(self._tell_all(), name="tools/list_changed")

    def close(self) -> None:
        self._stop()
        self._sessions.clear()
        if self._telling is not None:
            self._telling.cancel()

    def tell(self, session_id: str, session: ServerSession) -> None:
        """A client of the older era is ready to hear."""
        self._sessions[session_id] = session
        if len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def forget(self, session_id: str) -> None:
        """A session of the older era has ended. Notifying it would not fail: nobody would ever know."""
        self._sessions.pop(session_id, None)

    async def _tell_all(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.bus.publish(ToolsListChanged())
            for session_id, session in list(self._sessions.items()):
                try:
                    async with asyncio.timeout(_SEND_S):
                        await session.send_tool_list_changed()
                except Exception:  # noqa: BLE001 - it has ended, or takes nothing: it is told no more
                    self._sessions.pop(session_id, None)
            await asyncio.sleep(_EVERY_S)
