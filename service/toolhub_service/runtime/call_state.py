"""The state of one running call: what its steps have concluded so far, and when each of them began."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from toolhub_service.budget.lease import Lease
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Call, GrantedCall, PlannedCall
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import Claim
from toolhub_service.domain.result import Outcome, StepName
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Verdict

STEPS: Final = tuple(StepName)
(
    RESOLVE,
    VALIDATE_INPUT,
    APPLY_DEFAULTS,
    CHECK_POLICY,
    TAKE_BUDGET,
    EXECUTE,
    VALIDATE_OUTPUT,
    ATTACH_EVIDENCE,
    RECORD,
) = range(len(STEPS))
"""Indices in `CallState.begun_ns`."""


class ResultSummary(msgspec.Struct, frozen=True, gc=False):
    """What the audit log stores of a result."""

    digest: str = ""
    """sha256 (hex) over its canonical JSON."""
    text: str = ""
    """The result where it is short, else its outline."""


NO_RESULT = ResultSummary()


class CallState(msgspec.Struct, eq=False):
    """Created for each call. Written by `Pipeline`, the loop of attempts, `attach_evidence` and `Recorder`; read by
    whatever ends a call."""

    call: Call
    """The call, with what the steps have added to it."""
    received: Call
    """The call as received, references to artifacts included."""
    begun_ns: list[int]
    """Start of each step, by the performance counter; 0: not begun."""
    durations_us: dict[StepName, int]
    """Microseconds of the steps before record; filled in when the call settles."""
    shown_args: JsonObject | None = None
    """What the audit log shows for arguments that hold artifacts; None: the arguments themselves."""
    repairs: tuple[str, ...] = ()
    """JSON Pointers of the arguments whose text was read as JSON."""
    spec: ToolSpec | None = None
    planned: PlannedCall | None = None
    verdict: Verdict | None = None
    approval: Approval | None = None
    """The approval that covers the call, or whose answer it continues with; None when none is needed."""
    asks: bool = False
    """Whether its tool has asked a question: nothing happens before the answer, and its key is free."""
    lease: Lease | None = None
    """What step 5 has taken; None before it."""
    granted: GrantedCall | None = None
    """What the adapter receives; None before step 6."""
    claim: Claim | None = None
    """What is claimed under its idempotency key; None when it has none."""
    attempts: int = 0
    """How many times the adapter was called."""
    outcome: Outcome | None = None
    """The tool's answer; None before step 7."""
    hidden: str = ""
    """Why a tool that the caller may not see cannot be called either; only the audit log says so."""
    is_recorded: bool = False
    """Whether the audit log already knows of the call."""
    task: asyncio.Task[object] | None = None
    """The task that runs the call."""
    is_cut_off: bool = False
    """Whether the hub has stopped it because it is shutting down."""
    summary: ResultSummary = NO_RESULT
    """What the audit log stores of its result; `NO_RESULT` before step 8."""

    @property
    def step(self) -> StepName:
        """The step that began last."""
        return STEPS[max((place for place, begun_ns in enumerate(self.begun_ns) if begun_ns), default=RESOLVE)]


NOT_BEGUN: Final = (0,) * (len(STEPS) - 1)
"""`CallState.begun_ns` of the steps after the first when a call begins."""
