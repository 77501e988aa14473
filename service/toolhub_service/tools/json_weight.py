"""The serialized size of a JSON value: nodes plus characters.

Values built by a query share their parts (`[@,@]` holds one list twice), so the size in memory does not show the
serialized size; this counts shared parts each time they would be written, and stops when the budget ends.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.tools.step_budget import StepBudget

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
