"""Counts the values of a message before it is parsed: eight megabytes of `[],` would block the event loop for seconds.

A parser makes an object of each value, so a limit on bytes alone does not help: a long text costs a millisecond a
megabyte, small values a hundred times as much. Commas and openings outside strings are counted, at most one less than
there are values, piece by piece as the message arrives, so that counting does not block either.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

# Per message: about 15 ms of the loop, or 75 where the SDK reads it (HTTP). Each value takes two bytes, so a message of
# no more bytes than this need not be counted.
VALUES_MAX: Final = 100_000
_STEP_BYTES: Final = 64 * 1024
_BEFORE_VALUES: Final = b",", b"[", b"{"


class ValueCounter:
    """Counts the values of one message as it arrives."""

    def __init__(self) -> None:
        self._marks = 0
        self._quotes = 0
        self._is_escaped = False  # whether the last byte escapes the next

    @property
    def is_over_limit(self) -> bool:
        """Return whether there are too many; each value, and each name, has at most two quotes."""
        return self._marks > VALUES_MAX or self._quotes > 4 * VALUES_MAX

    def take(self, piece: bytes) -> bool:
        """Count the next bytes. Return whether there are too many values already."""
        return any(self._step(piece[start : start + _STEP_BYTES]) for start in range(0, len(piece), _STEP_BYTES))

    def _step(self, piece: bytes) -> bool:
        # Split at quotes, every other part is outside strings: C code reads the bytes, and Python only the parts.
        parts = self._drop_escapes(piece).split(b'"')
        outside = b"".join(parts[self._quotes % 2 :: 2])
        # Quotes are limited too: short strings cost Python as much as values do.
        self._quotes += len(parts) - 1
        self._marks += sum(map(outside.count, _BEFORE_VALUES))
        return self.is_over_limit

    def _drop_escapes(self, piece: bytes) -> bytes:
        """Return the piece without escaped characters, as far as they matter for quotes."""
        if self._is_escaped:
            piece = piece[1:]
        self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        return piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece


def count_values(message: bytes) -> Generator[None, None, bool]:
    """Return whether the message holds too many values; yields where the count can be interrupted."""
    counter = ValueCounter()
    if len(message) > VALUES_MAX:
        for start in range(0, len(message), _STEP_BYTES):
            if counter.take(message[start : start + _STEP_BYTES]):
                break
            yield
    return counter.is_over_limit
