"""A pipeline whose writes need a person's yes, and the people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.unit.runtime.pipeline_harness import WRITE, NoJobs, PipelineHarness, a_call, a_pipeline_harness
from toolhub_service.domain.approval import Approval, ApprovalState, ApprovalStore
from toolhub_service.domain.call import Call, Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.binding import Decision
from toolhub_service.runtime.approvals.gate import Approvals
from toolhub_service.stores.memory.records import MemoryApprovals

EXPIRES_S = 600.0
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
rules:
  - id: writes-need-a-yes
    effect: REQUIRE_APPROVAL
    capabilities: [write:fs]
    reason: Writing changes what others read.
    approval: {expires_s: 600, approvers: [ann, "team-*"]}
"""
ANN = Principal("ann", frozenset({Role.APPROVER}))
TEAM = Principal("team-1", frozenset({Role.APPROVER}))
EVE = Principal("eve", frozenset({Role.APPROVER}))
"""An approver whom the rule does not name."""
LOCAL = Principal("local")
"""Who asks."""
APPROVED: Final = ApprovalState.APPROVED
REJECTED: Final = ApprovalState.REJECTED


class BeginsJobs(NoJobs):
    """Jobs may run here."""

    async def mark(self, job_id: str) -> RemoteMark | None:
        return None

    async def begins(self, job_id: str) -> None:
        assert job_id

    async def asks(self, job_id: str) -> None:
        assert job_id


@dataclass
class ApprovalHarness:
    parts: PipelineHarness
    approvals: Approvals
    store: ApprovalStore
    asked: list[Approval]
    """What `on_asked` was called with."""
    listeners: list[Callable[[Approval], object]] = field(default_factory=list)
    """Called after that."""

    async def call(self, text: str = "hello", *, number: int = 1, spec: ToolSpec = WRITE, **fields: Any) -> ToolResult:
        """One invocation; `fields` are those of `a_call` or of `Call`."""
        answer = await self.parts.pipeline.invoke(a_write(text, number=number, spec=spec, **fields))
        assert isinstance(answer, ToolResult)
        return answer

    async def refused(self, text: str = "hello", **fields: Any) -> ToolError:
        answer = await self.call(text, **fields)
        assert answer.error is not None
        return answer.error

    async def ask(self, text: str = "hello", **fields: Any) -> str:
        """The id of the approval that such a call asks for."""
        error = await self.refused(text, **fields)
        assert error.kind is ErrorKind.APPROVAL_REQUIRED
        return str(error.details["approval_id"])

    async def grant(self, text: str = "hello", **fields: Any) -> str:
        """The id of an approval that Ann has granted."""
        approval_id = await self.ask(text, **fields)
        await self.decide(approval_id)
        return approval_id

    async def decide(
        self, approval_id: str, decision: Decision = APPROVED, *, by: Principal = ANN, **given: Any
    ) -> Approval:
        return await self.approvals.decide(by, approval_id, decision, **given)

    async def state(self, approval_id: str) -> ApprovalState:
        approval = await self.store.get(approval_id)
        assert approval is not None
        return approval.state

    @property
    def runs(self) -> int:
        return len(self.parts.adapter.calls)

    @property
    def events_of_approvals(self) -> list[Event]:
        return [event for event in self.parts.events if event.type.value.startswith("APPROVAL_")]

    def events(self, type: EventType) -> list[Event]:
        return [event for event in self.parts.events if event.type is type]


def an_approval_harness(
    *,
    policy: str = POLICY,
    tools: tuple[ToolSpec, ...] = (),
    redactor: Redactor | None = None,
    store: ApprovalStore | None = None,
    **terms: Any,
) -> ApprovalHarness:
    """`terms` are those of `Approvals`."""
    parts = a_pipeline_harness(policy=policy, tools=(WRITE, *tools))
    asked: list[Approval] = []
    store = store or MemoryApprovals()
    redactor = redactor or Redactor()
    listeners: list[Callable[[Approval], object]] = []

    def on_asked(approval: Approval) -> None:
        asked.append(approval)
        for listener in listeners:
            listener(approval)

    approvals = Approvals(store, parts.audit, parts.clock, parts.randomness, redactor, on_asked=on_asked, **terms)
    parts.pipeline = replace(parts.pipeline, approvals=approvals, redactor=redactor, running=BeginsJobs())
    return ApprovalHarness(parts, approvals, store, asked, listeners)


def a_write(
    text: str = "hello",
    *,
    number: int = 1,
    spec: ToolSpec = WRITE,
    approval_id: str = "",
    job_id: str = "",
    args: dict[str, Any] | None = None,
    **fields: Any,
) -> Call:
    call = a_call(spec, {"text": text} if args is None else args, **fields)
    return call._replace(call_id=f"call-{number}", approval_id=approval_id, job_id=job_id)
