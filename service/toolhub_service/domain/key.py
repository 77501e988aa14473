"""Idempotency keys: whose they are, who holds one now, and what came of the call that held it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toolhub_service.domain.result import ToolResult


class EffectKey(NamedTuple):
    """A key within its scope: two principals, or two tools, never meet in one."""

    principal: str
    tool: str
    key: str
    """The caller's, or the one that the hub derived."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
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


@dataclass(frozen=True, slots=True)
class Claim:
    """The right, and the duty, to end what is known under a key."""

    key: EffectKey
    owner: str
    safe_to_repeat: bool
    """Whether running the call twice does what running it once does."""
