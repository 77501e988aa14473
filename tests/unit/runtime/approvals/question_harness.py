"""A pipeline whose one tool asks in the middle of a call, and a person who answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.fakes.asking_adapter import AskingAdapter, an_asking_tool
from tests.unit.runtime.approvals.approval_harness import ApprovalHarness, an_approval_harness
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import Question
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.tool import ToolSpec

ALLOWING = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
impersonate: [local]
"""
PAINT = an_asking_tool()
RED = {"colour": "red"}
WALL = {"args": {"wall": "north"}}


@dataclass
class QuestionHarness:
    harness: ApprovalHarness
    adapter: AskingAdapter
    spec: ToolSpec = PAINT

    async def call(self, approval_id: str = "", **fields: Any) -> ToolResult:
        return await self.harness.call(spec=self.spec, approval_id=approval_id, **{**WALL, **fields})

    async def refused(self, approval_id: str = "", **fields: Any) -> ToolError:
        answer = await self.call(approval_id, **fields)
        assert answer.error is not None
        return answer.error

    async def asks(self, approval_id: str = "", **fields: Any) -> str:
        """The id of the approval that the call, or its next part, asks for."""
        error = await self.refused(approval_id, **fields)
        assert error.kind is ErrorKind.APPROVAL_REQUIRED, error
        return str(error.details["approval_id"])

    async def answer(self, approval_id: str, answer: Any = RED, **fields: Any) -> Approval:
        return await self.harness.decide(approval_id, answer=answer, **fields)

    async def kept(self, approval_id: str) -> Approval:
        approval = await self.harness.store.get(approval_id)
        assert approval is not None
        return approval

    @property
    def runs(self) -> int:
        return len(self.adapter.calls)


def asking(*questions: Question, policy: str = ALLOWING, spec: ToolSpec = PAINT, **fields: Any) -> QuestionHarness:
    """No rule asks, unless `policy` has one."""
    harness = an_approval_harness(policy=policy, tools=(spec,), **fields)
    adapter = AskingAdapter(*questions)
    harness.parts.pipeline = replace(harness.parts.pipeline, adapters={spec.kind: adapter})
    return QuestionHarness(harness, adapter, spec)
