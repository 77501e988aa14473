"""The status of a failed RPC: the rich error model of AIP-193, unpacked."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class FailedRpc:
    code: grpc.StatusCode
    message: str
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """BadRequest: field path to what is wrong."""


async def failed(call: Awaitable[Any]) -> FailedRpc:
    """The failure of an RPC that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return failure_of(raised.value)


async def in_time(call: Awaitable[Answer]) -> Answer | None:
    """Its answer; None when its own deadline ended the RPC before."""
    try:
        return await call
    except grpc.aio.AioRpcError as late:
        if late.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return None


async def failed_stream(call: Any) -> FailedRpc:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in call:
            pass
    return failure_of(raised.value)


def failure_of(error: grpc.aio.AioRpcError) -> FailedRpc:
    info, retry, bad = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.BadRequest()
    retry_after_s = None
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(value)
        assert status.code == error.code().value[0]
        assert status.message == error.details()
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(bad)
            if detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToMilliseconds() / 1_000
    return FailedRpc(
        error.code(),
        error.details() or "",
        info.reason,
        info.domain,
        dict(info.metadata),
        retry_after_s,
        {violation.field: violation.description for violation in bad.field_violations},
    )
