"""Waits for a condition, woken by each change: no polling, no sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ChangeSignal:
    """`beat()` after every change; `until` looks again at each beat."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def beat(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, true: Callable[[], bool], timeout_s: float | None = 20.0) -> None:
        """Raises: TimeoutError when it has not become true in time (None: wait for ever)."""
        async with asyncio.timeout(timeout_s):
            while not true():
                future = asyncio.get_running_loop().create_future()
                self._waiting.add(future)
                try:
                    await future
                finally:
                    self._waiting.discard(future)
