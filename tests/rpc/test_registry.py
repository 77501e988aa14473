"""RegistryService of a hub without sources: nothing is registered there, and the hub's own names stay the hub's."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub
from tests.rpc.statuses import failed
from toolhub.v1 import error_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb


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


@pytest.mark.parametrize(
    ("kind", "reason", "advice"),
    [
        (tool_pb2.TOOL_KIND_MCP, "SOURCE_NOT_CONFIGURED", "toolhub sources add acme --kind mcp"),
        (tool_pb2.TOOL_KIND_N8N, "SOURCE_NOT_CONFIGURED", "under `workflows` of a source of kind n8n"),
        (tool_pb2.TOOL_KIND_COMFYUI, "SOURCE_NOT_CONFIGURED", "`templates`"),
        (tool_pb2.TOOL_KIND_LANGCHAIN, "SOURCE_NOT_CONFIGURED", "`load`"),
        (tool_pb2.TOOL_KIND_CORE, "SOURCE_NOT_CONFIGURED", "`tools.custom`"),
        (tool_pb2.TOOL_KIND_SKILL, "SOURCE_NOT_CONFIGURED", "`toolhub skills add PATH`"),
    ],
)
async def test_tool_that_nothing_would_run_is_refused_with_what_to_configure(
    hub: RunningHub, kind: int, reason: str, advice: str
) -> None:
    before = await hub.registry.GetSnapshot(pb.GetSnapshotRequest())
    for upsert in (False, True):
        failure = await failed(register(hub, a_tool(kind=kind), upsert=upsert))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
        assert advice in failure.message
    assert await hub.registry.GetSnapshot(pb.GetSnapshotRequest()) == before
    assert not await hub.events(tool="acme/text.shout")


@pytest.mark.promise("registry.names-are-safe")
@pytest.mark.parametrize("name", ["core/fs.readText", "core/mine", "CORE/fs.readText"])
async def test_names_of_the_hub_cannot_be_taken(hub: RunningHub, name: str) -> None:
    failure = await failed(hub.registry.RegisterTool(pb.RegisterToolRequest(tool=a_tool(name), upsert=True)))
    assert failure.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
    assert failure.reason
    assert (await hub.invoke("core/fs.readText", {"path": "x"})).error.kind == error_pb2.ERROR_KIND_NOT_FOUND


async def test_tools_of_the_hub_cannot_be_unregistered(hub: RunningHub) -> None:
    failure = await failed(hub.registry.UnregisterTool(pb.UnregisterToolRequest(name="core/fs.readText")))
    assert failure.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)


async def test_sources_report_their_state(hub: RunningHub) -> None:
    (core,) = (await hub.registry.ListSources(pb.ListSourcesRequest())).sources
    assert core.source == "core"
    assert core.tools > 20
