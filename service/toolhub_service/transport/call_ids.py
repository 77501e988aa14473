"""Call ids: sortable by time (like UUIDv7, RFC 9562), unguessable, short enough to read out."""

from __future__ import annotations

from toolhub_service.domain.ports import Clock, Randomness


def new_call_id(clock: Clock, randomness: Randomness) -> str:
    """`call_` + 12 hex digits of Unix milliseconds + 16 random ones."""
    return f"call_{clock.unix_ms():012x}{randomness.token_hex(8)}"
