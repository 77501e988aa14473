"""One call's walk through the steps: where it is, how long each step took and what has been learnt so far."""

from __future__ import annotations

from time import perf_counter_ns

from toolhub_service.budget.lease import Lease
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Call, GrantedCall, PlannedCall
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import Claim
from toolhub_service.domain.settled import StepTime
from toolhub_service.domain.step import StepName
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Verdict
from toolhub_service.runtime.summary import NO_RESULT


class Walk:
    """Made by the pipeline for one call; steps fill it in as they succeed."""

    __slots__ = (
        "_begun_ns",
        "approval",
        "asked",
        "asks",
        "attempts",
        "call",
        "claim",
        "durations_us",
        "granted",
        "is_recorded",
        "lease",
        "planned",
        "shown_args",
        "spec",
        "start_ns",
        "step",
        "summary",
        "verdict",
    )

    def __init__(self, call: Call) -> None:
        self.call = call
        """With what the steps have put into it."""
        self.asked = call
        """As it came, references to artifacts included."""
        self.shown_args: JsonObject | None = None
        """What the audit log shows of arguments that hold artifacts; None: as they are."""
        self.spec: ToolSpec | None = None
        self.planned: PlannedCall | None = None
        self.verdict: Verdict | None = None
        self.approval: Approval | None = None
        """The person's yes that covers it, or answer that it goes on with; None when none is needed."""
        self.asks = False
        """Whether its tool has asked a question: nothing happens before the answer, and its key is free."""
        self.lease: Lease | None = None
        """What step 5 has taken; None before."""
        self.granted: GrantedCall | None = None
        """What the adapter is asked for; None before step 6."""
        self.claim: Claim | None = None
        """What is held under its idempotency key; None when it has none."""
        self.attempts = 0
        """How often the adapter was asked."""
        self.is_recorded = False
        """Whether the audit log already knows of the call."""
        self.summary = NO_RESULT
        """What the audit log keeps of its result; nothing before step 8."""
        self.step = StepName.RESOLVE
        self.durations_us: dict[StepName, int] = {}
        """Microseconds of the steps before record; filled in when record begins."""
        self.start_ns = perf_counter_ns()
        self._begun_ns: dict[StepName, int] = {}

    def enter(self, step: StepName) -> None:
        """End the step that was running and begin the next."""
        self._begun_ns[step] = perf_counter_ns()
        self.step = step
        if step is StepName.RECORD:
            for earlier, start_ns, end_ns in self.steps()[:-1]:
                self.durations_us[earlier] = (end_ns - start_ns) // 1_000

    def elapsed_ns(self) -> int:
        """Nanoseconds since the walk began."""
        return perf_counter_ns() - self.start_ns

    def steps(self) -> tuple[StepTime, ...]:
        """Every step so far, the present one up to now."""
        begun_ns = [*self._begun_ns.values(), perf_counter_ns()]
        return tuple(zip(self._begun_ns, begun_ns, begun_ns[1:], strict=False))
