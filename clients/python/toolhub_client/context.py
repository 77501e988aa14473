"""The circumstances of a call, as the caller states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from toolhub.v1 import call_pb2


@dataclass(frozen=True, slots=True)
class Context:
    """Who asked for what piece of work, and what it may spend. Empty fields are left to the hub."""

    request_id: str = ""
    """One user request, shared by all its calls; names the workspace."""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: tuple[str, ...] = ()
    """Capabilities the call may use; empty: all that the caller holds."""
    timeout_s: float | None = None
    """For the whole call, retries included."""
    max_retries: int | None = None
    max_tool_calls: int | None = None
    """Calls of the request in all."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_proto(self) -> call_pb2.ExecContext:
        budget = call_pb2.CallBudget(max_retries=self.max_retries, max_tool_calls=self.max_tool_calls)
        if self.timeout_s is not None:
            timeout = Duration()
            timeout.FromMicroseconds(round(self.timeout_s * 1_000_000))
            budget.timeout.CopyFrom(timeout)
        return call_pb2.ExecContext(
            request_id=self.request_id,
            task_id=self.task_id,
            session_id=self.session_id,
            agent_id=self.agent_id,
            user_id=self.user_id,
            permissions=self.permissions,
            budget=budget,
            labels=self.labels,
        )
