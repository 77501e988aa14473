"""Tools that a caller may not see and that cannot be called either: the answer is that of a tool which does not exist.

Of a source that was read and is away, of one that was never read, and of a definition that waits for a decision. Each
is named over gRPC and MCP in every way there is; the whole error is the same as for a name that nothing has.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.hub import request
from tests.mcp_server.mcp_hub import ERAS, WITH_KEYS, McpHub, keys_of, mcp_hub
from tests.mcp_server.wire import NEWER, OLDER, Wire, wire
from tests.rpc import real_servers as real
from tests.rpc.statuses import failed
from toolhub.v1 import call_pb2, error_pb2, tool_service_pb2
from toolhub.v1 import registry_service_pb2 as registry_pb
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

POLICY = """
extends: none
grants:
  - {principals: [boss], capabilities: ["mcp:*", "read:ledger"]}
  - {principals: [robot], capabilities: ["mcp:open"]}
roles:
  - {principals: [local], roles: [operator, auditor]}
"""
AWAY, DARK, TERMS, WAITS = "away/xyzzy", "dark/xyzzy", "terms/xyzzy", "waits/xyzzy"
HIDDEN = (AWAY, DARK, TERMS, WAITS)
NOTHING = "blank/xyzzy"
"""No source has its name."""
REASON = re.compile("It refuses connections|The server could not be reached")


class CallsIn(ToolInput, frozen=True):
    tool: str


class CallsOut(ToolOutput, frozen=True):
    error: str


class CallsOne(Tool[CallsIn, CallsOut]):
    """Answers with the error of a call that it makes."""

    name = "test/calls.one"
    description = "Make a call."
    annotations = Annotations(read_only=True)
    In, Out = CallsIn, CallsOut

    async def run(self, args: CallsIn, context: ToolContext) -> CallsOut:
        assert context.calls is not None
        error = (await context.calls().invoke(args.tool, {}, purpose="a test")).error
        assert error is not None
        return CallsOut(error=f"{error.kind.value}: {error.message} {error.details} {error.is_retryable}")


@dataclass
class Hidden:
    hub: McpHub
    robot: str
    """The key of a caller that may see none of the tools."""
    boss: str

    @property
    def by_robot(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.robot}"),)


@pytest.fixture
async def hidden(tmp_path: Path) -> AsyncIterator[Hidden]:
    dark = {"url": "http://127.0.0.1:1/mcp", "trust": "always"}
    async with serving(Script(pages=[[tool("xyzzy")]])) as waits:
        async with serving(Script(pages=[[tool("xyzzy")]])) as away:
            sources: dict[str, dict[str, Any]] = {
                "away": {"url": away},
                "dark": dark,
                "terms": {**dark, "tools": {"*": {"capabilities": ["read:ledger"]}}},
                "waits": {"url": waits, "trust": "approval"},
            }
            file = real.write_sources(tmp_path, sources)
            settings = {**WITH_KEYS, "sources": {"file": str(file)}}
            opening = mcp_hub(tmp_path, policy=POLICY, settings=settings, tools=[CallsOne()], shown="search")
            hub = await opening.__aenter__()
            assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        try:
            await hub.grpc.registry.RefreshSources(registry_pb.RefreshSourcesRequest(sources=["away"]))
            keys = keys_of(hub, "robot", "boss")
            yield Hidden(hub, keys["robot"], keys["boss"])
        finally:
            await opening.__aexit__(None, None, None)


def error_of(message: Message) -> dict[str, Any]:
    return MessageToDict(message.error)  # type: ignore[attr-defined]


async def invoked(hidden: Hidden, name: str) -> Any:
    return error_of(await hidden.hub.grpc.invoke(name, {}, metadata=hidden.by_robot))


async def streamed(hidden: Hidden, name: str) -> Any:
    asked = request(name, {}, message=tool_service_pb2.InvokeStreamRequest)
    stream = hidden.hub.grpc.stub.InvokeStream(asked, metadata=hidden.by_robot, timeout=60)
    return [error_of(answer.result) for answer in [each async for each in stream] if answer.HasField("result")]


async def in_a_session(hidden: Hidden, name: str) -> Any:
    asked = request(name, {})
    call = tool_service_pb2.SessionCall(call_id="mine", intent=asked.intent, context=asked.context)
    session = hidden.hub.grpc.stub.InvokeSession(metadata=hidden.by_robot, timeout=60)
    await session.write(tool_service_pb2.InvokeSessionRequest(calls=[call]))
    await session.done_writing()
    return [MessageToDict(answer) for answer in [each async for each in session]]


async def planned(hidden: Hidden, name: str) -> Any:
    asked = request(name, {}, mode=call_pb2.INVOKE_MODE_DRY_RUN)
    plan = (await hidden.hub.grpc.stub.Invoke(asked, metadata=hidden.by_robot, timeout=60)).plan
    return MessageToDict(plan)


async def submitted(hidden: Hidden, name: str) -> Any:
    return error_of((await hidden.hub.grpc.submit(name, {}, metadata=hidden.by_robot)).status)


async def described(hidden: Hidden, name: str) -> Any:
    asked = tool_service_pb2.GetToolRequest(name=name)
    refused = await failed(hidden.hub.grpc.stub.GetTool(asked, metadata=hidden.by_robot, timeout=60))
    return refused.code, refused.reason, str(refused)


async def called_within(hidden: Hidden, name: str) -> Any:
    result = await hidden.hub.grpc.invoke(CallsOne.name, {"tool": name}, metadata=hidden.by_robot)
    assert result.ok, result.error.message
    return json.loads(result.result_json)


GRPC = (invoked, streamed, in_a_session, planned, submitted, described, called_within)
OVER_MCP: Mapping[str, Callable[[Wire, str], Awaitable[Any]]] = {
    "call": lambda client, name: client.call(name),
    "call_tool": lambda client, name: client.call("call_tool", {"name": name, "arguments": {}}),
    "describe_tool": lambda client, name: client.call("describe_tool", {"name": name}),
    "job_start": lambda client, name: client.call("job_start", {"name": name, "arguments": {}}),
}


def without(answer: Any, name: str) -> str:
    """The whole answer as text, without the names by which the caller has called the tool."""
    text = repr(answer)
    for each in (name, name.replace("/", "__"), name.partition("/")[0]):
        text = text.replace(each, "NAME")
    text = re.sub(r"(call|job)_[0-9a-f]+", "ID", text)
    return re.sub(r"[0-9]+", "0", text)  # times


@pytest.mark.promise("registry.hidden-is-hidden")
@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("way", GRPC, ids=lambda way: way.__name__)
async def test_over_grpc_a_hidden_tool_that_cannot_be_called_is_answered_like_none(
    hidden: Hidden, way: Callable[[Hidden, str], Awaitable[Any]], name: str
) -> None:
    for spelt, nothing in ((name, NOTHING), (name.replace("/", "__"), NOTHING.replace("/", "__"))):
        answer, of_none = await way(hidden, spelt), await way(hidden, nothing)
        assert without(answer, name) == without(of_none, NOTHING)
        assert "TOOL_NOT_FOUND" in repr(answer)
        assert spelt == name or name not in repr(answer)


@pytest.mark.promise("registry.hidden-is-hidden")
@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("era", ERAS)
async def test_over_mcp_a_hidden_tool_that_cannot_be_called_is_answered_like_none(
    hidden: Hidden, era: str, name: str
) -> None:
    async with wire(hidden.hub.url, era, hidden.robot) as client:
        for way, call in OVER_MCP.items():
            for spelt in (name, name.replace("/", "__")):
                answer = await call(client, spelt)
                of_none = await call(client, NOTHING if spelt == name else NOTHING.replace("/", "__"))
                assert without(answer, name) == without(of_none, NOTHING), way
                assert "TOOL_NOT_FOUND" in repr(answer), way


@pytest.mark.promise("registry.hidden-is-hidden")
@pytest.mark.parametrize("name", [AWAY, DARK, TERMS])
async def test_who_may_see_the_tool_learns_that_it_is_away_and_the_log_knows_of_all(hidden: Hidden, name: str) -> None:
    by_boss = (("authorization", f"Bearer {hidden.boss}"),)
    seen = await hidden.hub.grpc.invoke(name, {}, metadata=by_boss)
    assert seen.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, seen.error.message
    assert REASON.search(seen.error.message)
    for era in (OLDER, NEWER):
        async with wire(hidden.hub.url, era, hidden.boss) as client:
            for way in ("call", "describe_tool"):
                assert REASON.search(repr(await OVER_MCP[way](client, name.replace("/", "__")))), way
    refused = await hidden.hub.grpc.invoke(name, {}, metadata=hidden.by_robot)
    events = await hidden.hub.grpc.events(call_id=refused.call_id)
    (why,) = [each.event.attributes["hidden"] for each in events if "hidden" in each.event.attributes]
    assert why.startswith("hidden by policy")
    assert REASON.search(why)


@pytest.mark.promise("registry.hidden-is-hidden")
@pytest.mark.parametrize("era", ERAS)
async def test_what_the_refusal_of_a_hidden_tool_suggests_does_not_show_that_it_exists(
    tmp_path: Path, era: str
) -> None:
    """The same name is asked for while a hidden tool has it, and when nothing has it any more."""
    shown, secret = tool("list.things"), tool("files.purge")
    script = Script(pages=[[shown, secret]])
    async with serving(script) as url:
        sources: dict[str, dict[str, Any]] = {
            "acme": {"url": url, "trust": "always", "tools": {"files.purge": {"capabilities": ["read:ledger"]}}}
        }
        settings = {**WITH_KEYS, "sources": {"file": str(real.write_sources(tmp_path, sources))}}
        policy = POLICY.replace("mcp:open", "mcp:acme")
        async with mcp_hub(tmp_path, policy=policy, settings=settings, shown="search") as hub:
            assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
            key = keys_of(hub, "robot")["robot"]
            asked = [(way, name) for way in OVER_MCP for name in ("acme__files_purge", "_acme__files_purge")]
            async with wire(hub.url, era, key) as client:
                hidden = [without(await OVER_MCP[way](client, name), name) for way, name in asked]
                script.pages = [[shown]]
                await hub.grpc.registry.RefreshSources(registry_pb.RefreshSourcesRequest(sources=["acme"]))
                assert hub.grpc.hub.toolbox.catalog.get("acme/files.purge") is None
                of_none = [without(await OVER_MCP[way](client, name), name) for way, name in asked]
    assert hidden == of_none
    assert all("TOOL_NOT_FOUND" in answer for answer in hidden)


TENANTS = """
extends: none
tenants:
  - {name: acme, principals: ["acme-*"], sources: [dark]}
  - {name: globex, principals: ["globex-*"]}
grants: [{principals: ["*"], capabilities: ["mcp:*"]}]
roles: [{principals: ["*-bot"], roles: [agent]}]
"""


@pytest.mark.promise("tenants.apart")
async def test_why_the_source_of_another_tenant_is_away_is_in_no_event_of_ones_own(tmp_path: Path) -> None:
    dark = {"dark": {"url": "http://127.0.0.1:1/mcp", "trust": "always"}}
    settings = {**WITH_KEYS, "sources": {"file": str(real.write_sources(tmp_path, dark))}}
    async with mcp_hub(tmp_path, policy=TENANTS, settings=settings) as hub:
        assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        keys = keys_of(hub, "acme-bot", "globex-bot")
        for who, is_own in (("acme-bot", True), ("globex-bot", False)):
            for name in (DARK, DARK.replace("/", "__")):
                refused = await hub.grpc.invoke(name, {}, metadata=(("authorization", f"Bearer {keys[who]}"),))
                events = await hub.grpc.events(call_id=refused.call_id)
                assert bool(REASON.search(repr(refused))) is is_own, (who, name)
                assert events
                assert is_own or not REASON.search(repr(events)), (who, name)
