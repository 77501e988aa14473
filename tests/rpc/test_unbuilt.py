"""Every RPC of the contract is served, or says that it is not built: no silent hole, no stub that claims success."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.hub import RunningHub
from tests.rpc.statuses import failed, failed_stream
from toolhub_service.transport.server import _descriptors

BUILT = {
    *(
        "ToolService." + name
        for name in ("ListTools", "SearchTools", "GetTool", "ExportTools", "Invoke", "InvokeStream", "InvokeSession")
    ),
    *("RegistryService." + name for name in ("RegisterTool", "RegisterTools", "UnregisterTool")),
    *("RegistryService." + name for name in ("GetSnapshot", "ListSources")),
    *("JobService." + name for name in ("SubmitJob", "GetJob", "ListJobs", "WatchJob", "CancelJob")),
    *("ApprovalService." + name for name in ("ListApprovals", "GetApproval", "DecideApproval", "WatchApprovals")),
    *("ArtifactService." + name for name in ("GetArtifact", "ReadArtifact", "WriteArtifact")),
    *("AuditService." + name for name in ("ListEvents", "TailEvents", "VerifyAudit")),
}


def methods() -> Iterator[MethodDescriptor]:
    for service in _descriptors():
        yield from service.methods


def short(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


UNBUILT = [method for method in methods() if short(method) not in BUILT]


def test_what_is_called_built_stands_in_the_contract() -> None:
    assert {short(method) for method in methods()} >= BUILT
    assert UNBUILT


@pytest.mark.promise("contract.honest-unimplemented")
@pytest.mark.parametrize("method", UNBUILT, ids=short)
async def test_rpc_that_is_not_built_says_so(hub: RunningHub, method: MethodDescriptor) -> None:
    failure = await call(hub, method)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT"), failure
    assert failure.domain == "toolhub"
    assert method.name in failure.message


async def call(hub: RunningHub, method: MethodDescriptor) -> Any:
    """With a request that its contract accepts, for a malformed one is refused before anything else."""
    channel: Any = hub.channel
    takes = "stream" if method.client_streaming else "unary"
    gives = "stream" if method.server_streaming else "unary"
    path = f"/{method.containing_service.full_name}/{method.name}"
    start = getattr(channel, f"{takes}_{gives}")(path)
    sent = valid(GetMessageClass(method.input_type)()).SerializeToString()
    request: Any = iter([sent]) if method.client_streaming else sent
    started = start(request, timeout=20)
    return await (failed_stream(started) if method.server_streaming else failed(started))


def valid(message: Any) -> Any:
    """Fields that most requests require, where the message has them."""
    for name, value in (
        ("job_id", "job-1"),
        ("approval_id", "approval-1"),
        ("artifact_id", "a" * 64),
        ("source", "core"),
        ("digest", "0" * 64),
    ):
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    if "intent" in message.DESCRIPTOR.fields_by_name:
        message.intent.tool = "core/util.time.now"
    if "decision" in message.DESCRIPTOR.fields_by_name:
        message.decision = 1
    if "tool" in message.DESCRIPTOR.fields_by_name and message.DESCRIPTOR.fields_by_name["tool"].cpp_type == 9:
        message.tool = "core/util.time.now"
    return message
