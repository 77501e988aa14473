"""Cuts a stream of bytes into lines of bounded length, and of a bounded number of values (crowds.py).

Of a line that is too long only its first and last bytes are kept, enough to find out which request it would have
answered: servers write the `id` either first (Python) or last (TypeScript).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from toolhub_service.adapters.mcp.crowds import VALUES_MAX, Census

_EDGE_BYTES = 256
_LATER_MAX = 2
_OPENING = re.compile(rb'\{\s*"(?:jsonrpc|result|error)"\s*:')
_ID = rb'"id"\s*:\s*(?:(\d{1,18})|"([\w.:-]{1,64})")'
_FIRST = re.compile(rb'\s*\[?\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'(?!\s*,\s*"method")')
_LAST = re.compile(
    rb',\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\]?\s*$'
)
_MESSAGE = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:')


def later_messages(line: bytes) -> Iterator[bytes]:
    """What may be a whole message behind one that broke off in its line, or behind a text without a line end."""
    openings = (found.start() for found in _OPENING.finditer(line, 1))
    return (line[start:] for start in islice(openings, _LATER_MAX))


def _beginning(pieces: Iterable[bytes]) -> bytes:
    """Joined no further than is kept of it: the whole may have megabytes."""
    beginning = b""
    for piece in pieces:
        beginning += piece[:_EDGE_BYTES]
        if len(beginning) >= _EDGE_BYTES:
            break
    return beginning[:_EDGE_BYTES]


def _end(pieces: list[bytes]) -> bytes:
    return b"".join([piece[-_EDGE_BYTES:] for piece in pieces[-_EDGE_BYTES:]])[-_EDGE_BYTES:]


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that was not kept, or not read."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, line: bytes) -> TooLong:
        return cls(line[:_EDGE_BYTES], line[-_EDGE_BYTES:])

    @property
    def answers(self) -> int | str | None:
        """The id of the request that it would have answered; None when that cannot be told."""
        found = _FIRST.match(self.head) or _LAST.search(self.tail)
        if found is None:
            return None
        return int(found[1]) if found[1] else str(found[2], "ascii")

    @property
    def is_unasked(self) -> bool:
        """A notification or a request of the server's: no call waits for it."""
        return _MESSAGE.match(self.head) is not None


class Lines:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._short_bytes = min(max_bytes, VALUES_MAX)
        """So much is never too much."""
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._too_long: bytes | None = None
        """The head of the line that is being skipped."""
        self._tail = b""
        self._census: Census | None = None
        """Of a line that may hold too many values."""

    def feed(self, data: bytes) -> Iterator[bytes | TooLong]:
        """The lines that this piece completes, without their ends. Consume it wholly."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            yield self._finished()
            start = end + 1
        self._take(data[start:])

    def _take(self, piece: bytes) -> None:
        if self._too_long is not None:
            self._tail = (self._tail + piece[-_EDGE_BYTES:])[-_EDGE_BYTES:]
        elif piece:
            self._pieces.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes > self._short_bytes and self._is_too_much():
                self._too_long, self._tail = _beginning(self._pieces), _end(self._pieces)
                self._pieces.clear()

    def _is_too_much(self) -> bool:
        """Told after each piece."""
        if self._held_bytes > self._max_bytes:
            return True
        if self._census is None:
            self._census = Census()
            return any(map(self._census.take, self._pieces))
        return self._census.take(self._pieces[-1])

    def _finished(self) -> bytes | TooLong:
        line: bytes | TooLong
        if self._too_long is not None:
            line = TooLong(self._too_long, self._tail)
        else:
            line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held_bytes, self._too_long, self._tail, self._census = [], 0, None, b"", None
        return line
