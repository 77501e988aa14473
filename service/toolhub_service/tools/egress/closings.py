"""Closings under way: each runs to its end whatever becomes of the call that began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Closings:
    """A cancelled call must not leave half of what it was closing open, so it never waits for the closing."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run it in a task of its own."""
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Wait for those under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
