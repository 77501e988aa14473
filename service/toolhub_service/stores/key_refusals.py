"""Why a new idempotency key is not taken: too many are remembered, of all or of one principal."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse

_ADVICE = (
    "Send the call without a key if having its effect twice does no harm, or ask an operator to raise "
    "idempotency.max_keys or max_bytes."
)


def full(room_in_ms: int) -> ToolFailure:
    """`room_in_ms`: until the first key expires."""
    message = f"The hub remembers as many idempotency keys as it can, and forgets none early. {_ADVICE}"
    return _refused(message, room_in_ms, "all")


def share_is_taken(room_in_ms: int) -> ToolFailure:
    """The principal holds as much as is free for all others. `room_in_ms`: until the first key expires."""
    message = (
        "The hub remembers as many idempotency keys of yours as it may, for the rest is left to others, and forgets "
        f"none early. Wait until some expire. {_ADVICE}"
    )
    return _refused(message, room_in_ms, "yours")


def _refused(message: str, room_in_ms: int, whose: str) -> ToolFailure:
    retry_after_s = max(1.0, room_in_ms / 1_000)
    return refuse(ErrorKind.RATE_LIMITED, message, retry_after_s=retry_after_s, limit="idempotency", whose=whose)
