"""What operators see of MCP requests: spans in the caller's trace, and metrics without a client's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from toolhub_service.domain.call import Principal
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.mcp import McpTelemetry
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.tracing import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED: Any = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}


def of(metrics: bytes, method: str, era: str, error_type: str) -> float:
    labels = f'error_type="{error_type}",mcp_method_name="{method}",mcp_protocol_version="{era}"'
    line = f"mcp_server_operation_duration_seconds_count{{{labels}}} "
    return next((float(each.rpartition(" ")[2]) for each in metrics.decode().splitlines() if each.startswith(line)), 0)


@pytest.mark.promise("mcpserver.telemetry")
async def test_requests_are_counted_by_method_era_and_outcome_and_sessions_while_they_are_open(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path) as hub:
        listener, engine = hub.grpc.hub.mcp.listener, hub.grpc.hub.mcp.engine
        for era in ERAS:
            async with hub.client(era) as client:
                await client.call_tool("core__util_time_now", {})
                assert (await client.call_tool("core__fs_readText", {"path": "none"})).is_error
                with pytest.raises(MCPError):
                    await client.read_resource("toolhub://artifacts/none")
                assert listener.open_now()[0] == (era == ERAS[0])
        engine.telemetry.open_now(*listener.open_now())
        text = hub.grpc.hub.observing.metrics.exposition()
        for era, not_found in zip(ERAS, ("-32002", "-32602"), strict=True):
            assert of(text, "tools/call", era, "") == 1
            assert of(text, "tools/call", era, "tool_error") == 1
            assert of(text, "resources/read", era, not_found) == 1
        assert b"toolhub_mcp_sessions_open 0.0" in text


@pytest.mark.promise("mcpserver.telemetry")
async def test_a_request_is_a_span_of_the_callers_trace_under_the_conventions_and_labels_are_bounded() -> None:
    exporter, metrics = InMemorySpanExporter(), Metrics(version="1")
    tracing = Tracing(service_name="test", exporter=exporter, redactor=Redactor(["canary-77"]))
    telemetry = McpTelemetry(metrics, tracing)
    asked = {"name": "core__fs_readText", "arguments": {}}
    telemetry.begin("tools/call", "2025-11-25", asked, list(TRACED.items()), session_id="s1", request_id=7).end(
        Principal("alice"), "tool_error"
    )
    uri = {"uri": "skill://team/canary-77/SKILL.md"}
    telemetry.begin("resources/read", "2026-07-28", uri, list(TRACED.items())).end(Principal("alice"), "-32602")
    for number in range(500):
        telemetry.begin(f"x/{number}", "2026-07-28", {}, []).end(Principal("alice"), str(-number))
    tracing.flush()
    called, read = [span for span in exporter.get_finished_spans() if span.context.trace_id == int(TRACE, 16)]
    assert called.name == "tools/call core__fs_readText"
    assert called.parent is not None
    assert called.parent.span_id == int(SPAN, 16)
    assert dict(called.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-11-25",
        "mcp.session.id": "s1",
        "jsonrpc.request.id": "7",
        "gen_ai.tool.name": "core__fs_readText",
        "gen_ai.operation.name": "execute_tool",
        "toolhub.principal": "alice",
        "error.type": "tool_error",
    }
    assert read.name == "resources/read"
    found = dict(read.attributes or {})
    assert found["rpc.response.status_code"] == "-32602"
    assert "canary-77" not in str(found["mcp.resource.uri"])
    text = metrics.exposition().decode()
    assert "x/1" not in text
    assert text.count("mcp_server_operation_duration_seconds_count") < 210
    tracing.close()
