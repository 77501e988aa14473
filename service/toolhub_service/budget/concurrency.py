"""Slots for calls in flight: a count, and a queue of those who wait their turn, bounded in length and in time.

A call that could not get its slot before its deadline, by the present pace, is refused at once instead of made to wait
for nothing (load shedding: Google SRE book, chapter 21). Slots are handed over first come, first served.
"""

from __future__ import annotations

import asyncio
from collections import deque

# How much the newest call moves the average holding time.
_PACE_WEIGHT = 0.1


class Slots:
    """`limit` calls at once."""

    __slots__ = ("_held_s", "_waiting", "in_use", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._held_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return self.in_use == 0 and not self._waiting

    def has_room(self) -> bool:
        return self.in_use < self.limit and not self._waiting

    def expected_wait_s(self) -> float:
        """How long one more would wait by the present pace; 0 while that is unknown."""
        return (len(self._waiting) + 1) * self._held_s / self.limit

    def take(self) -> None:
        """Take a slot; only after `has_room`."""
        self.in_use += 1

    def try_take(self) -> bool:
        """Whether a slot was free, and is taken now."""
        if self.in_use >= self.limit or self._waiting:
            return False
        self.in_use += 1
        return True

    async def wait(self, timeout_s: float) -> None:
        """Wait for a slot and take it. Raises TimeoutError; a cancelled wait takes nothing."""
        if self.has_room():
            self.in_use += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._hand_over()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give_back(self, held_s: float | None = None) -> None:
        """Return a slot; `held_s` is how long a call ran in it, None when none did."""
        if held_s is not None:
            self._held_s += _PACE_WEIGHT * (held_s - self._held_s) if self._held_s else held_s
        if self._waiting:
            self._hand_over()
        else:
            self.in_use -= 1

    def _hand_over(self) -> None:
        while self._waiting and self.in_use <= self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.in_use -= 1
