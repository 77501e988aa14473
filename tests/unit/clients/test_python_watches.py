"""Watches of the Python client: what changes of tools and approvals, and streams that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import running_hub
from tests.unit.clients.test_go_client import POLICY
from toolhub.v1 import approval_pb2, result_pb2
from toolhub.v1 import approval_service_pb2 as approvals_pb
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceServicer, add_ApprovalServiceServicer_to_server
from toolhub.v1.tool_service_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from toolhub_client import Answer, ApprovalRequired, Hub, HubError, HubUnavailable, NotFound, Progress, connect
from toolhub_client import outages as client_outages
from toolhub_client.sync import connect_sync
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

DRAINING = RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=0.01)
PATIENCE_S = 60.0
End = grpc.StatusCode | RpcFailure | None
Script = tuple[list[approvals_pb.WatchApprovalsResponse], End]


@dataclass
class ScriptedApprovalService(ApprovalServiceServicer):
    """Each watch of approvals gives the messages of the next script and ends so; notes after which token it was."""

    scripts: list[Script]
    tokens: list[str] = field(default_factory=list)

    async def WatchApprovals(self, request: Any, context: Any) -> AsyncIterator[approvals_pb.WatchApprovalsResponse]:
        self.tokens.append(request.resume_token)
        messages, end = self.scripts.pop(0)
        for message in messages:
            yield message
        await ended(end, context)

    ListApprovals = GetApproval = DecideApproval = None  # type: ignore[assignment]


@dataclass
class ScriptedToolService(ToolServiceServicer):
    """Each stream ends so before its first message; then one that gives progress and ends as the last says."""

    before: list[End]
    after: End = None

    async def InvokeStream(self, request: Any, context: Any) -> AsyncIterator[pb.InvokeStreamResponse]:
        if self.before:
            await ended(self.before.pop(0), context)
        yield pb.InvokeStreamResponse(progress=Progress())
        await ended(self.after, context)
        yield pb.InvokeStreamResponse(result=result_pb2.ToolResult(ok=True, result_json=b"{}"))

    WatchTools = GetServerInfo = GetTool = Invoke = None  # type: ignore[assignment]
    ListTools = SearchTools = ExportTools = InvokeSession = None  # type: ignore[assignment]


async def ended(end: End, context: Any) -> None:
    if isinstance(end, RpcFailure):
        await context.abort(end.code, end.message, (details_trailer(end),))
    elif end is not None:
        await context.abort(end, "broken")


@asynccontextmanager
async def serving(
    approvals: ScriptedApprovalService | None = None, tools: ScriptedToolService | None = None
) -> AsyncIterator[Hub]:
    server = grpc.aio.server()
    if approvals is not None:
        add_ApprovalServiceServicer_to_server(approvals, server)
    if tools is not None:
        add_ToolServiceServicer_to_server(tools, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connect(f"127.0.0.1:{port}", retry_s=PATIENCE_S) as hub:
            yield hub
    finally:
        await server.stop(None)


def change(approval_id: str, token: str) -> approvals_pb.WatchApprovalsResponse:
    approval = approval_pb2.Approval(approval_id=approval_id)
    return approvals_pb.WatchApprovalsResponse(approval=approval, resume_token=token)


@pytest.mark.parametrize("broken", [grpc.StatusCode.UNAVAILABLE, DRAINING, None])
async def test_a_watch_of_approvals_goes_on_after_its_last_token(broken: End) -> None:
    servicer = ScriptedApprovalService(
        [
            ([change("a1", ""), change("a2", "7")], broken),
            ([], broken),
            ([change("a3", "8")], broken),
            ([change("a4", "9")], None),
        ]
    )
    async with serving(servicer) as hub:
        seen = []
        async for message in hub.watch_approvals(tool="t/*"):
            seen.append(message.approval.approval_id)
            if len(seen) == 4:
                break
    assert seen == ["a1", "a2", "a3", "a4"]
    assert servicer.tokens == ["", "7", "7", "8"]


async def test_a_watch_begins_after_the_token_it_is_given() -> None:
    servicer = ScriptedApprovalService([([], grpc.StatusCode.NOT_FOUND)])
    async with serving(servicer) as hub:
        with pytest.raises(NotFound):
            _ = [message async for message in hub.watch_approvals(resume_token="7")]
    assert servicer.tokens == ["7"], "what is refused is not asked again"


async def test_a_watch_that_brings_nothing_any_more_is_given_up() -> None:
    nothing: Script = ([], grpc.StatusCode.UNAVAILABLE)
    servicer = ScriptedApprovalService([nothing, nothing])
    async with serving(servicer) as hub:
        with pytest.raises(HubUnavailable, match=r"broken \(UNAVAILABLE\)") as given_up:
            _ = [message async for message in hub.watch_approvals(attempts=2)]
    assert hub.address in str(given_up.value)
    assert servicer.scripts == []


async def test_a_watch_without_a_bound_goes_on_and_says_how_long_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_outages, "FIRST_PAUSE_S", 0.0)
    nothing: Script = ([], grpc.StatusCode.UNAVAILABLE)
    servicer = ScriptedApprovalService([*20 * [nothing], ([change("a1", "1")], None)])
    pauses_s: list[float] = []
    async with serving(servicer) as hub:
        async for message in hub.watch_approvals(attempts=None, on_outage=pauses_s.append):
            assert message.approval.approval_id == "a1"
            break
    assert len(pauses_s) == 20


async def test_a_hub_that_fails_with_a_reason_is_not_asked_again() -> None:
    failing = RpcFailure(Reason.INTERNAL, "Failed.")
    servicer = ScriptedApprovalService([([change("a1", "1")], failing)])
    async with serving(servicer) as hub:
        with pytest.raises(HubError, match="INTERNAL"):
            _ = [message async for message in hub.watch_approvals()]
    assert servicer.tokens == [""]


async def test_a_watch_of_a_hub_reports_approvals_and_resumes_from_a_token(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=POLICY) as running, connect(running.address) as hub:
        asked = await hub.invoke("core/fs.stat", {"path": "a.txt"}, purpose="a test")
        assert isinstance(asked.error, ApprovalRequired)
        token = ""
        async for message in hub.watch_approvals(tool="core/fs.*"):
            assert message.approval.approval_id == asked.error.approval_id
            token = message.resume_token
            break
        assert token
        async for message in hub.watch_approvals(resume_token=token):
            assert message.approval.approval_id == asked.error.approval_id, "the latest comes twice"
            break


async def test_a_watch_of_tools_states_whether_they_must_be_listed_anew(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as running, connect(running.address) as hub:
        token = ""
        for is_first in (True, False):
            async for message in hub.watch_tools(resume_token=token, names=["core/util.*"]):
                assert message.reset is is_first
                token = message.resume_token
                break


async def test_a_watch_ends_with_its_loop_without_asyncio_too(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as running:

        def watched() -> bool:
            with connect_sync(running.address) as hub:
                return next(hub.watch_tools()).reset

        assert await asyncio.to_thread(watched)


@pytest.mark.promise("clients.one-retry")
async def test_a_stream_is_opened_again_like_a_call_until_its_first_message() -> None:
    tools = ScriptedToolService([DRAINING, grpc.StatusCode.UNAVAILABLE])
    async with serving(tools=tools) as hub:
        events = [event async for event in hub.invoke_stream("t/a", idempotency_key="once")]
        assert [type(event) for event in events] == [Progress, Answer]
        tools.before = [DRAINING, grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(HubUnavailable, match="broken"):
            _ = [event async for event in hub.invoke_stream("t/a")]


async def test_a_stream_that_breaks_after_its_first_message_is_not_opened_again() -> None:
    async with serving(tools=ScriptedToolService([], after=DRAINING)) as hub:
        events = hub.invoke_stream("t/a", idempotency_key="once")
        assert type(await anext(events)) is Progress
        with pytest.raises(HubUnavailable, match="Leaving"):
            await anext(events)
