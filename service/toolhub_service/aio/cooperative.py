"""Cooperative scheduling of long work: in slices on the event loop or in a thread, with its processor time counted.

On the loop, work that has used it for 5 ms pauses for as long. `cli/serve.py` sets how long a thread may keep the GIL
from the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

# A token bucket of processor time: work starts at once until it has used `ALLOWANCE_S`; from then on it takes at most
# `SHARE` of one processor. It bounds the reads of a source that changes, or announces changes, all the time: the more
# they cost, the less often they run; a source that is cheap, or rarely read, never waits.

SHARE: Final = 0.1
"""Share of one processor for all reads of one source."""
ALLOWANCE_S: Final = 0.1
"""Processor time that a source may use before it must wait."""


class CpuShare:
    """The processor time that one source, or one principal, may use."""

    def __init__(self, *, share: float = SHARE, allowance_s: float = ALLOWANCE_S) -> None:
        self._share = share
        self._allowance_s = allowance_s
        self._used_s = 0.0
        self._at_s = 0.0

    def charge(self, cpu_s: float, now_s: float) -> None:
        """Charge used time; `now_s` is on the clock of `due_s`, a monotonic one."""
        self._used_s = max(self._used_s - (now_s - self._at_s) * self._share, 0.0) + cpu_s
        self._at_s = now_s

    @property
    def due_s(self) -> float:
        """Return when the next piece of work may start."""
        return self._at_s + max(self._used_s - self._allowance_s, 0.0) / self._share


SLICE_S: Final = 0.005

CpuClock = Callable[[], float]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TimeSlice:
    """One piece of work, timed from construction. Await `pause_if_due` wherever the work can be interrupted."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def pause_if_due(self) -> float:
        """Let other tasks run when the slice is used up; return the seconds since the last pause."""
        took_s = time.perf_counter() - self._began_s
        if took_s > SLICE_S:
            await asyncio.sleep(took_s)
            self._began_s = time.perf_counter()
        return took_s


async def run_in_slices(work: Generator[None, None, _T]) -> _T:
    """Run the generator in slices and return its result; it yields wherever it can be interrupted."""
    time_slice = TimeSlice()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("_T", end.value)
        await time_slice.pause_if_due()


# Several upstreams may send floods at once, each in pieces of a few milliseconds; side by side, in one turn of
# the loop, a hundred of them would still hold up everybody. So their pieces go through one turnstile.


class Turnstile:
    """Lets one waiter pass per turn of the loop, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def passed(self) -> None:
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
    await turnstile.passed()


class CpuMeter:
    """Counts the processor time of a coroutine's own steps, without those of other tasks between them."""

    def __init__(self, cpu_s: CpuClock = time.thread_time) -> None:
        """`cpu_s` returns the processor time of the calling thread."""
        self._cpu_s = cpu_s
        self.used_s = 0.0

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        before = _meter.set(self)
        try:
            return cast("_T", await _Stepped(self, work))
        finally:
            _meter.reset(before)

    def step(self, work: Callable[[], _T]) -> _T:
        began_s = self._cpu_s()
        try:
            return work()
        finally:
            self.used_s += self._cpu_s() - began_s


async def in_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run the work in a thread and return its result; the surrounding meter counts its time."""
    meter = _meter.get()
    step = partial(work, *args, **kwargs)
    return await asyncio.to_thread(step if meter is None else partial(meter.step, step))


class _Stepped:
    """A coroutine driven step by step."""

    def __init__(self, meter: CpuMeter, work: Coroutine[Any, Any, Any]) -> None:
        self._meter = meter
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        step = partial(self._work.send, None)
        while True:
            try:
                awaited = self._meter.step(step)
            except StopIteration as end:
                return end.value
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - it is the work's
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, None)


_meter: ContextVar[CpuMeter | None] = ContextVar("meter", default=None)
