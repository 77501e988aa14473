"""RegistryService: operators register, look and remove; the hub's own tools and names stay the hub's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, running_hub
from tests.rpc.statuses import failed
from toolhub.v1 import error_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.domain.event import EventType


def a_tool(name: str = "acme/text.shout", kind: int = tool_pb2.TOOL_KIND_MCP, **fields: Any) -> tool_pb2.ToolSpec:
    return tool_pb2.ToolSpec(
        name=name,
        version="1.0.0",
        kind=kind,  # type: ignore[arg-type]
        description="Return the text in capitals.",
        input_schema_json=json.dumps({"type": "object", "properties": {"text": {"type": "string"}}}).encode(),
        output_schema_json=b'{"type":"object"}',
        **fields,
    )


async def register(hub: RunningHub, *tools: tool_pb2.ToolSpec, upsert: bool = False) -> Any:
    return await hub.registry.RegisterTools(pb.RegisterToolsRequest(tools=tools, upsert=upsert))


async def test_registered_tool_is_in_the_snapshot_under_a_new_revision(hub: RunningHub) -> None:
    before = await hub.registry.GetSnapshot(pb.GetSnapshotRequest())
    answer = await hub.registry.RegisterTool(pb.RegisterToolRequest(tool=a_tool()))
    after = await hub.registry.GetSnapshot(pb.GetSnapshotRequest())
    assert answer.tool.name == "acme/text.shout"
    assert len(answer.tool.digest) == 64
    assert answer.revision == after.revision != before.revision
    assert {tool.name for tool in after.tools} - {tool.name for tool in before.tools} == {"acme/text.shout"}


@pytest.mark.parametrize("kind", [tool_pb2.TOOL_KIND_MCP, tool_pb2.TOOL_KIND_N8N, tool_pb2.TOOL_KIND_CORE])
async def test_tool_that_no_adapter_runs_is_kept_unavailable_and_says_so(hub: RunningHub, kind: int) -> None:
    answer = await hub.registry.RegisterTool(pb.RegisterToolRequest(tool=a_tool(kind=kind)))
    assert answer.tool.state == tool_pb2.TOOL_STATE_UNAVAILABLE
    assert "adapter" in answer.tool.state_reason
    result = await hub.invoke("acme/text.shout", {"text": "hi"})
    assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE


@pytest.mark.promise("registry.names-are-safe")
@pytest.mark.parametrize("name", ["core/fs.readText", "core/mine", "CORE/fs.readText"])
async def test_names_of_the_hub_cannot_be_taken(hub: RunningHub, name: str) -> None:
    failure = await failed(hub.registry.RegisterTool(pb.RegisterToolRequest(tool=a_tool(name), upsert=True)))
    assert failure.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
    assert failure.reason
    assert (await hub.invoke("core/fs.readText", {"path": "x"})).error.kind == error_pb2.ERROR_KIND_NOT_FOUND


async def test_name_that_is_taken_is_refused_unless_it_is_replaced(hub: RunningHub) -> None:
    await register(hub, a_tool())
    changed = a_tool()
    changed.description = "Return the text in large letters."
    failure = await failed(register(hub, changed))
    assert failure.code is grpc.StatusCode.ALREADY_EXISTS
    (replaced,) = (await register(hub, changed, upsert=True)).tools
    assert replaced.description == "Return the text in large letters."


@pytest.mark.promise("registry.whole-batches")
async def test_batch_is_taken_whole_or_not_at_all(hub: RunningHub) -> None:
    broken = a_tool("acme/broken")
    broken.input_schema_json = b'{"type": "no such type"}'
    failure = await failed(register(hub, a_tool("acme/good"), broken))
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    names = {tool.name for tool in (await hub.registry.GetSnapshot(pb.GetSnapshotRequest())).tools}
    assert not names & {"acme/good", "acme/broken"}


async def test_unregistered_tool_is_gone_and_cannot_be_unregistered_again(hub: RunningHub) -> None:
    await register(hub, a_tool())
    answer = await hub.registry.UnregisterTool(pb.UnregisterToolRequest(name="acme/text.shout"))
    assert answer.revision
    assert (await hub.invoke("acme/text.shout")).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
    failure = await failed(hub.registry.UnregisterTool(pb.UnregisterToolRequest(name="acme/text.shout")))
    assert failure.code is grpc.StatusCode.NOT_FOUND


async def test_tools_of_the_hub_cannot_be_unregistered(hub: RunningHub) -> None:
    failure = await failed(hub.registry.UnregisterTool(pb.UnregisterToolRequest(name="core/fs.readText")))
    assert failure.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


async def test_changes_are_audited_with_who_and_which_definition(hub: RunningHub) -> None:
    (tool,) = (await register(hub, a_tool())).tools
    await hub.registry.UnregisterTool(pb.UnregisterToolRequest(name=tool.name))
    registered, removed = [event.event for event in await hub.events(tool=tool.name)]
    assert (registered.type, removed.type) == (EventType.TOOL_REGISTERED, EventType.TOOL_UNREGISTERED)
    for event in (registered, removed):
        assert (event.principal, event.tool_digest, event.outcome) == ("local", tool.digest, "ok")


async def test_sources_say_how_they_are(hub: RunningHub) -> None:
    (core,) = (await hub.registry.ListSources(pb.ListSourcesRequest())).sources
    assert core.source == "core"
    assert core.tools > 20


async def test_several_workers_refuse_what_would_reach_one_of_them(tmp_path: Path) -> None:
    async with running_hub(tmp_path, settings={"server": {"workers": 2}}) as running:
        failure = await failed(register(running, a_tool()))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEVERAL_WORKERS")
