"""Limits for calls in flight: of one session by the bytes of their arguments, of all sessions by number.

An RPC has one call and at most 4 MiB of arguments, and admission counts RPCs. A session has hundreds of calls in one
RPC, so it needs limits of its own. Every session may always have one call, as any RPC may, so that none starves because
of others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from toolhub_service.transport.session_calls import HELD_MAX_BYTES, SendQueue

ARGS_MAX_BYTES = 4 * 1024 * 1024
"""Limit for the calls in flight of one session; at this size no further call begins."""


class SharedLimit:
    """Counts the calls in flight of all sessions, except the first of each."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most
        self._waiting: deque[Limiter] = deque()

    def wait(self, limiter: Limiter) -> None:
        if not limiter.is_waiting:
            limiter.is_waiting = True
            self._waiting.append(limiter)

    def remove(self, count: int) -> None:
        """Remove calls from the count, and wake sessions for which there is room, the longest waiting first."""
        self.count -= count
        while self._waiting and self.count < self.most:
            limiter = self._waiting.popleft()
            limiter.is_waiting = False
            if limiter.wake_if_free():
                return


class Limiter:
    """Counts the calls of one session that have begun and whose answers have not left."""

    def __init__(self, shared: SharedLimit, most: int, queue: SendQueue) -> None:
        self.is_waiting = False
        """Whether the shared limit has it in its queue; set by the shared limit only."""
        self._shared = shared
        self._most = most
        self._queue = queue
        self._calls = 0
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Return whether one more call may begin."""
        if self._queue.held_bytes > HELD_MAX_BYTES:
            return False
        shared = self._shared
        return not self._calls or (
            self._calls < self._most and self._bytes < ARGS_MAX_BYTES and shared.count < shared.most
        )

    def take(self, size_bytes: int) -> None:
        """Count a call with arguments of this size."""
        if self._calls:
            self._shared.count += 1
        self._calls += 1
        self._bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop counting a call whose answer has left."""
        self._calls -= 1
        self._bytes -= size_bytes
        if self._calls:
            self._shared.remove(1)
        if self._wake is not None:
            self.wake_if_free()

    async def wait(self) -> None:
        """Wait until there may be room."""
        if self._calls and self._shared.count >= self._shared.most:
            self._shared.wait(self)
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    def wake_if_free(self) -> bool:
        """Wake the waiting task if there is room, and return whether it was woken."""
        if self._wake is None or self._wake.done() or not self.has_room():
            return False
        self._wake.set_result(None)
        return True

    def close(self) -> None:
        """Reset the counts: no call is in flight any more, whether its answer has left or not."""
        beyond_first = max(0, self._calls - 1)
        self._calls = 0
        self._wake = None
        self._shared.remove(beyond_first)
