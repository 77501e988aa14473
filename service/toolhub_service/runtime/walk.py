"""One call's walk through the steps: where it is, how long each step took and what has been learnt so far."""

from __future__ import annotations

from time import perf_counter_ns

from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.settled import StepTime
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Verdict


class Walk:
    """Made by the pipeline for one call; steps fill it in as they succeed."""

    __slots__ = (
        "_step_ns",
        "asked",
        "attempts",
        "call",
        "durations_us",
        "planned",
        "spec",
        "start_ns",
        "step",
        "steps",
        "verdict",
    )

    def __init__(self, call: Call) -> None:
        self.call = call
        self.spec: ToolSpec | None = None
        self.planned: PlannedCall | None = None
        self.verdict: Verdict | None = None
        self.attempts = 0
        """How often the adapter was asked."""
        self.asked = False
        """Whether the audit log already knows of the call."""
        self.step = StepName.RESOLVE
        self.steps: list[StepTime] = []
        self.durations_us: dict[StepName, int] = {}
        """Microseconds of every step that has ended; grows with the walk."""
        self.start_ns = self._step_ns = perf_counter_ns()

    def enter(self, step: StepName) -> None:
        """End the step that was running and begin the next."""
        if step is StepName.RESOLVE:
            return  # where every walk begins
        now_ns = perf_counter_ns()
        self._end(now_ns)
        self.step = step
        self._step_ns = now_ns

    def finish(self) -> int:
        """End the last step. The whole walk in nanoseconds."""
        now_ns = perf_counter_ns()
        self._end(now_ns)
        return now_ns - self.start_ns

    def _end(self, now_ns: int) -> None:
        self.steps.append(StepTime(self.step, self._step_ns, now_ns))
        self.durations_us[self.step] = (now_ns - self._step_ns) // 1_000
