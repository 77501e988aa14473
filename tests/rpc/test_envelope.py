"""A request that breaks the contract fails as an RPC: INVALID_ARGUMENT that names the field."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, request
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import audit_service_pb2 as audit
from toolhub.v1 import call_pb2
from toolhub.v1 import registry_service_pb2 as registry
from toolhub.v1 import tool_service_pb2 as pb

TOOL = "core/util.time.now"

MALFORMED: dict[str, tuple[Any, str]] = {
    "no intent": (pb.InvokeRequest(), "intent"),
    "empty tool": (request(""), "intent.tool"),
    "endless tool name": (request("x" * 257), "intent.tool"),
    "endless purpose": (request(TOOL, purpose="x" * 4_097), "intent.purpose"),
    "key with a newline": (request(TOOL, idempotency_key="a\nb"), "intent.idempotency_key"),
    "unknown mode": (request(TOOL, mode=99), "mode"),
    "unknown encoding": (request(TOOL, result_encoding=99), "result_encoding"),
    "request id that climbs": (request(TOOL, request_id="../x"), "context.request_id"),
    "endless request id": (request(TOOL, request_id="x" * 129), "context.request_id"),
    "too many permissions": (request(TOOL, permissions=[f"read:{n}" for n in range(65)]), "context.permissions"),
    "no time": (request(TOOL, budget={"timeout_s": 0}), "context.budget.timeout"),
    "negative retries": (request(TOOL, budget={"max_retries": -1}), "context.budget.max_retries"),
    "too many labels": (request(TOOL, labels={f"l{n}": "x" for n in range(33)}), "context.labels"),
    "plan digest with spaces": (request(TOOL, plan_digest="a b"), "plan_digest"),
}


@pytest.mark.promise("contract.malformed-envelope")
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_call_names_the_field_that_is_wrong(hub: RunningHub, name: str) -> None:
    message, field = MALFORMED[name]
    failure = await failed(hub.stub.Invoke(message, timeout=60))
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (failure.reason, failure.domain) == ("MALFORMED_REQUEST", "toolhub")
    assert field in failure.fields
    assert failure.fields[field]
    assert field in failure.message


async def test_malformed_streaming_call_is_refused_the_same_way(hub: RunningHub) -> None:
    failure = await failed_stream(hub.stub.InvokeStream(pb.InvokeStreamRequest(), timeout=60))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    assert "intent" in failure.fields


@pytest.mark.promise("contract.malformed-envelope")
async def test_malformed_request_never_becomes_a_call(hub: RunningHub) -> None:
    await failed(hub.stub.Invoke(pb.InvokeRequest(intent=call_pb2.ToolIntent()), timeout=60))
    assert await hub.events() == []


async def test_other_services_hold_their_requests_to_the_contract_too(hub: RunningHub) -> None:
    failures = [
        await failed(hub.stub.ListTools(pb.ListToolsRequest(page_size=-1))),
        await failed(hub.stub.GetTool(pb.GetToolRequest(name="a b"))),
        await failed(hub.stub.ExportTools(pb.ExportToolsRequest())),
        await failed(hub.registry.RegisterTool(registry.RegisterToolRequest())),
        await failed(hub.audit.ListEvents(audit.ListEventsRequest(page_size=-1))),
    ]
    assert {failure.code for failure in failures} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert all(failure.fields for failure in failures)


@pytest.mark.promise("pipeline.no-exception-text")
async def test_bytes_that_are_no_message_are_refused_without_a_defect(hub: RunningHub) -> None:
    raw: Any = hub.channel.unary_unary("/toolhub.v1.ToolService/Invoke")
    failure = await failed(raw(b"\xff\xff\xff", timeout=60))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UNREADABLE_REQUEST")
    assert "pars" not in failure.message


async def test_unknown_fields_are_ignored(hub: RunningHub) -> None:
    """A newer client may say more than this hub knows."""
    asked = request(TOOL).SerializeToString() + b"\xfa\x7f\x03abc"
    send: Any = hub.channel.unary_unary("/toolhub.v1.ToolService/Invoke")
    response = await send(asked, timeout=60)
    assert pb.InvokeResponse.FromString(response).result.ok
