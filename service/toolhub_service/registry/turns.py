"""Long work on the event loop in turns: whoever has held it for 5 ms lets others have it for as long.

Work in a thread takes turns with the loop at the interpreter's lock: every 5 ms, which the loop would wait for after
each of its steps, or, while such work is under way, every half.
What such work costs is counted by a `Meter` around it, wherever it runs: in turns on the loop, or in a thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

TURN_S: Final = 0.005
SWITCH_S: Final = 0.0005
"""Between turns at the interpreter's lock beside work in a thread."""

CpuClock = Callable[[], float]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Turns:
    """One piece of work, from its making on. Call `given` wherever the work can be left."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def given(self) -> float:
        """Give others a turn when it is time; how many seconds the work has had since it gave the last one."""
        took_s = time.perf_counter() - self._began_s
        if took_s > TURN_S:
            await asyncio.sleep(took_s)
            self._began_s = time.perf_counter()
        return took_s


async def in_turns(work: Generator[None, None, _T]) -> _T:
    """What the work returns; it yields wherever it can be left."""
    turns = Turns()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("_T", end.value)
        await turns.given()


class Meter:
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
    return await asyncio.to_thread(beside_others, step if meter is None else partial(meter.step, step))


def beside_others(work: Callable[[], _T]) -> _T:
    """What the work returns. To be called in its thread: turns are short for as long as it runs there, whether anybody
    still waits for it or not."""
    with _short_turns:
        return work()


class _ShortTurns:
    """At the interpreter's lock, while any thread has asked for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._usual_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._asked:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_S)
            self._asked += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._asked -= 1
            if not self._asked:
                sys.setswitchinterval(self._usual_s)


class _Stepped:
    """A coroutine driven step by step."""

    def __init__(self, meter: Meter, work: Coroutine[Any, Any, Any]) -> None:
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


_short_turns: Final = _ShortTurns()
_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)
