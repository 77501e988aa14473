"""A bound on work done for untrusted text (templates, queries), counted in steps instead of seconds.

Steps are the same on every machine, so a call that is refused is always refused, and tests need no clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.registry.turns import beside_others
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.off_loop import off_loop

AT_ONCE_STEPS: Final = 3_000
"""On the event loop: a few milliseconds."""

L = TypeVar("L")
T = TypeVar("T")


class OutOfSteps(ToolFailure):
    """INVALID_INPUT: the work is used up."""


class StepBudget:
    """How much work is left. One step is roughly half a microsecond."""

    __slots__ = ("_advice", "_left", "_steps_max")

    def __init__(self, steps_max: int, advice: str) -> None:
        self._left = self._steps_max = steps_max
        self._advice = advice

    @property
    def left(self) -> int:
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Raises OutOfSteps when the work is used up."""
        self._left -= steps
        if self._left < 0:
            told = f"This takes more than the {self._steps_max} steps that one call may use. {self._advice}"
            raise OutOfSteps(refuse(ErrorKind.INVALID_INPUT, told, max_steps=self._steps_max).error)


class LongSteps:
    """Work of one tool: most takes few steps and is done at once; what takes more is begun again beside other calls, in
    a thread, one at a time."""

    def __init__(self) -> None:
        self._running = asyncio.Lock()

    async def run(self, work: Callable[[L], T], at_once: L, limits: L, context: ToolContext) -> T:
        """What `work(limits)` returns. `at_once` are the same limits with few steps. Raises what the work raises."""
        try:
            return work(at_once)
        except OutOfSteps:
            context.is_large = True

        def aside(_: threading.Event) -> T:
            return beside_others(lambda: work(limits))

        async with self._running:
            return await off_loop(aside)
