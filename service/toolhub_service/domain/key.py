"""Idempotency keys: whose they are, who holds one now, and the answer of the call that held it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import ToolResult

# Why a new idempotency key is not taken: too many are remembered, of all or of one principal.

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
    # Never 0: who came back at once would find the store as full as before.
    retry_after_s = max(1.0, room_in_ms / 1_000)
    return refuse(ErrorKind.RATE_LIMITED, message, retry_after_s=retry_after_s, limit="idempotency", whose=whose)


class EffectKey(NamedTuple):
    """A key within its scope: two principals, or two tools, never meet in one."""

    principal: str
    tool: str
    key: str
    """The caller's, or the one that the hub derived."""


class KeyRecord(Struct, frozen=True, gc=False):
    """What is known under a key: a call that runs (`result` is None), or one that has ended and its answer."""

    owner: str
    """Token of one claim, never used twice: what compare-and-set compares."""
    call_id: str
    """The call that claimed the key."""
    args_digest: str
    """sha256 (hex) over its canonical arguments."""
    tool_digest: str
    """sha256 (hex) over the definition it was planned with."""
    lease_until_unix_ms: int
    """Until then its runner may be alive; a record without a result after that was left by a dead one."""
    expires_at_unix_ms: int
    """When the key is forgotten. Later than the lease."""
    result: ToolResult | None = None


class Claim(Struct, frozen=True, gc=False):
    """The right, and the duty, to end what is known under a key."""

    key: EffectKey
    owner: str
    safe_to_repeat: bool
    """Whether running the call twice does what running it once does."""
