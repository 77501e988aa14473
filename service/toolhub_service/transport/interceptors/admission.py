"""Shed load early: a hub that is full, or leaving, answers at once and says when to come back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc

from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method, ServicerContext
from toolhub_service.transport.status import RpcFailure

WATCHES = frozenset({"WatchJob", "WatchApprovals", "WatchTools", "TailEvents"})
"""Streams that mostly wait: they must not use up the room of calls, nor be bounded by it."""


class AdmissionLayer(Layer):
    """Counts RPCs in flight, watches apart from the others; health and reflection always pass."""

    def __init__(self, max_in_flight: int, max_watches: int = 10_000) -> None:
        self._max_in_flight = max_in_flight
        self._max_watches = max_watches
        self.in_flight = 0
        """All of them."""
        self.watches = 0
        self.draining = False
        self._empty = asyncio.Event()

    def enter(self, method: Method, context: ServicerContext) -> bool:
        if method.is_open:
            return False
        if self.draining:
            raise RpcFailure(
                grpc.StatusCode.UNAVAILABLE, "DRAINING", "This hub is leaving; connect again.", retry_after_s=0.5
            )
        if method.name in WATCHES:
            if self.watches >= self._max_watches:
                raise _overloaded("watches", "max_watches", self._max_watches)
            self.watches += 1
        elif self.in_flight - self.watches >= self._max_in_flight:
            raise _overloaded("calls", "max_in_flight", self._max_in_flight)
        self.in_flight += 1
        return True

    def leave(self, method: Method, state: bool | None, context: ServicerContext, error: BaseException | None) -> None:
        if state:
            self.in_flight -= 1
            if method.name in WATCHES:
                self.watches -= 1
            if self.draining and not self.in_flight:
                self._empty.set()

    async def emptied(self, within_s: float) -> None:
        """Once draining: wait until the last RPC has left, for at most `within_s`."""
        if self.in_flight:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), within_s)


def _overloaded(what: str, bound: str, most: int) -> RpcFailure:
    return RpcFailure(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "OVERLOADED",
        f"{most} {what} are in flight, which is all this hub carries; try again shortly.",
        {bound: str(most)},
        retry_after_s=0.25,
    )
