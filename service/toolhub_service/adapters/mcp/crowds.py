"""How many values a message holds, told before it is read: eight megabytes of `[],` would hold the loop for seconds.

A parser makes an object of each value and holds the interpreter while it does, so that bytes alone bound nothing: a
long text costs a millisecond a megabyte, small values a hundred times as much. Counted are the commas and openings
outside strings, which is at most one less than the values there are.
"""

from __future__ import annotations

from typing import Final

VALUES_MAX: Final = 100_000
"""In one message: about 15 ms of the loop, or 75 where the SDK reads it (HTTP)."""
_BEFORE_VALUES: Final = b",", b"[", b"{"


def is_crowded(message: bytes) -> bool:
    """Whether it holds more than `VALUES_MAX` values. Linear, and mostly nothing: each value takes two bytes."""
    if len(message) <= VALUES_MAX or _marks(message) <= VALUES_MAX:
        return False
    plain = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * VALUES_MAX:
        return True
    return sum(map(_marks, plain.split(b'"')[::2])) > VALUES_MAX


def _marks(text: bytes) -> int:
    return sum(map(text.count, _BEFORE_VALUES))
