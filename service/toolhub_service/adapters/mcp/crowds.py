"""How many values a message holds, told before it is read: eight megabytes of `[],` would hold the loop for seconds.

A parser makes an object of each value and holds the interpreter while it does, so that bytes alone bound nothing: a
long text costs a millisecond a megabyte, small values a hundred times as much. Counted are the commas and openings
outside strings, which is at most one less than the values there are; piece by piece as the message comes, for to count
one of megabytes at once would hold the loop as well.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

VALUES_MAX: Final = 100_000
"""In one message: about 15 ms of the loop, or 75 where the SDK reads it (HTTP). Each takes two bytes, so that a message
of no more bytes than this need not be counted."""
_STEP_BYTES: Final = 64 * 1024
_BEFORE_VALUES: Final = b",", b"[", b"{"


class Census:
    """Of one message."""

    def __init__(self) -> None:
        self._marks = 0
        self._quotes = 0
        self._is_escaped = False
        """Whether the last byte takes the meaning from the next."""

    @property
    def is_crowded(self) -> bool:
        """Each value, and each name, has two quotes at most."""
        return self._marks > VALUES_MAX or self._quotes > 4 * VALUES_MAX

    def take(self, piece: bytes) -> bool:
        """The next bytes; whether there are too many values already."""
        return any(self._step(piece[start : start + _STEP_BYTES]) for start in range(0, len(piece), _STEP_BYTES))

    def _step(self, piece: bytes) -> bool:
        parts = self._unescaped(piece).split(b'"')
        outside = b"".join(parts[self._quotes % 2 :: 2])
        self._quotes += len(parts) - 1
        self._marks += sum(map(outside.count, _BEFORE_VALUES))
        return self.is_crowded

    def _unescaped(self, piece: bytes) -> bytes:
        """Without what is escaped, as far as quotes go."""
        if self._is_escaped:
            piece = piece[1:]
        self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        return piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece


def counted(message: bytes) -> Generator[None, None, bool]:
    """Whether it holds too many; yields wherever the count can be left."""
    census = Census()
    if len(message) > VALUES_MAX:
        for start in range(0, len(message), _STEP_BYTES):
            if census.take(message[start : start + _STEP_BYTES]):
                break
            yield
    return census.is_crowded
