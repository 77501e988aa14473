"""Turns on the event loop: when many calls are ready at once, one begins, and then another tenant's.

A turn is the time from the start of a call to its first wait; a call that waits for an upstream holds none. gRPC passes
calls to a server in order of arrival, whoever sends them: if each began at once, a flood would wait where its tenant is
not known yet, and all others behind it. So the next turn begins when the loop is quiet, because then everything that
has arrived has been admitted and is known. Waiting calls are served by start-time fair queueing (Goyal, Vin, Cheng:
SIGCOMM 1996), by tenant, or by principal where there are no tenants: one that has had less than the others goes first,
and of two that always wait each gets half.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final

from toolhub_service.domain.shares import may_take

# Rounds of the loop without an arrival after which it is quiet: an RPC takes four from gRPC's thread to the front, and
# while others wait that thread gets time to deliver the next one.
_IDLE_ROUNDS: Final = 4
_QUIET_ROUNDS: Final = 15
# Rounds with arrivals after which a turn begins all the same: arrivals alone serve nobody.
_BUSY_ROUNDS_MAX: Final = 64
REMEMBERED_MAX: Final = 4_096
"""Tenants, or principals, whose last turn is remembered: tokens may name any number that call only once."""


class Turns:
    """The turns of one loop, for all interfaces."""

    def __init__(self, most: int = 1_000, on_wait: Callable[[float], None] = lambda _: None) -> None:
        """`most` limits the waiting calls, see `may_wait`. `on_wait` is called with the seconds that each has
        waited."""
        self.most = most
        self._on_wait = on_wait
        self.waiting = 0
        self.arrivals = 0
        """RPCs admitted since the start."""
        self.is_shared = False
        """Whether there has been more than one tenant. Until then all calls begin at once, because there is nobody to
        be fair to."""
        self.first = ""
        """The tenant that called first."""
        self._is_taken = False
        # Waiting calls by tenant, with the number of calls that each makes in its turn; a queue is empty only after
        # cancellation.
        self._waiting: dict[str, OrderedDict[asyncio.Future[None], int]] = {}
        # Heap of (virtual time at which the tenant's next turn may start, order of entry, tenant).
        self._starts: list[tuple[int, int, str]] = []
        self._order = count()
        # Virtual time: the start of the newest turn, counted in calls of a tenant that always waits.
        self._now = 0
        # When the newest turn of a tenant ends, if in the future; oldest first.
        self._ends: dict[str, int] = {}
        self._seen = self._quiet_rounds = self._busy_rounds = 0

    @property
    def remembered_tenants(self) -> int:
        """Return the number of tenants whose newest turn's end is remembered."""
        return len(self._ends)

    def waiting_of(self, share: str) -> int:
        return len(self._waiting.get(share, ()))

    def may_wait(self, share: str) -> bool:
        """Return whether one more of the tenant may wait: each uses at most half of the places that it leaves free."""
        return may_take(self.waiting_of(share), self.waiting, self.most)

    async def take(self, share: str, calls: int = 1) -> None:
        """Return when this many calls of the tenant may begin: at once, if none has begun since the loop was quiet."""
        if not self.is_shared:
            self.first = self.first or share
            self.is_shared = self.first != share
            if not self.is_shared:
                return
        if not self._is_taken:
            self._is_taken = True
            self._quiet_rounds = self._busy_rounds = 0
            self._begin(share, max(self._now, self._ends.get(share, 0)), calls)
            asyncio.get_running_loop().call_soon(self._check_round)
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(share)
        if waiting is None:
            waiting = self._waiting[share] = OrderedDict()
            self._enqueue(share, max(self._now, self._ends.get(share, 0)))
        waiting[turn] = calls
        self.waiting += 1
        since_s = monotonic()
        try:
            await turn
            self._on_wait(monotonic() - since_s)
        except asyncio.CancelledError:
            if waiting.pop(turn, None) is not None:  # else its turn had come
                self.waiting -= 1
            raise

    def _check_round(self) -> None:
        """Called in each round of the event loop while a turn is taken: begins the next one when it is due."""
        if self.arrivals != self._seen and self._busy_rounds < _BUSY_ROUNDS_MAX:
            self._seen = self.arrivals
            self._busy_rounds += 1
            self._quiet_rounds = 0
        else:
            self._quiet_rounds += 1
        if self._quiet_rounds >= (_QUIET_ROUNDS if self.waiting else _IDLE_ROUNDS):
            self._quiet_rounds = self._busy_rounds = 0
            self._is_taken = self._next()
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._check_round)

    def _next(self) -> bool:
        """Begin the next turn, and return whether there was one."""
        while self._starts:
            start, _, share = heappop(self._starts)
            waiting = self._waiting[share]
            while waiting:
                turn, calls = waiting.popitem(last=False)
                self.waiting -= 1
                if turn.done():  # cancelled in this round
                    continue
                self._begin(share, start, calls)
                turn.set_result(None)
                if waiting:
                    self._enqueue(share, start + calls)
                else:
                    del self._waiting[share]
                return True
            del self._waiting[share]
        return False

    def _enqueue(self, share: str, start: int) -> None:
        heappush(self._starts, (start, next(self._order), share))

    def _begin(self, share: str, start: int, calls: int) -> None:
        self._now = start
        self._ends.pop(share, None)
        self._ends[share] = start + calls
        while (oldest := next(iter(self._ends))) != share and (
            self._ends[oldest] <= start or len(self._ends) > REMEMBERED_MAX
        ):
            del self._ends[oldest]
