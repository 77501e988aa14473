"""Approvals, attacked over the wire: one's own request in another's name, reuse, other calls, races, texts, floods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.sharing import BY_KEY, Client, People, state
from tests.rpc.statuses import failed
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


class Court:
    """A hub with a gateway, robots and approvers; alice is one of these and a customer of the gateway."""

    def __init__(self, running: RunningHub) -> None:
        self.running, self.people = running, People(running, names=NAMES)

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
async def a_court(tmp_path: Path, **settings: Any) -> AsyncIterator[Court]:
    async with running_hub(tmp_path, policy=POLICY, settings={**BY_KEY, **settings}) as running:
        yield Court(running)


@pytest.fixture
async def court(tmp_path: Path) -> AsyncIterator[Court]:
    async with a_court(tmp_path) as opened:
        yield opened


# In another's name


@pytest.mark.parametrize("names", [{"user_id": "alice"}, {"agent_id": "alice"}, {"user_id": "alice", "agent_id": "x"}])
async def test_nobody_approves_what_a_gateway_asks_for_in_their_name(court: Court, names: dict[str, str]) -> None:
    approval_id = await court.ask("gateway", **names)
    failure = await failed(court.decide("alice", approval_id))
    assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "OWN_REQUEST")
    told = (await court.decide("judge", approval_id)).approval
    assert (told.principal, told.user_id, told.agent_id) == (
        "gateway",
        names.get("user_id", ""),
        names.get("agent_id", ""),
    )
    assert (await court.call("gateway", approval_id=approval_id, **names)).ok


async def test_what_was_granted_to_one_customer_of_a_gateway_serves_no_other(court: Court) -> None:
    approval_id = await court.ask("gateway", user_id="bob")
    await court.decide("judge", approval_id)
    for named in ({"user_id": "alice"}, {"agent_id": "bob"}, {}, {"user_id": "bob", "agent_id": "bob"}):
        refused = await court.call("gateway", approval_id=approval_id, **named)
        assert kind(refused) == "APPROVAL_REQUIRED", named
        assert refused.error.details["approval_id"] != approval_id
    assert court.written("gateway") == []
    assert (await court.call("gateway", approval_id=approval_id, user_id="bob")).ok


async def test_one_s_own_name_is_no_other_and_the_log_says_for_whom(court: Court) -> None:
    approval_id = await court.ask("robot")
    assert await court.ask("robot", agent_id="robot", user_id="robot") == approval_id
    of_bob = await court.ask("gateway", user_id="bob")
    (asked,) = [
        chained.event
        for chained in await court.running.events(types=frozenset({EventType.APPROVAL_ASKED}))
        if chained.event.attributes["approval_id"] == of_bob
    ]
    assert (asked.principal, asked.attributes["user_id"]) == ("gateway", "bob")


async def test_job_of_a_gateway_is_not_approved_by_whom_it_is_for(court: Court) -> None:
    job = await court.by("gateway").submit(WRITE, ARGS, user_id="alice", request_id="work")
    assert state(job.status) == "AWAITING_APPROVAL"
    assert (await failed(court.decide("alice", job.approval_id))).reason == "OWN_REQUEST"
    await court.decide("judge", job.approval_id)
    assert state((await court.by("gateway").ended(job.job_id))[-1]) == "SUCCEEDED"
