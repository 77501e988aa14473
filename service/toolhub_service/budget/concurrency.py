"""Slots for calls in flight: a count, and a queue of waiting calls, bounded in length and in time.

A call that would not get its slot before its deadline, at the present rate, is refused at once (load shedding: Google
SRE book, chapter 21). Slots go to tenants in turn, and within a tenant, or without tenants, first come, first served.
"""

from __future__ import annotations

import asyncio
from collections import deque

# Weight of the newest call in the average holding time.
_PACE_WEIGHT = 0.1


class Slots:
    """Allows `limit` calls at once."""

    __slots__ = ("_held_s", "_waiting", "in_use", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0
        # By tenant, in the order of their turns; no queue is empty. Without tenants, all are under the empty name.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._held_s = 0.0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    @property
    def is_idle(self) -> bool:
        return self.in_use == 0 and not self._waiting

    def has_room(self) -> bool:
        return self.in_use < self.limit and not self._waiting

    def expected_wait_s(self, tenant: str = "") -> float:
        """Return how long one more call would wait at the present rate; 0 while that is unknown."""
        own = self.waiting_of(tenant) + 1  # in each round every other tenant has one turn while it waits
        before = sum(min(own, len(turns)) for name, turns in self._waiting.items() if name != tenant)
        return (own + before) * self._held_s / self.limit

    def take(self) -> None:
        """Take a slot; call only after `has_room`."""
        self.in_use += 1

    def try_take(self) -> bool:
        """Take a slot if one is free, and return whether it was."""
        if self.in_use >= self.limit or self._waiting:
            return False
        self.in_use += 1
        return True

    async def wait(self, timeout_s: float, tenant: str = "") -> None:
        """Wait for a slot and take it. Raises TimeoutError; a cancelled wait takes nothing."""
        if self.has_room():
            self.in_use += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._hand_over()
            elif turn in (turns := self._waiting.get(tenant, deque())):
                turns.remove(turn)
                if not turns:
                    del self._waiting[tenant]
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
            tenant, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            del self._waiting[tenant]
            if turns:
                self._waiting[tenant] = turns  # to the end of the order
            if not turn.done():
                turn.set_result(None)
                return
        self.in_use -= 1
