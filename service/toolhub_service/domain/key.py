"""Idempotency keys: whose they are, who holds one now, and the answer of the call that held it."""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import Struct

from toolhub_service.domain.errors.failure import LONGEST_WAIT_S, ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import ToolResult

# Refusals of a new idempotency key: too many are remembered, of all or of one principal.

_ADVICE = (
    "Send the call without a key if having its effect twice does no harm, or ask an operator to raise "
    "idempotency.max_keys or max_bytes."
)


def full(room_in_ms: int) -> ToolFailure:
    """The store is full; `room_in_ms` is the time until the first key expires."""
    message = f"The hub remembers as many idempotency keys as it can, and forgets none early. {_ADVICE}"
    return refuse_key(message, room_in_ms, "all")


def refuse_key_share(room_in_ms: int) -> ToolFailure:
    """The principal holds as many as are free for all others; `room_in_ms` is the time until the first key expires."""
    message = (
        "The hub remembers as many idempotency keys of yours as it may, for the rest is left to others, and forgets "
        f"none early. {_ADVICE}"
    )
    return refuse_key(message, room_in_ms, "yours")


def refuse_key(message: str, room_in_ms: int, whose: str) -> ToolFailure:
    # Never 0: an immediate retry would find the store as full as before.
    wait_s = max(1.0, room_in_ms / 1_000)
    details: dict[str, JsonValue] = {"limit": "idempotency", "whose": whose}
    if wait_s > LONGEST_WAIT_S:
        details["passes_in_s"] = math.ceil(wait_s)
    error = ToolError(kind=ErrorKind.RATE_LIMITED, message=message, retry_after_s=wait_s, details=details)
    return ToolFailure(error)


class EffectKey(NamedTuple):
    """A key within its scope: keys of two principals, or two tools, never collide."""

    principal: str
    tool: str
    key: str
    """The caller's key, or the one that the hub derived."""


class KeyRecord(Struct, frozen=True, gc=False):
    """The record of a key: a running call (`result` is None), or an ended one with its answer."""

    owner: str
    """Token of one claim, never used twice; compare-and-set compares it."""
    call_id: str
    """The call that claimed the key."""
    args_digest: str
    """sha256 (hex) over the call's canonical arguments."""
    tool_digest: str
    """sha256 (hex) over the definition with which it was planned."""
    lease_until_unix_ms: int
    """Until then its runner may be alive; a later record without a result was left by a dead one."""
    expires_at_unix_ms: int
    """When the key is deleted; later than the lease."""
    result: ToolResult | None = None


class Claim(Struct, frozen=True, gc=False):
    """The right, and the duty, to settle or release a key."""

    key: EffectKey
    owner: str
    safe_to_repeat: bool
    """Whether running the call twice has the effect of running it once."""
