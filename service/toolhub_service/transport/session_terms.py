"""What a session runs its calls by: the principal and the deadline of its stream, the contract, its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Call
from toolhub_service.domain.ports import Invoker
from toolhub_service.domain.result import ToolResult
from toolhub_service.transport.session_room import Crowd

MAX_IN_FLIGHT = 256
MAX_OF_ALL = 1_000
"""Calls in flight of all sessions of a process, but for the first of each."""


class Journal(Protocol):
    """The log in which every call is recorded. A session is faster than a disk: it waits where the log falls behind."""

    def is_behind(self) -> bool: ...

    async def flush(self) -> None:
        """Return when what was recorded so far is written. Raises ToolFailure when it cannot be."""
        ...


class NoJournal:
    """Never behind."""

    def is_behind(self) -> bool:
        return False

    async def flush(self) -> None:
        """Nothing waits."""


NO_JOURNAL = NoJournal()


@dataclass(frozen=True, slots=True)
class SessionTerms:
    invoker: Invoker
    begin: Callable[[pb.SessionCall], Call]
    """The call as the runtime takes it."""
    check: Callable[[pb.InvokeSessionRequest], Mapping[int, ToolResult]]
    """The calls of a message, by place, that break the contract, answered. Raises RpcFailure when the message does."""
    cancelled: Callable[[Call], ToolResult]
    """The answer to a call that its caller cancelled."""
    journal: Journal
    crowd: Crowd
    """Of all sessions of this process."""
    max_in_flight: int = MAX_IN_FLIGHT
