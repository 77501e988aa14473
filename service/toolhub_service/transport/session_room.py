"""How much the calls of sessions may hold: each session's own bounds, and one over all sessions of a process.

An RPC brings one call and 4 MiB of arguments at most, and admission counts RPCs. A session brings hundreds of calls as
one RPC, so that its arguments in flight are bounded by their bytes, and the calls that all sessions have in flight by
their number. Every session may always have one, as any RPC may: none starves for what others do.
"""

from __future__ import annotations

import asyncio
from collections import deque

from toolhub_service.transport.session_outbox import Outbox

ARGS_MAX_BYTES = 4 * 1024 * 1024
"""Of the calls of one session that are in flight. While they hold as much, no further one begins."""


class Crowd:
    """Calls in flight of all sessions, but for the first of each."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._waiting: deque[Room] = deque()

    @property
    def is_full(self) -> bool:
        return self.count >= self._most

    def wait(self, room: Room) -> None:
        if not room.is_waiting:
            room.is_waiting = True
            self._waiting.append(room)

    def left(self, count: int) -> None:
        """Let as many sessions go on as there is room for: who waited longest goes first."""
        self.count -= count
        while self._waiting and not self.is_full:
            room = self._waiting.popleft()
            room.is_waiting = False
            if room.look_again():
                return


class Room:
    """For the calls of one session that were begun and not handed over yet."""

    def __init__(self, crowd: Crowd, most: int, outbox: Outbox) -> None:
        self.is_waiting = False
        """Whether the crowd knows that it waits; the crowd's own mark."""
        self._crowd = crowd
        self._most = most
        self._outbox = outbox
        self._calls = 0
        self._bytes = 0
        self._bell: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Whether one more call may begin."""
        if self._outbox.is_full:
            return False
        return not self._calls or (
            self._calls < self._most and self._bytes < ARGS_MAX_BYTES and not self._crowd.is_full
        )

    def take(self, size_bytes: int) -> None:
        """A call with arguments of so many bytes begins."""
        if self._calls:
            self._crowd.count += 1
        self._calls += 1
        self._bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """It was handed over."""
        self._calls -= 1
        self._bytes -= size_bytes
        if self._calls:
            self._crowd.left(1)
        self.look_again()

    async def wait(self) -> None:
        """Until it may be free."""
        if self._calls and self._crowd.is_full:
            self._crowd.wait(self)
        self._bell = asyncio.get_running_loop().create_future()
        await self._bell

    def look_again(self) -> bool:
        """Whether it has let somebody go on."""
        if self._bell is None or self._bell.done() or not self.has_room():
            return False
        self._bell.set_result(None)
        return True

    def close(self) -> None:
        """Nothing is in flight any more, handed over or not."""
        beyond_first, self._calls, self._bell = max(0, self._calls - 1), 0, None
        self._crowd.left(beyond_first)
