"""Every RPC of the contract is served: no hole that a client finds by falling into it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.hub import RunningHub
from toolhub_service.transport.server import _descriptors


def methods() -> Iterator[MethodDescriptor]:
    for service in _descriptors():
        yield from service.methods


def short(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


@pytest.mark.promise("contract.whole")
@pytest.mark.parametrize("method", list(methods()), ids=short)
async def test_rpc_of_the_contract_is_served(hub: RunningHub, method: MethodDescriptor) -> None:
    """What it answers stands in the tests of its own; here it may refuse, but not for want of an implementation."""
    assert await status(hub, method) not in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


async def status(hub: RunningHub, method: MethodDescriptor) -> grpc.StatusCode:
    """Of an answer, or of the first message of a stream."""
    try:
        await call(hub, method)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def call(hub: RunningHub, method: MethodDescriptor) -> None:
    """With a request that its contract accepts, for a malformed one is refused before anything else."""
    channel: Any = hub.channel
    takes = "stream" if method.client_streaming else "unary"
    gives = "stream" if method.server_streaming else "unary"
    path = f"/{method.containing_service.full_name}/{method.name}"
    start = getattr(channel, f"{takes}_{gives}")(path)
    sent = valid(GetMessageClass(method.input_type)()).SerializeToString()
    request: Any = iter([sent]) if method.client_streaming else sent
    started = start(request, timeout=60)
    if not method.server_streaming:
        await started
        return
    waits = asyncio.ensure_future(started.read())
    metadata = asyncio.ensure_future(started.initial_metadata())  # all that a stream without events sends at once
    await asyncio.wait({waits, metadata}, return_when=asyncio.FIRST_COMPLETED)
    if waits.done():
        await waits
    started.cancel()
    await asyncio.gather(waits, metadata, return_exceptions=True)


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
