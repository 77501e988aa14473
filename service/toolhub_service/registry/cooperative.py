"""Cooperative scheduling of long work: in slices on the event loop or in a thread, with its processor time counted.

On the loop, work that has held it for 5 ms pauses for as long. How long a thread may keep the loop from its next step
is set where the process begins (`cli/serve.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

# A token bucket of processor time: work goes ahead at once until it has cost `ALLOWANCE_S`; from then on it takes at
# most `SHARE` of one processor. It bounds the readings of a source that changes all the time, or announces that it has:
# the more they cost, the less often they run; a source that is cheap to read, or read seldom, never waits.

SHARE: Final = 0.1
"""Of one processor, for all readings of one source."""
ALLOWANCE_S: Final = 0.1
"""Of processor time that a source may have had before it must wait."""


class CpuShare:
    """What one source, or one principal, may use."""

    def __init__(self, *, share: float = SHARE, allowance_s: float = ALLOWANCE_S) -> None:
        self._share = share
        self._allowance_s = allowance_s
        self._used_s = 0.0
        self._at_s = 0.0

    def charge(self, cpu_s: float, now_s: float) -> None:
        """`now_s` is on the clock of `due_s`, a monotonic one."""
        self._used_s = max(self._used_s - (now_s - self._at_s) * self._share, 0.0) + cpu_s
        self._at_s = now_s

    @property
    def due_s(self) -> float:
        """When the next piece of work may begin."""
        return self._at_s + max(self._used_s - self._allowance_s, 0.0) / self._share


SLICE_S: Final = 0.005

CpuClock = Callable[[], float]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TimeSlice:
    """One piece of work, from its making on. Await `pause_if_due` wherever the work can be interrupted."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def pause_if_due(self) -> float:
        """Let other tasks run when the slice is used up; the seconds that the work has run since its last pause."""
        took_s = time.perf_counter() - self._began_s
        if took_s > SLICE_S:
            await asyncio.sleep(took_s)
            self._began_s = time.perf_counter()
        return took_s


async def run_in_slices(work: Generator[None, None, _T]) -> _T:
    """What the work returns; it yields wherever it can be interrupted."""
    time_slice = TimeSlice()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("_T", end.value)
        await time_slice.pause_if_due()


class CpuMeter:
    """Counts the processor time of what it runs: only its own steps, not those of others between them."""

    def __init__(self, cpu_s: CpuClock = time.thread_time) -> None:
        """`cpu_s` is the processor time that the thread which asks has had."""
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
    """What the work returns, done in a thread; the meter around this counts it."""
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
