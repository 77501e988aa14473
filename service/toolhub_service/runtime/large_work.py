"""Processing of large values beside the calls of others: one piece at a time in the process, principals in turn.

Each piece runs in a thread that alternates with the loop in short turns. Its processor time is charged to its principal
(both aio/cooperative.py): a principal that has used up its allowance is served no faster than its share of a
processor, and work that could not begin soon is refused before any of it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from toolhub_service.aio.cooperative import CpuClock, CpuMeter, in_thread
from toolhub_service.aio.cpu_share import CpuShare
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.ports import Clock

SHARE: Final = 0.5
"""Share of one processor for one principal's large work, once its allowance is used up."""
ALLOWANCE_S: Final = 2.0
"""In seconds of processor time."""
MAX_WAIT_S: Final = 2.0
"""Longest wait for a principal's own share; a call that would wait longer is refused with the time to retry after."""
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Limit for one principal."""
# Most principals whose shares are kept; the oldest is dropped first.
_MAX_PRINCIPALS: Final = 4_096

T = TypeVar("T")


class _Waiting(NamedTuple):
    turn: asyncio.Future[None]
    size_bytes: int


class LargeWork:
    """Belongs to one event loop."""

    def __init__(self, clock: Clock, cpu_s: CpuClock | None = None) -> None:
        """`cpu_s` returns the processor time of the calling thread."""
        self._clock = clock
        self._cpu_s = cpu_s
        self._is_busy = False
        # Waiting work by principal, in the order of their turns; no queue is empty.
        self._queues: dict[str, deque[_Waiting]] = {}
        self._shares: dict[str, CpuShare] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def admit(self, principal_id: str, size_bytes: int) -> None:
        """Raises ToolFailure RATE_LIMITED, with `retry_after_s`, when the principal has used too much to begin soon."""
        share = self._shares.get(principal_id)
        wait_s = 0.0 if share is None else share.due_s - self._clock.monotonic_s()
        if wait_s > MAX_WAIT_S:
            raise _refusal("your calls with large arguments have used up your share", wait_s)
        queue = self._queues.get(principal_id, ())
        waiting_bytes = sum(waiting.size_bytes for waiting in queue if not waiting.turn.done())
        if waiting_bytes and waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise _refusal("too many of your calls with large arguments are waiting", max(wait_s, 1.0))

    async def run(
        self,
        principal_id: str,
        size_bytes: int,
        work: Callable[..., T],
        *args: Any,
        before: Callable[[], None] | None = None,
    ) -> T:
        """Run the work in its turn and return its result. `before` is called when the turn has come; if it raises, the
        work is not done.

        A thread cannot be stopped: when the caller is cancelled while it runs, the turn lasts until it ends.
        """
        await self._turn(principal_id, size_bytes)
        try:
            if before is not None:
                before()
        except BaseException:
            self._go_on()
            raise
        return await asyncio.shield(asyncio.ensure_future(self._run_charged(principal_id, work, args)))

    async def _run_charged(self, principal_id: str, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        meter = CpuMeter() if self._cpu_s is None else CpuMeter(self._cpu_s)
        try:
            return await meter.run(in_thread(work, *args))
        finally:
            self._share(principal_id).charge(meter.used_s, self._clock.monotonic_s())
            self._go_on()

    async def _turn(self, principal_id: str, size_bytes: int) -> None:
        waiting = _Waiting(asyncio.get_running_loop().create_future(), size_bytes)
        self._queues.setdefault(principal_id, deque()).append(waiting)
        if not self._is_busy:
            self._go_on()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._go_on()  # the turn had already come
            raise

    def _go_on(self) -> None:
        """Give the turn to the next principal whose share allows it, and move that principal to the end of the
        order."""
        self._is_busy = False
        now_s, first_due_s = self._clock.monotonic_s(), float("inf")
        for principal_id in list(self._queues):
            queue = self._queues[principal_id]
            while queue and queue[0].turn.done():
                queue.popleft()  # its caller no longer waits
            if not queue:
                del self._queues[principal_id]
                continue
            share = self._shares.get(principal_id)
            if share is not None and share.due_s > now_s:
                first_due_s = min(first_due_s, share.due_s)
                continue
            del self._queues[principal_id]
            waiting = queue.popleft()
            if queue:
                self._queues[principal_id] = queue
            self._is_busy = True
            waiting.turn.set_result(None)
            return
        self._wake_in(first_due_s - now_s)

    def _wake_in(self, wait_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wait_s < float("inf"):
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._woken)

    def _woken(self) -> None:
        if not self._is_busy:
            self._go_on()

    def _share(self, principal_id: str) -> CpuShare:
        share = self._shares.get(principal_id)
        if share is None:
            if len(self._shares) >= _MAX_PRINCIPALS:
                del self._shares[next(iter(self._shares))]
            share = self._shares[principal_id] = CpuShare(share=SHARE, allowance_s=ALLOWANCE_S)
        return share


def _refusal(why: str, wait_s: float) -> ToolFailure:
    return ToolFailure(
        ToolError(
            kind=ErrorKind.RATE_LIMITED,
            message=f"The call was refused unread: {why}. Wait {wait_s:.1f} seconds, then send it again unchanged. "
            "A few long strings cost less than many values.",
            retry_after_s=wait_s,
            details={"limit": "large-arguments"},
        )
    )
