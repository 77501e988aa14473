"""Running closings of connections: each runs to its end, even when the call that began it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Closings:
    """Closes connections in tasks, so that a cancelled call, which does not wait for them, leaves none half closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run the closing in its own task."""
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait for the running closings."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
