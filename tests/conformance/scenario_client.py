"""One source of a running hub as a scenario calls it: through gRPC, as an agent, with a person at hand who decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.hub import RunningHub, request
from toolhub.v1 import (
    approval_pb2,
    approval_service_pb2,
    error_pb2,
    registry_service_pb2,
    result_pb2,
    source_pb2,
    tool_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub

Bearer = Sequence[tuple[str, str]]
CALL_TIMEOUT_S = 60.0


@dataclass(slots=True)
class ScenarioClient:
    running: RunningHub
    source: str
    context: Mapping[str, Any]
    """What the suite tells its client besides the URL."""
    agent: Bearer
    person: Bearer
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def status(self) -> source_pb2.SourceStatus:
        answer = await self.running.registry.ListSources(
            registry_service_pb2.ListSourcesRequest(), metadata=self.person
        )
        (status,) = [status for status in answer.sources if status.source == self.source]
        assert isinstance(status, source_pb2.SourceStatus)
        return status

    async def read_again(self) -> source_pb2.SourceStatus:
        wanted = registry_service_pb2.RefreshSourcesRequest(sources=[self.source])
        await self.running.registry.RefreshSources(wanted, metadata=self.person)
        return await self.status()

    async def tools(self) -> list[str]:
        """The names that the server's tools bear there, of those that may be called."""
        return await self._named(tool_pb2.TOOL_STATE_ACTIVE)

    async def quarantined(self) -> list[str]:
        return await self._named(tool_pb2.TOOL_STATE_QUARANTINED)

    async def input_schema(self, tool: str, *, to_operator: bool = False) -> Any:
        """A tool in quarantine is shown to operators alone."""
        wanted = pb.GetToolRequest(name=f"{self.source}/{tool}")
        who = self.person if to_operator else self.agent
        answer = await self.running.stub.GetTool(wanted, metadata=who, timeout=CALL_TIMEOUT_S)
        return json.loads(answer.tool.input_schema_json)

    async def value(self, tool: str, args: Mapping[str, Any] | None = None, *, approval_id: str = "") -> Any:
        """The JSON of a call that succeeds."""
        result = await self._invoke(tool, args, approval_id)
        assert result.ok, f"{tool}: {result.error}"
        self.note(f"{tool}: {result.result_json.decode()[:200]}")
        return json.loads(result.result_json)

    async def refusal(self, tool: str, args: Mapping[str, Any] | None = None) -> error_pb2.ToolError:
        """Of a call that does not succeed."""
        result = await self._invoke(tool, args, "")
        assert not result.ok
        self.note(f"{tool}: {result.error.message}")
        return result.error

    async def asked(self, tool: str) -> str:
        """The approval by which a person can answer what the tool asks."""
        error = await self.refusal(tool)
        assert error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED, error
        return str(error.details["approval_id"])

    async def answer(self, approval_id: str, answer: Mapping[str, Any]) -> None:
        decision = approval_service_pb2.DecideApprovalRequest(
            approval_id=approval_id,
            decision=approval_pb2.DECISION_APPROVE,
            answer_json=json.dumps(answer).encode(),
        )
        await ApprovalServiceStub(self.running.channel).DecideApproval(decision, metadata=self.person)

    async def _named(self, state: tool_pb2.ToolState.ValueType) -> list[str]:
        wanted = pb.ListToolsRequest(filter=tool_pb2.ToolFilter(sources=[self.source], states=[state]))
        answer = await self.running.stub.ListTools(wanted, metadata=self.person, timeout=CALL_TIMEOUT_S)
        return [tool.name.partition("/")[2] for tool in answer.tools]

    async def _invoke(self, tool: str, args: Mapping[str, Any] | None, approval_id: str) -> result_pb2.ToolResult:
        asked = request(f"{self.source}/{tool}", args, request_id=self.source)
        asked.approval_id = approval_id
        response: pb.InvokeResponse = await self.running.stub.Invoke(asked, metadata=self.agent, timeout=CALL_TIMEOUT_S)
        return response.result
