"""ApprovalService on the wire: who may call what, pages, decisions with their statuses, and a watch that is ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.rpc.statuses import failed, failed_stream
from tests.unit.runtime.approvals.approval_harness import ANN, EVE, EXPIRES_S, LOCAL, REJECTED, TEAM
from tests.unit.transport.approval_server import AUDITOR, BOTH, ApprovalHub, approval_hub, by
from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.call import Principal, Role
from toolhub_service.transport.convert.payload import APPROVAL_STATES
from toolhub_service.transport.convert.records import to_approval_filter
from toolhub_service.transport.interceptors.policy import ALSO_FOR, ROLE_OF_SERVICE

APPROVE = approval_pb2.DECISION_APPROVE
PENDING, GRANTED = approval_pb2.APPROVAL_STATE_PENDING, approval_pb2.APPROVAL_STATE_APPROVED


@pytest.fixture
async def hub() -> AsyncIterator[ApprovalHub]:
    async with approval_hub() as serving:
        yield serving


def decide(hub: ApprovalHub, approval_id: str, principal: Principal = ANN, **fields: Any) -> Any:
    request = pb.DecideApprovalRequest(approval_id=approval_id, **{"decision": APPROVE, **fields})
    return hub.stub.DecideApproval(request, metadata=by(principal), timeout=60)


async def shown(hub: ApprovalHub, approval_id: str, principal: Principal = ANN) -> approval_pb2.Approval:
    answer = await hub.stub.GetApproval(pb.GetApprovalRequest(approval_id=approval_id), metadata=by(principal))
    return answer.approval  # type: ignore[no-any-return]


async def listed(hub: ApprovalHub, person: Principal = ANN, **fields: Any) -> pb.ListApprovalsResponse:
    request = pb.ListApprovalsRequest(**fields)
    return await hub.stub.ListApprovals(request, metadata=by(person))  # type: ignore[no-any-return]


def watch(hub: ApprovalHub, principal: Principal = ANN, tool: str = "") -> Any:
    return hub.stub.WatchApprovals(pb.WatchApprovalsRequest(tool=tool), metadata=by(principal), timeout=60)


async def test_everything_a_person_needs_to_decide_is_shown(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask("hello", purpose="tidy up", job_id="job-1")
    approval = await shown(hub, approval_id)
    assert (approval.state, approval.principal, approval.tool) == (PENDING, "local", "test/text.write")
    assert json.loads(approval.args_summary_json) == {"text": "hello", "times": 1}
    assert (approval.rule_id, approval.reason) == ("writes-need-a-yes", "Writing changes what others read.")
    assert (approval.purpose, approval.call_id, approval.request_id) == ("tidy up", "call-1", "request-1")
    assert approval.job_id == "job-1"
    assert len(approval.args_digest) == 64
    assert approval.expires_at.ToSeconds() - approval.requested_at.ToSeconds() == EXPIRES_S
    assert not approval.HasField("decided_at")
    assert not approval.HasField("used_at")


async def test_decision_is_answered_with_the_approval_as_it_stands(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask()
    answer = await decide(hub, approval_id, comment="go ahead")
    assert (answer.approval.state, answer.approval.decided_by) == (GRANTED, "ann")
    assert (answer.approval.comment, answer.approval.HasField("decided_at")) == ("go ahead", True)
    assert answer.approval == await shown(hub, approval_id, LOCAL)
    assert (await hub.harness.call(number=2, approval_id=approval_id)).ok
    assert (await shown(hub, approval_id)).HasField("used_at")


async def test_a_refused_approval_ends_the_call(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask()
    answer = await decide(hub, approval_id, decision=approval_pb2.DECISION_REJECT)
    assert answer.approval.state == approval_pb2.APPROVAL_STATE_REJECTED
    assert not (await hub.harness.call(number=2, approval_id=approval_id)).ok


async def test_deciding_takes_the_role_of_an_approver(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask(principal="other")
    for principal in (LOCAL, AUDITOR):
        failure = await failed(decide(hub, approval_id, principal))
        assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        assert failure.metadata["role"] == "approver"


async def test_nobody_decides_for_themselves_under_any_role(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask(principal="both")
    failure = await failed(decide(hub, approval_id, BOTH))
    assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "OWN_REQUEST")
    assert failure.metadata["approval_id"] == approval_id


async def test_refused_decisions_have_their_own_statuses(hub: ApprovalHub) -> None:
    approval_id = await hub.harness.ask()
    precondition = grpc.StatusCode.FAILED_PRECONDITION
    for call, expected in (
        (decide(hub, "apr_nowhere"), (grpc.StatusCode.NOT_FOUND, "APPROVAL_NOT_FOUND")),
        (decide(hub, approval_id, EVE), (grpc.StatusCode.PERMISSION_DENIED, "NOT_AMONG_APPROVERS")),
        (decide(hub, approval_id, args_digest="0" * 64), (precondition, "ARGS_DIGEST_DIFFERS")),
    ):
        failure = await failed(call)
        assert (failure.code, failure.reason) == expected
    digest = (await shown(hub, approval_id)).args_digest
    assert (await decide(hub, approval_id, args_digest=digest)).approval.state == GRANTED
    assert (await decide(hub, approval_id)).approval.state == GRANTED, "the same again"
    late = await failed(decide(hub, approval_id, TEAM))
    assert (late.code, late.reason, late.metadata["state"]) == (precondition, "ALREADY_DECIDED", "APPROVED")


async def test_a_decision_without_a_verdict_is_refused_by_the_contract(hub: ApprovalHub) -> None:
    failure = await failed(decide(hub, "apr_1", decision=0))
    assert (failure.code, set(failure.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, {"decision"})


@pytest.mark.parametrize("page_size", [1, 2, 3, 0])
async def test_pages_make_one_gapless_list_newest_first(hub: ApprovalHub, page_size: int) -> None:
    ids = []
    for number in range(5):
        ids.append(await hub.harness.ask(str(number)))
        hub.harness.parts.clock.advance(number % 2)  # some at the very same time
    found: list[str] = []
    token = ""
    while True:
        page = await listed(hub, page_size=page_size, page_token=token)
        assert page.total_size == 5
        found += [approval.approval_id for approval in page.approvals]
        token = page.next_page_token
        if not token:
            break
    assert found == ids[::-1]


async def test_filters_are_joined(hub: ApprovalHub) -> None:
    granted, pending = await hub.harness.grant("a"), await hub.harness.ask("b")
    await hub.harness.ask("c", principal="other")

    async def ids(**fields: Any) -> set[str]:
        return {approval.approval_id for approval in (await listed(hub, **fields)).approvals}

    assert await ids(states=[PENDING], principal="local") == {pending}
    assert await ids(states=[PENDING, GRANTED], principal="local") == {pending, granted}
    assert await ids(tool="test/*.write", principal="local") == {pending, granted}
    assert await ids(tool="core/*") == set()
    assert len(await ids(states=[0])) == 3, "unspecified means every state"


async def test_askers_see_their_own_and_nothing_else(hub: ApprovalHub) -> None:
    mine, theirs = await hub.harness.ask(), await hub.harness.ask(principal="other")
    assert [approval.approval_id for approval in (await listed(hub, LOCAL)).approvals] == [mine]
    assert (await listed(hub, LOCAL, principal="other")).total_size == 0
    assert (await shown(hub, mine, LOCAL)).approval_id == mine
    failure = await failed(hub.stub.GetApproval(pb.GetApprovalRequest(approval_id=theirs), metadata=by(LOCAL)))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "APPROVAL_NOT_FOUND")
    answers = watch(hub, LOCAL)
    assert (await answers.read()).approval.approval_id == mine
    await hub.harness.decide(theirs)
    await hub.harness.decide(mine)
    assert (await answers.read()).approval.approval_id == mine
    answers.cancel()


@pytest.mark.parametrize("rpc", ["ListApprovals", "GetApproval", "WatchApprovals"])
async def test_a_caller_that_neither_asks_nor_approves_sees_nothing(hub: ApprovalHub, rpc: str) -> None:
    request = getattr(pb, f"{rpc}Request")()
    call = getattr(hub.stub, rpc)(request, metadata=by(AUDITOR))
    failure = await (failed_stream(call) if rpc == "WatchApprovals" else failed(call))
    assert (failure.code, failure.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")


def test_only_reading_is_open_to_more_than_one_role() -> None:
    for_askers = {path.rsplit("/", 1)[1] for path, roles in ALSO_FOR.items() if Role.AGENT in roles}
    assert for_askers == {"ListApprovals", "GetApproval", "WatchApprovals", "GetServerInfo"}
    assert ROLE_OF_SERVICE["toolhub.v1.ApprovalService"] is Role.APPROVER


async def test_watch_shows_pending_ones_and_then_each_change(hub: ApprovalHub) -> None:
    first = await hub.harness.ask("a")
    answers = watch(hub)
    assert (await answers.read()).approval.approval_id == first
    second = await hub.harness.ask("b")
    assert (await answers.read()).approval.approval_id == second
    await hub.harness.decide(first, REJECTED, comment="no")
    change = (await answers.read()).approval
    assert (change.approval_id, change.state, change.comment) == (first, approval_pb2.APPROVAL_STATE_REJECTED, "no")
    answers.cancel()


async def test_watch_of_a_tool_shows_that_tool(hub: ApprovalHub) -> None:
    await hub.harness.ask("a")
    answers = watch(hub, tool="core/*")
    await answers.initial_metadata()
    hub.news.close()
    failure = await failed_stream(answers)
    assert failure.reason == "DRAINING", "nothing before it"


async def test_a_leaving_hub_asks_watchers_to_reconnect(hub: ApprovalHub) -> None:
    answers = watch(hub)
    await answers.initial_metadata()
    hub.news.close()
    failure = await failed_stream(answers)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_watchers_that_leave_are_forgotten(hub: ApprovalHub) -> None:
    watches = [watch(hub) for _ in range(20)]
    for answers in watches:
        await answers.initial_metadata()
    assert hub.news.watchers == 20
    for answers in watches:
        answers.cancel()
    async with asyncio.timeout(60):
        for _ in watches:
            assert await hub.left.get() == "WatchApprovals"
    assert hub.news.watchers == 0


def test_states_have_the_same_names_on_the_wire() -> None:
    assert len(APPROVAL_STATES.to_domain) == len(ApprovalState) == len(approval_pb2.ApprovalState.items()) - 1
    assert to_approval_filter(pb.ListApprovalsRequest(states=[GRANTED])).states == {ApprovalState.APPROVED}
