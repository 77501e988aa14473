"""A call that has ended, with all that was learnt on the way: what metrics and traces are made of."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from toolhub_service.domain.call import Call
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Verdict

StepTime: TypeAlias = tuple[StepName, int, int]
"""A step, and when it began and ended in nanoseconds of the performance counter."""


class SettledCall(NamedTuple):
    call: Call
    spec: ToolSpec | None
    """None when the tool was not found."""
    verdict: Verdict | None
    """None when policy was never asked."""
    result: ToolResult
    steps: tuple[StepTime, ...]
    duration_ns: int
