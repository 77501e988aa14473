"""The caller's deadline as the runtime takes it."""

from __future__ import annotations

from toolhub_service.domain.ports import Clock
from toolhub_service.transport.rpc import ServicerContext

_RESERVE_S = 0.1
"""Kept back from the caller's deadline, so that a call that runs out of time is still answered by a ToolResult."""


def answer_deadline_s(clock: Clock, context: ServicerContext) -> float | None:
    """Loop clock: when a call of this RPC must have ended; None when its caller set no deadline."""
    remaining_s: float | None = context.time_remaining()  # typed as if there always were one
    if remaining_s is None:
        return None
    return clock.monotonic_s() + remaining_s - min(_RESERVE_S, remaining_s / 10)
