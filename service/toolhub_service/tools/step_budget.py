"""A limit on work for untrusted text (templates, queries), counted in steps instead of seconds.

Steps are the same on every machine, so a call that is refused is always refused, and tests need no clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

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
    def left(self) -> int:
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


# The serialized size of a JSON value: nodes plus characters.
#
# Values built by a query share their parts (`[@,@]` holds one list twice), so the size in memory does not show the
# serialized size; this counts shared parts each time they would be written, and stops when the budget ends.

CHARS_PER_STEP = 64
"""Text is compared and joined at memory speed, so it costs less than visiting nodes."""


def weigh(
    value: Any, budget: StepBudget, chars_per_step: int = CHARS_PER_STEP, *, nodes: StepBudget | None = None
) -> None:
    """Spend a step for each node and for so many characters, and one of `nodes` for each node only. Raises OutOfSteps
    when either budget ends, ToolFailure INVALID_INPUT for a value that JSON cannot hold."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, list | dict):
            budget.spend(1 + len(node))
            if nodes is not None:
                nodes.spend(1 + len(node))
            if isinstance(node, dict):
                for key in node:
                    budget.spend(len(key) // chars_per_step)
            pending += node.values() if isinstance(node, dict) else node
        else:
            budget.spend(1 + len(node) // chars_per_step if isinstance(node, str) else 1)
            _check_scalar(node)


def _check_scalar(value: Any) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise refuse(
            ErrorKind.INVALID_INPUT, "The path computes a number that JSON cannot write (infinite or undefined)."
        )
    if value is not None and not isinstance(value, bool | int | float | str):
        raise refuse(ErrorKind.INVALID_INPUT, "The path returns an expression (&…) where a value is expected.")


# Limits of `query.py`, which is loaded only when it is used: its libraries add 2 MB and 60 ms to a start.

Language = Literal["jmespath", "jsonpath"]


class QueryLimits(msgspec.Struct, frozen=True):
    expression_chars: int = 2048
    nesting: int = 32
    steps: int = 200_000
    result_weight: int = 1_000_000
    """Limit of the answer's nodes plus characters."""
    result_nodes: int = 1_000_000

    @property
    def at_once(self) -> QueryLimits:
        """Return the same limits for selecting on the event loop."""
        few = min(self.steps, AT_ONCE_STEPS)
        return msgspec.structs.replace(self, steps=few, result_nodes=min(self.result_nodes, AT_ONCE_STEPS))
