"""Tools registered over the wire belong to a configured source: called, kept, shared, pinned; others are refused."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.n8n import fake_n8n
from tests.hub import RunningHub, running_hub
from tests.rpc.real_servers import program, write_sources
from tests.rpc.statuses import failed
from tests.unit.adapters.mcp.links import SERVERS, scripted_http
from tests.unit.adapters.n8n.flows import flow
from toolhub.v1 import approval_pb2, error_pb2, pin_pb2, tool_pb2
from toolhub.v1 import registry_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.event import EventType
from toolhub_service.registry.discovery.decisions import FORMER_MAX

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["mcp:*", "n8n:*"]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LISTED: Mapping[str, Any] = program(sys.executable, "-S", str(SERVERS / "scripted.py"), "modern")
UNLISTED: Mapping[str, Any] = {**LISTED, "args": [*LISTED["args"], "echo", "add"]}
"""`echo` and `add` can be called and are not listed."""


def a_tool(name: str = "desk/echo", **fields: Any) -> tool_pb2.ToolSpec:
    given: dict[str, Any] = {
        "name": name,
        "version": "1.0.0",
        "kind": tool_pb2.TOOL_KIND_MCP,
        "description": "Say the text back.",
        "input_schema_json": json.dumps(TEXT).encode(),
        "output_schema_json": b"{}",
    }
    return tool_pb2.ToolSpec(**given | fields)


async def register(hub: RunningHub, *tools: tool_pb2.ToolSpec, upsert: bool = False) -> list[tool_pb2.ToolSpec]:
    answer = await hub.registry.RegisterTools(pb.RegisterToolsRequest(tools=tools, upsert=upsert))
    return list(answer.tools)


async def unregister(hub: RunningHub, name: str = "desk/echo") -> None:
    await hub.registry.UnregisterTool(pb.UnregisterToolRequest(name=name))


@asynccontextmanager
async def hub_with(home: Path, settings: Mapping[str, Any] | None = None, **sources: Any) -> AsyncIterator[RunningHub]:
    write_sources(home, sources)
    async with running_hub(home, policy=POLICY, settings=settings) as running:
        assert await running.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield running


async def test_registered_tool_of_an_mcp_server_is_called_and_outlives_a_restart(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        assert (await hub.invoke("desk/echo", {"text": "a"})).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        (kept,) = await register(hub, a_tool())
        assert (kept.name, kept.source, kept.state) == ("desk/echo", "desk", tool_pb2.TOOL_STATE_ACTIVE)
        assert list(kept.capabilities) == ["mcp:desk"], "what is needed is for the configuration to say"
        assert (await hub.invoke("desk/echo", {"text": "a"})).ok
        assert (await hub.invoke("desk/echo", {})).error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID
        await hub.registry.RefreshSources(pb.RefreshSourcesRequest())
        assert (await hub.invoke("desk/echo", {"text": "b"})).ok, "a reading of the source does not take it away"
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        assert (await hub.invoke("desk/echo", {"text": "c"})).ok
        await unregister(hub)
        assert (await hub.invoke("desk/echo", {"text": "c"})).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        assert (await failed(unregister(hub))).code is grpc.StatusCode.NOT_FOUND
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        assert hub.hub.toolbox.catalog.get("desk/echo") is None


async def test_workflow_of_n8n_is_configured_and_never_named_by_a_message(tmp_path: Path) -> None:
    """A path would be called with the source's credentials, also one outside of its webhooks."""
    async with fake_n8n(workflows=[flow("echo", "lastNode")]) as n8n:
        source = {"kind": "n8n", "url": n8n.url, "api_key": n8n.api_key, "workflows": {"say": {"webhook": "echo"}}}
        async with hub_with(tmp_path, flows=source) as hub:
            for path in ("echo", "other", "../rest/login"):
                tool = a_tool("flows/again", kind=tool_pb2.TOOL_KIND_N8N, resource_id=path)
                refused = await failed(register(hub, tool, upsert=True))
                assert (refused.code, refused.reason) == (
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "SOURCE_NOT_CONFIGURED",
                ), refused.message
                assert "`workflows`" in refused.message
            await hub.registry.RefreshSources(pb.RefreshSourcesRequest())
            assert hub.hub.toolbox.catalog.get("flows/again") is None
            assert (await hub.invoke("flows/say", {"text": "hello"})).ok
            assert n8n.starts("echo") == 1


async def test_second_replica_on_the_same_store_offers_it_and_loses_it(tmp_path: Path) -> None:
    async with hub_with(tmp_path / "first", desk=UNLISTED) as first:
        shared = {"stores": {"file": str(Paths(first.hub.settings).stores)}}
        async with hub_with(tmp_path / "second", shared, desk=UNLISTED) as second:
            await register(first, a_tool())
            await _until(second, "desk/echo", is_there=True)
            assert (await second.invoke("desk/echo", {"text": "a"})).ok
            await unregister(second)
            await _until(first, "desk/echo", is_there=False)


async def test_name_that_a_real_tool_has_is_refused_even_with_upsert(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=LISTED) as hub:
        before = hub.hub.toolbox.catalog.get("desk/echo")
        for name, upsert in (("desk/echo", False), ("desk/echo", True), ("desk/E-cho", True)):
            failure = await failed(register(hub, a_tool(name), upsert=upsert))
            assert failure.code is grpc.StatusCode.ALREADY_EXISTS, name
        assert hub.hub.toolbox.catalog.get("desk/echo") is before


async def test_registered_name_is_replaced_by_upsert_alone(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        (first,) = await register(hub, a_tool())
        changed = a_tool(description="Say it back, and nothing else.")
        failure = await failed(register(hub, changed))
        assert (failure.code, failure.reason) == (grpc.StatusCode.ALREADY_EXISTS, "TOOL_EXISTS")
        (second,) = await register(hub, changed, upsert=True)
        assert (second.description, second.state) == (changed.description, tool_pb2.TOOL_STATE_ACTIVE)
        assert first.digest != second.digest


async def test_a_tool_that_the_server_offers_later_takes_the_place_and_waits(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        await register(hub, a_tool())
    async with hub_with(tmp_path, desk=LISTED) as hub:
        result = await hub.invoke("desk/echo", {"text": "a"})
        assert result.error.kind == error_pb2.ERROR_KIND_TOOL_QUARANTINED, "it is another definition than the approved"
        before = list((await hub.registry.ListPins(pb.ListPinsRequest(source="desk"))).pins)
        for tool in (a_tool(), a_tool(description="Say it back, and nothing else.")):
            failure = await failed(register(hub, tool, upsert=True))
            assert (failure.code, failure.reason) == (grpc.StatusCode.ALREADY_EXISTS, "TOOL_EXISTS")
            assert "toolhub pins diff desk/echo" in failure.message
        assert list((await hub.registry.ListPins(pb.ListPinsRequest(source="desk"))).pins) == before


@pytest.mark.parametrize("trust", ["first-use", "approval", "always"])
async def test_tool_of_a_source_that_stands_elsewhere_now_waits_until_it_is_approved_again(
    tmp_path: Path, trust: str
) -> None:
    """What was approved is a definition of one server; at another URL it may do anything."""
    async with scripted_http("modern", "echo", "add") as first, scripted_http("modern", "echo", "add") as second:
        here, there = ({"url": server.url, "trust": trust} for server in (first, second))
        async with hub_with(tmp_path, desk=here) as hub:
            await register(hub, a_tool())
            assert (await hub.invoke("desk/echo", {"text": "a"})).ok
        async with hub_with(tmp_path, desk=there) as hub:
            refused = await hub.invoke("desk/echo", {"text": "a"})
            expected = {
                "always": error_pb2.ERROR_KIND_TOOL_NOT_FOUND,
                "first-use": error_pb2.ERROR_KIND_TOOL_QUARANTINED,
                "approval": error_pb2.ERROR_KIND_TOOL_QUARANTINED,
            }
            assert refused.error.kind == expected[trust], "no pin is looked at where trust is always"
            (pin,) = (await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins
            approve = pb.DecidePinRequest(
                source="desk", tool="desk/echo", digest=pin.digest, decision=approval_pb2.DECISION_APPROVE
            )
            await hub.registry.DecidePin(approve)
            assert (await hub.invoke("desk/echo", {"text": "b"})).ok
        async with hub_with(tmp_path, desk=there) as hub:
            assert (await hub.invoke("desk/echo", {"text": "c"})).ok
        async with hub_with(tmp_path, desk=here) as hub:
            assert not (await hub.invoke("desk/echo", {"text": "d"})).ok, "nor does it go back by itself"
            await register(hub, a_tool(), upsert=True)
            assert (await hub.invoke("desk/echo", {"text": "e"})).ok, "to register it again is to approve it"


async def test_former_definitions_of_a_registered_tool_are_kept_for_the_last_few(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        for number in range(FORMER_MAX + 4):
            await register(hub, a_tool(description=f"Say it back, take {number}."), upsert=True)
        pins = (await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins
        states = [pin.state for pin in pins]
        assert sorted(states) == [pin_pb2.PIN_STATE_APPROVED] + FORMER_MAX * [pin_pb2.PIN_STATE_SUPERSEDED]
        assert (await hub.invoke("desk/echo", {"text": "a"})).ok
        await unregister(hub)
        assert len((await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins) == FORMER_MAX


async def test_rejected_tool_that_is_registered_anew_is_offered_once(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        await register(hub, a_tool())
        (pin,) = (await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins
        reject = pb.DecidePinRequest(
            source="desk", tool="desk/echo", digest=pin.digest, decision=approval_pb2.DECISION_REJECT
        )
        await hub.registry.DecidePin(reject)
        (again,) = await register(hub, a_tool(description="Say it back, and nothing else."), upsert=True)
        assert again.state == tool_pb2.TOOL_STATE_ACTIVE
        await hub.registry.RefreshSources(pb.RefreshSourcesRequest())
        assert (await hub.invoke("desk/echo", {"text": "a"})).ok


@pytest.mark.promise("registry.whole-batches")
async def test_batch_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        broken = a_tool("desk/add", input_schema_json=b'{"type": "no such type"}')
        failure = await failed(register(hub, a_tool(), broken))
        assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.message.startswith("tools[1] (desk/add): ")
        assert hub.hub.toolbox.catalog.get("desk/echo") is None
        assert not (await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins
        assert len(await register(hub, a_tool(), a_tool("desk/add"))) == 2


@pytest.mark.promise("sources.own-their-names")
@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"name": "elsewhere/echo"}, grpc.StatusCode.FAILED_PRECONDITION, "SOURCE_NOT_CONFIGURED"),
        ({"kind": tool_pb2.TOOL_KIND_N8N}, grpc.StatusCode.FAILED_PRECONDITION, "SOURCE_NOT_CONFIGURED"),
        ({"name": "off/echo"}, grpc.StatusCode.FAILED_PRECONDITION, "SOURCE_NOT_CONFIGURED"),
        ({"name": "away/echo"}, grpc.StatusCode.UNAVAILABLE, "TOOL_UNAVAILABLE"),
        ({"name": "acme/echo", "source": "desk"}, grpc.StatusCode.INVALID_ARGUMENT, "TOOL_NAME_INVALID"),
        ({"endpoint": "http://evil.example"}, grpc.StatusCode.INVALID_ARGUMENT, "TOOL_INVALID"),
        ({"resource_id": "add"}, grpc.StatusCode.INVALID_ARGUMENT, "TOOL_INVALID"),
        ({"name": "desk/hidden"}, grpc.StatusCode.INVALID_ARGUMENT, "TOOL_INVALID"),
        ({"input_schema_json": b'{"type": "string"}'}, grpc.StatusCode.INVALID_ARGUMENT, "TOOL_INVALID"),
    ],
)
async def test_a_tool_that_its_source_could_not_run_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    nobody = {"url": "http://127.0.0.1:9/mcp"}
    desk = {**UNLISTED, "tools": {"hidden": {"offered": False}}}
    async with hub_with(tmp_path, desk=desk, off={**nobody, "enabled": False}, away=nobody) as hub:
        failure = await failed(register(hub, a_tool(**fields), upsert=True))
        assert (failure.code, failure.reason) == (code, reason), failure.message
        assert not (await hub.registry.ListPins(pb.ListPinsRequest(tool=a_tool(**fields).name))).pins


async def test_registration_is_a_pin_that_can_be_rejected(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk={**UNLISTED, "trust": "approval"}) as hub:
        await register(hub, a_tool())
        (pin,) = (await hub.registry.ListPins(pb.ListPinsRequest(tool="desk/echo"))).pins
        assert (pin.state, pin.decided_by) == (pin_pb2.PIN_STATE_APPROVED, "local")
        assert (await hub.invoke("desk/echo", {"text": "a"})).ok, "an operator has approved exactly this definition"
        reject = pb.DecidePinRequest(
            source="desk", tool="desk/echo", digest=pin.digest, decision=approval_pb2.DECISION_REJECT
        )
        await hub.registry.DecidePin(reject)
        refused = await hub.invoke("desk/echo", {"text": "a"})
        assert refused.error.kind == error_pb2.ERROR_KIND_TOOL_QUARANTINED


async def test_changes_are_audited_with_who_and_which_definition(tmp_path: Path) -> None:
    async with hub_with(tmp_path, desk=UNLISTED) as hub:
        (tool,) = await register(hub, a_tool())
        await unregister(hub)
        registered, removed = [event.event for event in await hub.events(tool=tool.name)]
        assert (registered.type, removed.type) == (EventType.TOOL_REGISTERED, EventType.TOOL_UNREGISTERED)
        for event in (registered, removed):
            assert (event.principal, event.tool_digest, event.outcome) == ("local", tool.digest, "ok")


async def test_tool_of_a_source_is_not_taken_out_of_one_worker_of_several(tmp_path: Path) -> None:
    async with hub_with(tmp_path, {"server": {"workers": 2}}, desk=LISTED) as hub:
        failure = await failed(unregister(hub))
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEVERAL_WORKERS")


async def _until(hub: RunningHub, name: str, *, is_there: bool) -> None:
    catalog, changed = hub.hub.toolbox.catalog, asyncio.Event()
    stop = catalog.subscribe(lambda _: changed.set())
    try:
        async with asyncio.timeout(60):
            while (catalog.get(name) is not None) is not is_there:
                await changed.wait()
                changed.clear()
    finally:
        stop()
