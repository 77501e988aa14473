"""How many requests a process holds: limits for messages in receipt, for the time of each, and for the bytes of large
ones.

grpc.aio reads the one message of a unary request before it calls the handler, and so before the caller is known. The
front therefore takes every request as a stream and reads its message here, after the layers have admitted the RPC: a
request refused before that occupies no more than a flow-control window in memory (docs/decisions/0023).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections import Counter, deque
from time import monotonic
from typing import Any, Final

import msgspec

from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.shares import may_take
from toolhub_service.transport.rpc import ServicerContext
from toolhub_service.transport.status import RpcFailure

RECEIPTS_MAX = 12
"""Messages in receipt at once: each may be 4 MiB, and is held twice while it is assembled."""
RECEIPT_MAX_S = 30.0
"""The time that a message of 4 MiB takes over a line of 1.1 Mbit/s."""
LARGE_BYTES = 256 * 1024
"""A request of this size or more is counted while its RPC lasts."""
HELD_MAX_BYTES = 32 * 1024 * 1024
"""Limit for all large requests, and half of it for one principal: in use, a request takes several times its own
size."""
_TRIM_AFTER_S = 2.0
# malloc_trim(3) of glibc; musl has none.
_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
# Generations to collect after large requests. A refused request is part of a cycle (an exception, a frame of its
# traceback, the future that raised it), and dozens of them create too few objects to start the collector.
_YOUNG: Final = 1
# How long others wait before the oldest receipt is cancelled to make room.
_PATIENCE_S = 1.0


class Receipts:
    """One per process; it belongs to the event loop of the server."""

    def __init__(
        self, most: int = RECEIPTS_MAX, longest_s: float = RECEIPT_MAX_S, held_max_bytes: int = HELD_MAX_BYTES
    ) -> None:
        self._most = most
        self._longest_s = longest_s
        self._held_max_bytes = held_max_bytes
        # Bytes of large requests in use, by sender.
        self._held: Counter[str] = Counter()
        self._is_trimmed_soon = False
        # Bytes since the last garbage collection.
        self._released_bytes = 0
        # Oldest first.
        self._open: dict[_Receipt, None] = {}
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        # Places of waiters that were woken and have not begun yet.
        self._granted = 0
        self._is_watched = False

    async def message(self, context: ServicerContext, sender: str) -> Any:
        """Return the message of an RPC of `sender`, or grpc.aio.EOF.

        Raises RpcFailure when it took too long, or when others waited for its place.
        """
        if self._waiting or len(self._open) >= self._most // 2:  # below this, no one needs to wait
            await self._turn(sender)
        receipt = _Receipt(sender, monotonic(), asyncio.current_task())
        self._open[receipt] = None
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._watch)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if receipt.is_cut and receipt.task is not None and not receipt.task.uncancel():
                raise RpcFailure(
                    Reason.REQUEST_TOO_SLOW,
                    "The request arrived too slowly. Send it again, or send large content as an artifact.",
                ) from None
            raise
        finally:
            del self._open[receipt]
            if self._waiting:
                self._admit_waiting()

    def hold(self, size_bytes: int, sender: str) -> int:
        """Count a large request until `release`, and return the bytes to release, 0 for one that is not large.

        Raises RpcFailure when the large requests of this sender, or of all, use too much memory.
        """
        if size_bytes < LARGE_BYTES:
            return 0
        own = self._held[sender] + size_bytes
        all_bytes = self._held.total() + size_bytes
        if own > self._held_max_bytes // 2 or all_bytes > self._held_max_bytes:
            raise RpcFailure(
                Reason.OVERLOADED,
                "The memory for large requests is in use. Try again shortly, send fewer at once, or send large "
                "content as an artifact.",
                {"max_bytes": str(HELD_MAX_BYTES // 2)},
            )
        self._held[sender] = own
        return size_bytes

    def release(self, size_bytes: int, sender: str) -> None:
        """Called when the RPC that held these bytes has ended."""
        self._held[sender] -= size_bytes
        if not self._held[sender]:
            del self._held[sender]
        self._released_bytes += size_bytes
        if self._released_bytes >= self._held_max_bytes:
            self._released_bytes = 0
            asyncio.get_running_loop().call_soon(gc.collect, _YOUNG)  # after the frames of this RPC are gone
        if not self._held and not self._is_trimmed_soon and _MALLOC_TRIM is not None:
            self._is_trimmed_soon = True
            asyncio.get_running_loop().call_later(_TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        """Return freed memory of large requests from the C library's arenas to the system, in a thread, because it
        takes long."""
        self._is_trimmed_soon = False
        if not self._held and _MALLOC_TRIM is not None:
            gc.collect(_YOUNG)
            asyncio.get_running_loop().run_in_executor(None, _MALLOC_TRIM, 0)

    async def _turn(self, sender: str) -> None:
        if self._may_begin(sender):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((sender, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((sender, turn))
            raise
        finally:
            if not turn.cancelled():
                self._granted -= 1

    def _may_begin(self, sender: str) -> bool:
        taken = len(self._open) + self._granted
        own = sum(receipt.sender == sender for receipt in self._open)
        return taken < self._most and (own < self._most // 2 or may_take(own, taken, self._most))

    def _admit_waiting(self) -> None:
        """Wake waiters in order; a sender whose share is used up does not delay the others."""
        for sender, turn in list(self._waiting):
            if not turn.done() and self._may_begin(sender):
                self._waiting.remove((sender, turn))
                self._granted += 1
                turn.set_result(None)

    def _watch(self) -> None:
        """Once a second while a message is in receipt: cancel those that take too long, sooner while others wait."""
        now_s = monotonic()
        wanted_by = {sender for sender, _ in self._waiting}
        is_full = len(self._open) >= self._most
        for receipt in self._open:
            is_wanted = bool(wanted_by) and (is_full or receipt.sender in wanted_by)
            is_late = now_s - receipt.began_s >= (_PATIENCE_S if is_wanted else self._longest_s)
            if is_late and not receipt.is_cut and receipt.task is not None:
                receipt.is_cut = True
                receipt.task.cancel()
        self._is_watched = bool(self._open)
        if self._is_watched:
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._watch)


class _Receipt(msgspec.Struct, eq=False, gc=False):
    sender: str
    began_s: float
    """Times are those of `time.monotonic`."""
    task: asyncio.Task[Any] | None
    is_cut: bool = False
