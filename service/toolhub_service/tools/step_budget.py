"""A bound on work done for untrusted text (templates, queries), counted in steps instead of seconds.

Steps are the same on every machine, so a call that is refused is always refused, and tests need no clock.
"""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, refuse


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
        """Raises ToolFailure INVALID_INPUT when the work is used up."""
        self._left -= steps
        if self._left < 0:
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"This takes more than the {self._steps_max} steps that one call may use. {self._advice}",
                max_steps=self._steps_max,
            )
