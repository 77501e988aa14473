"""Pools of connections, one for each set of opened networks.

This makes reuse safe: a connection to an address that one rule opened is never given to a request whose rules would
not have allowed it. When there are more than a few pools, the least recently used ones are closed.

httpcore can lose a connection when a call is cancelled at certain points (it then is neither idle nor closed and
occupies a place for ever). So after an exchange that did not end cleanly the pool's busy connections are counted:
more of them than exchanges means a loss, and the pool is retired: it accepts no new exchange, and its last one closes
it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import httpcore

from toolhub_service.egress.closings import Closings
from toolhub_service.guards.addresses import Networks

POOLS_MAX = 8


@dataclass(slots=True, eq=False)
class Pool:
    """Connections of one set of networks."""

    connections: httpcore.AsyncConnectionPool
    exchanges: int = 0
    """Running exchanges."""
    is_retired: bool = False

    @property
    def has_lost_some(self) -> bool:
        busy = sum(not (known.is_idle() or known.is_closed()) for known in self.connections.connections)
        return busy > self.exchanges


class Pools:
    """The pools by the networks they may reach."""

    def __init__(self, make: Callable[[Networks], httpcore.AsyncConnectionPool], closings: Closings) -> None:
        self._make = make
        self._closings = closings
        self._pools: OrderedDict[Networks, Pool] = OrderedDict()
        self._is_closed = False

    def enter(self, networks: Networks) -> Pool:
        """Return the pool for an exchange, which ends with `leave`."""
        pool = self._pools.get(networks)
        if pool is None:
            pool = Pool(self._make(networks), is_retired=self._is_closed)
            if not self._is_closed:
                self._pools[networks] = pool
        else:
            self._pools.move_to_end(networks)
        pool.exchanges += 1
        while len(self._pools) > POOLS_MAX:
            self._retire(self._pools.popitem(last=False)[1])
        return pool

    def leave(self, pool: Pool, *, cleanly: bool) -> None:
        """`cleanly`: the response was read to its end and its connection returned to the pool."""
        pool.exchanges -= 1
        if pool.is_retired:
            self._close_if_unused(pool)
        elif not cleanly and pool.has_lost_some:
            self._pools = OrderedDict((key, kept) for key, kept in self._pools.items() if kept is not pool)
            self._retire(pool)

    def close(self) -> None:
        """Close idle connections now, the others when their exchanges end."""
        self._is_closed = True
        while self._pools:
            self._retire(self._pools.popitem()[1])

    def _retire(self, pool: Pool) -> None:
        pool.is_retired = True
        self._close_if_unused(pool)

    def _close_if_unused(self, pool: Pool) -> None:
        if not pool.exchanges:
            self._closings.begin(pool.connections.aclose())
