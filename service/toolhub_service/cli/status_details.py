"""The details that the status of a failed RPC carries beside its code and message (google.rpc.Status, AIP-193)."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2


def unpacked(error: grpc.RpcError, into: Message) -> bool:
    """Whether there is a detail of this type; `into` is filled with the first."""
    call: Any = error  # what a stub raises is an RpcError and a Call at once, which the stubs' types cannot say
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return any(detail.Unpack(into) for detail in status_pb2.Status.FromString(value).details)
    return False
