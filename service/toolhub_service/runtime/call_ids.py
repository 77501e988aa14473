"""Ids of calls: sortable by time (like UUIDv7, RFC 9562), unguessable, short enough to read aloud."""

from __future__ import annotations

from toolhub_service.domain.ports import Clock, Randomness

_TAIL_BYTES = 8
_DRAWN = 64


class CallIds:
    """`call_` + 12 hex digits of Unix milliseconds + 16 random ones, drawn many at a time: each draw is a system call
    that releases the GIL."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._tails: list[str] = []

    def next(self) -> str:
        if not self._tails:
            drawn = self._randomness.token_hex(_DRAWN * _TAIL_BYTES)
            self._tails = [drawn[at : at + 2 * _TAIL_BYTES] for at in range(0, len(drawn), 2 * _TAIL_BYTES)]
        return f"call_{self._clock.unix_ms():012x}{self._tails.pop()}"
