"""The synchronous stub against a channel that the test answers (grpcio-testing): no server, no port, no waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest

from toolhub.v1 import call_pb2, result_pb2, tool_service_pb2
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.cli.connection.channel import Endpoint
from toolhub_service.cli.connection.client import HubRefused, HubUnreachable, connect, status_of
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer

SERVICE = tool_service_pb2.DESCRIPTOR.services_by_name["ToolService"]
INVOKE = SERVICE.methods_by_name["Invoke"]
REQUEST = tool_service_pb2.InvokeRequest(intent=call_pb2.ToolIntent(tool="core/util.time.now"))


@pytest.fixture
def channel() -> Any:
    return grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())


def answered(channel: Any, response: Any, trailers: Any, code: grpc.StatusCode, details: str) -> Any:
    """What the stub's caller gets when the test, as the hub, answers so."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(ToolServiceStub(channel).Invoke, REQUEST, timeout=60)
        _, asked, hub = channel.take_unary_unary(INVOKE)
        assert asked == REQUEST
        hub.send_initial_metadata(())
        hub.terminate(response, trailers, code, details)
        return calling.result(timeout=60)


def test_answer_reaches_the_caller(channel: Any) -> None:
    response = tool_service_pb2.InvokeResponse(result=result_pb2.ToolResult(ok=True, call_id="call_1"))
    assert answered(channel, response, (), grpc.StatusCode.OK, "").result.call_id == "call_1"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RpcFailure(Reason.ROLE_MISSING, "You lack the role."), HubRefused),
        (RpcFailure(Reason.MALFORMED_REQUEST, "Broken."), HubRefused),
        (RpcFailure(Reason.DRAINING, "Leaving.", retry_after_s=0.5), HubUnreachable),
    ],
)
def test_reason_of_a_refusal_reaches_the_person_at_the_terminal(
    channel: Any, failure: RpcFailure, kind: type[Exception]
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        answered(channel, None, (details_trailer(failure),), failure.code, failure.message)
    assert status_of(raised.value) == (failure.code, failure.message, failure.reason.name)
    with pytest.raises(kind) as ended, connect(Endpoint("127.0.0.1:1"), None, 1.0):
        raise raised.value
    assert failure.message in str(ended.value)
    assert failure.reason.name in str(ended.value)
