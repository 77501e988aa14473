"""Load shedding: a hub that is full, or shutting down, refuses at once and says when to retry.

Watches are limited twice: all of them before the caller is known, and each principal's share of them (`may_take` in
domain/verdict.py) afterwards, so that no principal can use them all up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Final

from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Sleep
from toolhub_service.domain.shares import may_take
from toolhub_service.transport.rpc import Layer, Method, ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure

WATCHES = frozenset({"WatchJob", "WatchJobs", "WatchApprovals", "WatchTools", "TailEvents"})
"""Streams that mostly wait: they have a limit of their own, apart from that of calls."""


# Refusals of one tenant that are sent at once, and the seconds between further ones.
_PROMPT: Final = 20
_PACE_S: Final = 0.01
# No tenant and no principal has it in its name.
_STRANGER: Final = "\0"


class Refusals:
    """Paces refusals: whoever tries again at once gets its answers later, at most a hundred a second.

    gRPC has one queue for all, in which calls of others wait behind each refusal. One that is held back keeps one of
    the streams of its connection, and gRPC resets what comes beyond those, without the event loop.
    """

    def __init__(self, most: int = 1_000, most_of_strangers: int = 4_000) -> None:
        """At most so many refusals are held back at once, and for one tenant half of what is free of `most`; others are
        sent at once. Strangers, whose credential was not accepted, have room of their own."""
        self._most = most
        self._most_of_strangers = most_of_strangers
        self.held = 0
        """Of tenants."""
        self.held_of_strangers = 0
        self.held_calls = 0
        """Held refusals of calls, not of watches."""
        self._of: Counter[str] = Counter()
        # When the newest refusal of a share is sent, on the loop's clock; the share refused longest ago comes first.
        self._leaves_s: dict[str, float] = {}

    async def pace(self, share: str, method: Method) -> None:
        """Return when the refusal of a known caller may be sent."""
        if not share or not may_take(self._of[share], self.held, self._most):
            return
        wait_s = self._wait_s(share)
        if not wait_s:
            return
        self._of[share] += 1
        self.held += 1
        try:
            await self._hold(wait_s, method)
        finally:
            self.held -= 1
            self._of[share] -= 1
            if not self._of[share]:
                del self._of[share]

    async def pace_stranger(self, peer: str, method: Method) -> None:
        """Return when an RPC without an accepted credential may be refused. `peer`: the address in gRPC's form, whose
        port does not count, because each new connection has another one."""
        await self._pace_unknown(peer.rpartition(":")[0], method)

    async def pace_open(self, peer: str, method: Method) -> None:
        """Return when an RPC that needs no credential may be answered: by connection, so that the health checks of a
        proxy do not wait behind what it carries."""
        await self._pace_unknown(peer, method)

    async def _pace_unknown(self, share: str, method: Method) -> None:
        if self.held_of_strangers >= self._most_of_strangers:
            return
        wait_s = self._wait_s(_STRANGER + share)
        if not wait_s:
            return
        self.held_of_strangers += 1
        try:
            await self._hold(wait_s, method)
        finally:
            self.held_of_strangers -= 1

    async def _hold(self, wait_s: float, method: Method) -> None:
        is_call = method.name not in WATCHES and not method.is_open
        self.held_calls += is_call
        try:
            await asyncio.sleep(wait_s)
        finally:
            self.held_calls -= is_call

    def _wait_s(self, share: str) -> float:
        """Return how long until the share's next slot; 0: it may be answered now."""
        now_s = asyncio.get_running_loop().time()
        return max(0.0, self._slot(share, now_s) - now_s)

    def _slot(self, share: str, now_s: float) -> float:
        """Return the time of the next slot by the generic cell rate algorithm (ITU-T I.371)."""
        earliest_s = now_s - _PROMPT * _PACE_S
        leaves_s = max(self._leaves_s.pop(share, 0.0), earliest_s) + _PACE_S
        self._leaves_s[share] = leaves_s
        while self._leaves_s[oldest := next(iter(self._leaves_s))] <= earliest_s:
            del self._leaves_s[oldest]
        return leaves_s


class AdmissionLayer(Layer):
    """Counts RPCs in flight, watches separately; health and reflection always pass."""

    def __init__(self, max_in_flight: int, max_watches: int = 10_000) -> None:
        self._max_in_flight = max_in_flight
        self.refusals = Refusals()
        """Held refusals do not count against the limit of calls."""
        self._max_watches = max_watches
        self.in_flight = 0
        """Watches included."""
        self.watches = 0
        self.draining = False
        self.refused = 0
        """Number of refusals since draining began."""
        self._empty = asyncio.Event()

    def concerns(self, hook: str, method: Method) -> bool:
        return super().concerns(hook, method) and not method.is_open

    def enter(self, method: Method, context: ServicerContext) -> None:
        if self.draining:
            self.refused += 1
            raise RpcFailure(Reason.DRAINING, "This hub is shutting down. Connect again.")
        if method.name in WATCHES:
            if self.watches >= self._max_watches:
                raise _overload_failure("watches", "max_watches", self._max_watches)
            self.watches += 1
        elif self.in_flight - self.watches - self.refusals.held_calls >= self._max_in_flight:
            raise _overload_failure("calls", "max_in_flight", self._max_in_flight)
        self.in_flight += 1

    def leave(self, method: Method, state: None, context: ServicerContext, error: BaseException | None) -> None:
        self.in_flight -= 1
        if method.name in WATCHES:
            self.watches -= 1
        if self.draining and not self.in_flight:
            self._empty.set()

    async def wait_until_quiet(self, quiet_s: float, within_s: float, sleep: Sleep = asyncio.sleep) -> None:
        """Once draining: wait until no RPC has arrived for `quiet_s`, for at most `within_s`."""
        for _ in range(int(within_s / quiet_s)):
            refused = self.refused
            await sleep(quiet_s)
            if self.refused == refused:
                return

    async def wait_until_empty(self, within_s: float) -> None:
        """Once draining: wait until the last RPC has ended, for at most `within_s`."""
        if self.in_flight:
            with suppress(TimeoutError):  # RPCs still in flight end with the server
                await asyncio.wait_for(self._empty.wait(), within_s)


def _overload_failure(what: str, bound: str, most: int) -> RpcFailure:
    return RpcFailure(
        Reason.OVERLOADED,
        f"{most} {what} are in flight, which is the limit of this hub. Try again shortly.",
        {bound: str(most)},
    )


class TenantShares:
    """Calls in flight by tenant, as `WatchSharesLayer` counts watches. It is not a layer, so that calls cost nothing
    more where there are no tenants."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._of: Counter[str] = Counter()

    def take(self, tenant: str) -> None:
        """Count the RPC until its task ends. Raises RpcFailure when the tenant's share is used up."""
        own = self._of[tenant]
        serving = asyncio.current_task()
        if not may_take(own, self._of.total(), self._max_in_flight):
            raise RpcFailure(
                Reason.OVERLOADED,
                f"Your tenant has {own} calls in flight, which is its share of {self._max_in_flight}. Try again "
                "shortly.",
                {"max_in_flight": str(self._max_in_flight), "yours": str(own)},
            )
        assert serving is not None  # each RPC is served in its own task
        self._of[tenant] += 1
        serving.add_done_callback(lambda _: self._give_back(tenant))

    def _give_back(self, tenant: str) -> None:
        self._of[tenant] -= 1
        if not self._of[tenant]:
            del self._of[tenant]


class WatchSharesLayer(Layer):
    """Placed after `AuthLayer`."""

    def __init__(self, max_watches: int) -> None:
        self._max_watches = max_watches
        self._watches = 0
        self._of: Counter[str] = Counter()

    def concerns(self, hook: str, method: Method) -> bool:
        return super().concerns(hook, method) and method.name in WATCHES and not method.is_open

    def enter(self, method: Method, context: ServicerContext) -> str:
        """Count the watch, and return its principal's share."""
        share = current_principal().share
        own = self._of[share]
        if not may_take(own, self._watches, self._max_watches):
            raise self._refusal(own)
        self._of[share] += 1
        self._watches += 1
        return share

    def leave(self, method: Method, state: str, context: ServicerContext, error: BaseException | None) -> None:
        self._watches -= 1
        self._of[state] -= 1
        if not self._of[state]:
            del self._of[state]

    def _refusal(self, own: int) -> RpcFailure:
        return RpcFailure(
            Reason.WATCH_SHARE_TAKEN,
            f"You have {own} watch streams open, which is your share of {self._max_watches}. Close some, or watch "
            "several objects with one stream.",
            {"max_watches": str(self._max_watches), "yours": str(own)},
        )
