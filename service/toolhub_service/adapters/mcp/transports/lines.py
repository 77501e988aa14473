"""Splits a byte stream into lines of bounded length and with a bounded number of values.

Of a line that is too long only the first and last bytes are kept, enough to find out which request it would have
answered: servers write the `id` either first (Python) or last (TypeScript).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from toolhub_service.adapters.mcp.transports.value_counter import VALUES_MAX, ValueCounter

LINES_MAX = 200
BYTES_MAX = 32 * 1024  # searching so much for secrets takes 5 ms
LINE_MAX_BYTES = 2_000


class Tail:
    """The last lines of an output: at most 200 and 32 KiB, long ones truncated."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        # From the end: a flood of empty lines is not split into lines that nobody will read.
        *whole, rest = data[-2 * BYTES_MAX :].rsplit(b"\n", LINES_MAX)
        if whole:
            *earlier, last = whole[0].rsplit(b"\n", 1)
            whole[0] = last if earlier else self._unfinished + last
            for line in whole:
                self._keep(line[:LINE_MAX_BYTES])
            self._unfinished = b""
        self._unfinished = (self._unfinished + rest)[:LINE_MAX_BYTES]

    def lines(self) -> list[str]:
        """Return the lines, oldest first and the unfinished one last."""
        last = [self._unfinished] if self._unfinished else []
        return [line.decode("utf-8", "replace") for line in (*self._lines, *last)]

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        while len(self._lines) > LINES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._lines.popleft())


_EDGE_BYTES = 256
_LATER_MAX = 2
_OPENING = re.compile(rb'\{\s*"(?:jsonrpc|result|error)"\s*:')
_ID = rb'"id"\s*:\s*(?:(\d{1,18})|"([\w.:-]{1,64})")'
_FIRST = re.compile(rb'\s*\[?\s*\{\s*(?:"jsonrpc"\s*:\s*"[\d.]{1,8}"\s*,\s*)?' + _ID + rb'(?!\s*,\s*"method")')
_LAST = re.compile(
    rb',\s*(?:"jsonrpc"\s*:\s*"[\d.]{1,8}"\s*,\s*)?' + _ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"[\d.]{1,8}"\s*)?\}\s*\]?\s*$'
)
_MESSAGE = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:')


def later_messages(line: bytes) -> Iterator[bytes]:
    """Yield possible whole messages behind one that broke off in its line, or behind a text without a line end."""
    openings = (found.start() for found in _OPENING.finditer(line, 1))
    return (line[start:] for start in islice(openings, _LATER_MAX))


def _beginning(pieces: Iterable[bytes]) -> bytes:
    """Return the joined beginning, only as much as is kept: the whole may have megabytes."""
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
    """A line that was not kept, or not parsed."""

    head: bytes
    tail: bytes
    has_many_values: bool = False
    """Whether its values were too many, not its bytes."""

    @classmethod
    def of(cls, line: bytes) -> TooLong:
        return cls(line[:_EDGE_BYTES], line[-_EDGE_BYTES:])

    @property
    def answers(self) -> int | str | None:
        """Return the id of the request that it would have answered; None when it cannot be read."""
        found = _FIRST.match(self.head) or _LAST.search(self.tail)
        if found is None:
            return None
        return int(found[1]) if found[1] else str(found[2], "ascii")

    @property
    def is_unasked(self) -> bool:
        """Return whether it is a notification or a request of the server, for which no call waits."""
        return _MESSAGE.match(self.head) is not None


class Lines:
    """Splits a stream into lines, and skips those that are too long or hold too many values."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._short_bytes = min(max_bytes, VALUES_MAX)  # a message this short cannot hold too many values
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._too_long: bytes | None = None  # the head of the line that is being skipped
        self._tail = b""
        self._has_many_values = False
        self._counter: ValueCounter | None = None  # for a line that may hold too many values

    def feed(self, data: bytes) -> Iterator[bytes | TooLong]:
        """Yield the lines that this piece completes, without their ends. The iterator must be exhausted."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            yield self._take_line()
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
                self._has_many_values = self._held_bytes <= self._max_bytes
                self._pieces.clear()

    def _is_too_much(self) -> bool:
        """Return whether the line is over a limit; called after each piece."""
        if self._held_bytes > self._max_bytes:
            return True
        if self._counter is None:
            self._counter = ValueCounter()
            return any(map(self._counter.take, self._pieces))
        return self._counter.take(self._pieces[-1])

    def _take_line(self) -> bytes | TooLong:
        line: bytes | TooLong
        if self._too_long is not None:
            line = TooLong(self._too_long, self._tail, self._has_many_values)
        else:
            line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held_bytes, self._too_long, self._tail, self._counter = [], 0, None, b"", None
        return line
