"""A hub with a gateway, robots and approvers: what attacks on approvals are played at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, Client, Principals
from toolhub.v1 import approval_pb2, error_pb2, result_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.domain.event import EventType

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
impersonate: [gateway]
roles:
  - {principals: [judge, alice], roles: [agent, approver]}
  - {principals: [ops], roles: [operator]}
  - {principals: [auditor], roles: [auditor]}
rules:
  - {id: writes-need-a-yes, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], reason: Files are shared.}
"""
WRITE = "core/fs.writeText"
ARGS = {"path": "a.txt", "text": "hello"}
NAMES = ("robot", "other", "judge", "alice", "bob", "gateway", "ops", "auditor")


class ApprovalsHarness:
    """A hub with a gateway, robots and approvers; alice is one of these and a customer of the gateway."""

    def __init__(self, running: RunningHub) -> None:
        self.running, self.people = running, Principals(running, names=NAMES)

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)

    @property
    def approvals(self) -> Any:
        return ApprovalServiceStub(self.running.channel)

    async def call(self, name: str = "robot", args: Any = None, *, approval_id: str = "", **fields: Any) -> Any:
        asked = request(WRITE, args or ARGS, **{"request_id": "work", **fields})
        asked.approval_id = approval_id
        return (await self.running.stub.Invoke(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)).result

    async def ask(self, name: str = "robot", args: Any = None, **fields: Any) -> str:
        result = await self.call(name, args, **fields)
        assert kind(result) == "APPROVAL_REQUIRED", result.error.message
        return str(result.error.details["approval_id"])

    async def get(self, name: str, approval_id: str) -> approval_pb2.Approval:
        asked = pb.GetApprovalRequest(approval_id=approval_id)
        answer = await self.approvals.GetApproval(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)
        return answer.approval  # type: ignore[no-any-return]

    def reveal(self, name: str, approval_id: str) -> Any:
        asked = pb.GetApprovalRequest(approval_id=approval_id, reveal=True)
        return self.approvals.GetApproval(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)

    async def reveals(self) -> list[tuple[str, str]]:
        """(who, which approval) of every reveal on record."""
        events = await self.running.events(types=frozenset({EventType.APPROVAL_REVEALED}))
        return [(chained.event.principal, chained.event.attributes["approval_id"]) for chained in events]

    async def page(self, name: str, **where: Any) -> pb.ListApprovalsResponse:
        asked = pb.ListApprovalsRequest(**where)
        page: pb.ListApprovalsResponse = await self.approvals.ListApprovals(
            asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S
        )
        return page

    def decide(self, name: str, approval_id: str, **fields: Any) -> Any:
        asked = pb.DecideApprovalRequest(
            **{"decision": approval_pb2.DECISION_APPROVE, **fields}, approval_id=approval_id
        )
        return self.approvals.DecideApproval(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)

    def written(self, principal: str = "robot") -> list[str]:
        folder = self.running.workspace("work", principal)
        return sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []


def kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


@asynccontextmanager
async def approvals_harness(tmp_path: Path, **settings: Any) -> AsyncIterator[ApprovalsHarness]:
    async with running_hub(tmp_path, policy=POLICY, settings={**BY_KEY, **settings}) as running:
        yield ApprovalsHarness(running)
