"""A limit on work for untrusted text (templates, queries), counted in steps instead of seconds.

Steps are the same on every machine, so a call that is refused is always refused, and tests need no clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from toolhub_service.aio.threads import to_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.tools.context import ToolContext

AT_ONCE_STEPS: Final = 3_000
"""On the event loop: a few milliseconds."""

L = TypeVar("L")
T = TypeVar("T")


class OutOfSteps(ToolFailure):
    """INVALID_INPUT: the budget is used up."""


class StepBudget:
    """The remaining work. One step is roughly half a microsecond."""

    __slots__ = ("_advice", "_left", "_steps_max")

    def __init__(self, steps_max: int, advice: str) -> None:
        self._left = self._steps_max = steps_max
        self._advice = advice

    @property
    def remaining(self) -> int:
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Raises OutOfSteps when the budget is used up."""
        self._left -= steps
        if self._left < 0:
            message = f"This takes more than the {self._steps_max} steps that one call may use. {self._advice}"
            raise OutOfSteps(refuse(ErrorKind.INVALID_INPUT, message, max_steps=self._steps_max).error)


class LongSteps(Generic[L]):
    """Runs the work of one tool: most takes few steps and runs at once; longer work is restarted in a thread, one at a
    time, beside other calls."""

    def __init__(self, limits: L, at_once: L) -> None:
        """`at_once`: the same limits with few steps."""
        self._limits = limits
        self._at_once = at_once
        self._running = asyncio.Lock()

    async def run(self, work: Callable[[L], T], context: ToolContext) -> T:
        """Return the result of `work(limits)`. Raises what the work raises."""
        try:
            # Most work is short, and a thread costs more: the loop is blocked for AT_ONCE_STEPS at most.
            return work(self._at_once)
        except OutOfSteps:
            context.is_large = True

        def aside(_: threading.Event) -> T:
            return work(self._limits)

        # One at a time: threads share the interpreter's lock, and more of them would slow down every other call.
        async with self._running:
            return await to_thread(aside)
