"""A turnstile in which one piece of work passes in each turn of the event loop.

Several upstreams may send floods at once, each in pieces of a few milliseconds; side by side, in one turn of the loop,
a hundred of them would still hold up everybody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class Turnstile:
    """Lets one waiter pass per turn of the loop, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def pass_through(self) -> None:
        """Wait for a turn of the loop in which no other waiter passes."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._let_one_pass, loop)
        await turn

    def _let_one_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a waiter may have been cancelled
                turn.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._let_one_pass, loop)


_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, Turnstile] = WeakKeyDictionary()


async def pass_turnstile() -> None:
    """Wait before a piece of work for which an upstream, not a caller, decides how much of it there is: one such piece
    runs per turn of the loop, however many upstreams send."""
    loop = asyncio.get_running_loop()
    turnstile = _turnstiles.get(loop)
    if turnstile is None:
        turnstile = _turnstiles[loop] = Turnstile()
    await turnstile.pass_through()
