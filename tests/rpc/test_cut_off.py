"""Calls that outlive the grace of a shutdown are answered with what may have happened, however they came in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hub import OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.sample_tools import Waits
from toolhub.v1 import error_pb2, result_pb2, tool_service_pb2
from toolhub_service.domain.event import EventType
from toolhub_service.domain.tool import Annotations

UNKNOWN, AWAY = error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Acts(Waits):
    """The same, as a side effect."""

    name = "test/text.act"
    description = "Act."
    annotations = Annotations()


@asynccontextmanager
async def leaving_hub(home: Path, *tools: Waits) -> AsyncIterator[RunningHub]:
    server = {"drain_s": 0.05, "mcp": {"enabled": True, "listen": "127.0.0.1:0"}}
    async with running_hub(home, policy=OPEN_POLICY, settings={"server": server}, tools=tools) as hub:
        assert not hub.hub.mcp.problem, hub.hub.mcp.problem
        yield hub


async def cut_off(hub: RunningHub, tool: Waits, calling: Awaitable[Any]) -> Any:
    """What the call is answered when the hub leaves in its midst."""
    call = asyncio.ensure_future(calling)
    await tool.started.wait()
    await hub.hub.close()
    return await call


async def by_stream(hub: RunningHub, tool: str) -> result_pb2.ToolResult:
    async for event in hub.stub.InvokeStream(tool_service_pb2.InvokeStreamRequest(intent=request(tool).intent)):
        last = event
    answer: result_pb2.ToolResult = last.result
    return answer


async def by_session(hub: RunningHub, tool: str) -> result_pb2.ToolResult:
    session = hub.stub.InvokeSession()
    asked = tool_service_pb2.SessionCall(call_id="mine", intent=request(tool).intent)
    await session.write(tool_service_pb2.InvokeSessionRequest(calls=[asked]))
    while True:
        for event in (await session.read()).events:
            if event.HasField("result"):
                answer: result_pb2.ToolResult = event.result
                return answer


async def by_unary(hub: RunningHub, tool: str) -> result_pb2.ToolResult:
    return await hub.invoke(tool)


@pytest.mark.promise("serving.cut-off")
@pytest.mark.parametrize("way", [by_unary, by_stream, by_session])
async def test_a_side_effect_that_is_cut_off_is_an_unknown_outcome_with_its_call_id_over_grpc(
    tmp_path: Path, way: Callable[[RunningHub, str], Awaitable[result_pb2.ToolResult]]
) -> None:
    acts = Acts()
    async with leaving_hub(tmp_path, acts) as hub:
        result = await cut_off(hub, acts, way(hub, acts.name))
        assert (result.ok, result.error.kind, result.error.retryable) == (False, UNKNOWN, False)
        assert (result.error.details["cause"], result.error.details["call_id"]) == ("HUB_STOPPED", result.call_id)
        assert result.call_id in result.error.message
    async with running_hub(tmp_path) as after:
        events = [event.event for event in await after.events(tool=acts.name)]
    assert [(event.type, event.call_id) for event in events][-1] == (EventType.TOOL_RESULT, result.call_id)
    assert events[-1].outcome == "OUTCOME_UNKNOWN"


@pytest.mark.promise("serving.cut-off")
@pytest.mark.parametrize("way", [by_unary, by_stream, by_session])
async def test_a_read_that_is_cut_off_may_be_sent_again(
    tmp_path: Path, way: Callable[[RunningHub, str], Awaitable[result_pb2.ToolResult]]
) -> None:
    waits = Waits()
    async with leaving_hub(tmp_path, waits) as hub:
        result = await cut_off(hub, waits, way(hub, waits.name))
        assert (result.error.kind, result.error.retryable) == (AWAY, True)
        assert "It changed nothing" in result.error.message


@pytest.mark.promise("serving.cut-off")
async def test_a_call_with_a_key_that_is_cut_off_is_not_run_again_by_the_next_hub(tmp_path: Path) -> None:
    acts, again = Acts(), Acts()
    async with leaving_hub(tmp_path, acts) as hub:
        first = await cut_off(hub, acts, hub.invoke(acts.name, idempotency_key="k"))
    async with leaving_hub(tmp_path, again) as hub:
        second = await hub.invoke(acts.name, idempotency_key="k")
        assert (second.error.kind, second.replayed, again.running) == (UNKNOWN, True, 0)
        assert second.error.details["call_id"] == first.error.details["call_id"]


def _envelope(tool: str, meta: dict[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": {}, "_meta": {**meta, "toolhub/purpose": "to test"}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def _message(answer: httpx.Response) -> dict[str, Any]:
    """The JSON-RPC message of an answer, in a body or in a stream."""
    if answer.headers["content-type"].startswith("application/json"):
        return dict(answer.json())
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines() if line.startswith("data:")]
    return dict(json.loads(lines[-1]))


async def _newer(http: httpx.AsyncClient, tool: str, meta: dict[str, Any]) -> httpx.Response:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    return await http.post("/mcp", json=_envelope(tool, {**ENVELOPE, **meta}), headers=headers)


async def _older(http: httpx.AsyncClient, tool: str, meta: dict[str, Any]) -> httpx.Response:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    opened = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
    headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    ready = await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    assert ready.status_code == 202
    return await http.post("/mcp", json=_envelope(tool, meta), headers=headers)


@pytest.mark.promise("serving.cut-off")
@pytest.mark.parametrize("meta", [{}, {"progressToken": "p"}], ids=["plain", "with progress"])
@pytest.mark.parametrize("ask", [_newer, _older], ids=["2026-07-28", "2025-11-25"])
async def test_a_call_over_mcp_that_is_cut_off_gets_a_result_that_says_so(
    tmp_path: Path, ask: Callable[..., Awaitable[httpx.Response]], meta: dict[str, Any]
) -> None:
    acts = Acts()
    accept = {"accept": "application/json, text/event-stream"}
    async with leaving_hub(tmp_path, acts) as hub:
        url = f"http://127.0.0.1:{hub.hub.mcp.listener.port}"
        async with httpx.AsyncClient(base_url=url, headers=accept, timeout=60, trust_env=False) as http:
            answer = await cut_off(hub, acts, ask(http, "test__text_act", meta))
    assert answer.status_code == 200
    result = _message(answer)["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("OUTCOME_UNKNOWN: The hub was stopped while test__text_act ran")
    error = result["_meta"]["toolhub/error"]
    assert (error["kind"], error["retryable"], error["details"]["cause"]) == ("OUTCOME_UNKNOWN", False, "HUB_STOPPED")
    assert error["details"]["call_id"] == result["_meta"]["toolhub/call_id"]
