"""Cooperative scheduling of long work: in slices on the event loop or in a thread, with its processor time counted.

On the loop, work that has used it for 5 ms pauses for as long. `cli/serve.py` sets how long a thread may keep the GIL
from the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

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
