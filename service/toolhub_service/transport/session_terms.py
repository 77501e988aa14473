"""What a session runs its calls by: the principal and the deadline of its stream, the contract, its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Call
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.result import ToolResult

MAX_IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class SessionTerms:
    invoker: Invoker
    begin: Callable[[pb.SessionCall], Call]
    """The call as the runtime takes it."""
    check: Callable[[pb.InvokeSessionRequest], Mapping[int, ToolResult]]
    """The calls of a message, by place, that break the contract, answered. Raises RpcFailure when the message does."""
    cancelled: Callable[[Call], ToolResult]
    """The answer to a call that its caller cancelled."""
    max_in_flight: int = MAX_IN_FLIGHT
