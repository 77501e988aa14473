"""How much framing an upstream may wrap its content in, whichever client reads it: chunks, heads, fields, reads, lines.

A limit on bytes alone does not bound the work of reading: a chunk, a head or a line costs tens of microseconds of the
event loop, however small it is. So they are counted, and must be in proportion to the content that they carry;
`HttpFraming` does it for one HTTP/1.1 connection, as a state machine without I/O between the socket and the client's
parser, and finds there where each response ends (RFC 9112 §6.3). Beyond a few lines others have a turn
(`cooperative.pass_turnstile`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import pairwise
from typing import Final

import h11

from toolhub_service.egress.breakage import Breakage, WireError

# Bounds of one kind of framing.


class Allowance:
    """So many units are free; more of them need content, or time."""

    def __init__(
        self, free: int, *, bytes_each: int, per_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`bytes_each`: of content, for one more unit."""
        self._free = free
        self._bytes_each = bytes_each
        self._per_s = per_s
        self._now_s = now_s
        self._began_s = now_s()
        self.units = 0
        self.content_bytes = 0

    def take(self, units: int, content_bytes: int) -> bool:
        """Count units and the content that came with them. Return whether they are within the allowance."""
        self.units += units
        self.content_bytes += content_bytes
        missing = self.units - self._free - self.content_bytes // self._bytes_each
        return missing <= 0 or missing <= (self._now_s() - self._began_s) * self._per_s


def chunk_allowance() -> Allowance:
    """Return the chunks of one body: a server that sends each word as a chunk stays below it."""
    return Allowance(16 * 1024, bytes_each=64, per_s=50)


def framing_allowance() -> Allowance:
    """Return the bytes of framing (sizes, extensions, trailers; comments) beside as many bytes of content."""
    return Allowance(256 * 1024, bytes_each=1, per_s=1024)


def read_allowance() -> Allowance:
    """Return the pieces in which one connection's bytes may arrive."""
    return Allowance(64 * 1024, bytes_each=16, per_s=100)


class Pace:
    """Slows down what is more than a burst, instead of refusing it."""

    def __init__(self, free: int, per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._per_s = per_s
        self._now_s = now_s
        self._left = float(free)
        self._at_s = now_s()

    def take(self, units: int) -> float:
        """Count units; return the seconds to wait before more are read, 0 nearly always."""
        self._left -= units
        if self._left >= 0:
            return 0.0
        now_s = self._now_s()
        self._left = min(float(self._free), self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return max(0.0, -self._left / self._per_s)

    def earn(self, units: int) -> None:
        """Allow for units that were asked for."""
        self._left = min(float(self._free), self._left + units)


# One HTTP/1.1 connection.

HEAD_MAX_BYTES: Final = 64 * 1024
FIELDS_MAX: Final = 256
HEADS_MAX: Final = 16
"""The final one and interim ones (1xx)."""
# At most half as many chunks are parsed before others have a turn.
LINES_A_TURN: Final = 128
_LINE_END: Final = b"\r\n"
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Part(Enum):
    HEAD = auto()
    COUNTED_BODY = auto()
    CHUNKED_BODY = auto()
    BODY_UNTIL_CLOSE = auto()


class HttpFraming:
    """Passes on the bytes of one response at a time, in pieces that cost one turn each.

    Between `begin` and `body_follows` it reads a head. Bytes after a complete response stay here (`has_bytes`): a
    client's parser would keep them, and they would answer the next request (response desync).
    """

    def __init__(self) -> None:
        self._part = _Part.HEAD
        self._arrived = b""
        self._at = 0
        self._reads = read_allowance()
        self._body_bytes = 0
        """Remaining bytes of a counted body."""
        self._chunks: h11.Connection | None = None
        self._chunk_count, self._framing = chunk_allowance(), framing_allowance()
        self._head_bytes = 0
        self._head_lines = 0
        self._head_tail = b""
        """Last bytes of the head so far: its blank line may arrive in two pieces."""
        self._heads = 0
        self.answers = 0

    @property
    def has_bytes(self) -> bool:
        """Return whether bytes have arrived that were not passed on."""
        return self._at < len(self._arrived)

    @property
    def ends_with_connection(self) -> bool:
        """Return whether the response ends when the connection does."""
        return self._part is _Part.BODY_UNTIL_CLOSE

    @property
    def is_in_head(self) -> bool:
        return self._part is _Part.HEAD

    @property
    def costs_a_turn(self) -> bool:
        """Return whether the next piece has so many lines that others should run before it."""
        return self._part is _Part.CHUNKED_BODY and self._arrived.count(_LINE_END, self._at) > LINES_A_TURN

    def begin(self) -> None:
        """A request is being sent: a head follows."""
        self._part = _Part.HEAD
        self._head_bytes = self._head_lines = self._heads = 0
        self._head_tail = b""

    def body_follows(self, method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that the last head was the final one, and how its body is framed."""
        self.answers += 1
        fields = {name.lower(): value for name, value in headers}
        if method == "HEAD" or status in {204, 304}:
            self._part, self._body_bytes = _Part.COUNTED_BODY, 0
        elif b"transfer-encoding" in fields:
            self._part, self._chunks = _Part.CHUNKED_BODY, _chunk_reader()
            self._chunk_count, self._framing = chunk_allowance(), framing_allowance()
        elif b"content-length" in fields:
            self._part, self._body_bytes = _Part.COUNTED_BODY, int(fields[b"content-length"])
        else:
            self._part = _Part.BODY_UNTIL_CLOSE

    def feed(self, data: bytes) -> None:
        """Take what was read from the socket, when all before it was passed on. Raises WireError CRUMBLED."""
        if not self._reads.take(1, len(data)):
            raise WireError(Breakage.CRUMBLED)
        self._arrived, self._at = data, 0

    def next_piece(self, max_bytes: int) -> bytes:
        """Return the next bytes of the response. Raises WireError MALFORMED, CRUMBLED."""
        end = min(len(self._arrived), self._at + max_bytes)
        if self._part is _Part.CHUNKED_BODY:
            end = min(end, self._end_of_lines())
        piece = self._arrived[self._at : end] if self._at or end < len(self._arrived) else self._arrived
        size = self._end_in(piece)
        self._at += size
        if self._at == len(self._arrived):
            self._arrived, self._at = b"", 0  # not kept for as long as the connection idles
        return piece if size == len(piece) else piece[:size]

    def _end_of_lines(self) -> int:
        """Return the end of the lines that one turn may parse."""
        at = self._at
        for _ in range(LINES_A_TURN):
            found = self._arrived.find(_LINE_END, at)
            if found < 0:
                return len(self._arrived)
            at = found + len(_LINE_END)
        return at

    def _end_in(self, data: bytes) -> int:
        """Return how many of these bytes belong to the response."""
        if self._part is _Part.HEAD:
            return self._end_of_head(data)
        if self._part is _Part.COUNTED_BODY:
            end = min(len(data), self._body_bytes)
            self._body_bytes -= end
            return end
        if self._part is _Part.CHUNKED_BODY and self._chunks is not None:
            return self._end_of_chunks(data, self._chunks)
        return len(data)

    def _end_of_head(self, data: bytes) -> int:
        blank = _BLANK_LINE.search(self._head_tail + data)
        end = blank.end() - len(self._head_tail) if blank else len(data)
        self._head_tail = b"" if blank else (self._head_tail + data[-2:])[-2:]
        self._head_bytes += end
        self._head_lines += data.count(b"\n", 0, end)
        self._heads += blank is not None
        # Each head has a line of its status and a blank one.
        too_many_lines = self._head_lines > FIELDS_MAX + 2 * (self._heads + 1)
        if self._head_bytes > HEAD_MAX_BYTES or self._heads > HEADS_MAX or too_many_lines:
            raise WireError(Breakage.MALFORMED)
        return end

    def _end_of_chunks(self, data: bytes, chunks: h11.Connection) -> int:
        count = carried_bytes = 0
        try:
            chunks.receive_data(data)
            while isinstance(event := chunks.next_event(), h11.Data):
                count += event.chunk_end
                carried_bytes += len(event.data)
        except h11.RemoteProtocolError:
            raise WireError(Breakage.MALFORMED) from None
        is_within = self._chunk_count.take(count, carried_bytes)
        if not self._framing.take(len(data) - carried_bytes, carried_bytes) or not is_within:
            raise WireError(Breakage.CRUMBLED)
        return len(data) - len(chunks.trailing_data[0]) if isinstance(event, h11.EndOfMessage) else len(data)


def _chunk_reader() -> h11.Connection:
    """Return a parser positioned before the first chunk of a body."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(_CHUNKED_HEAD)
    reader.next_event()
    return reader


# One WebSocket (RFC 6455 §5.2), after its handshake.

_FRAMES_A_TURN: Final = 64
_CHECKED_EVERY: Final = 1024
_HEADER_MAX_BYTES: Final = 14
_MASKED: Final = 0x80
_LONG: Final = {126: 2, 127: 8}
"""Bytes of an extended length, by the short one."""


class WebSocketFraming:
    """Counts the frames of one connection: pings, fragments and empty messages cost what long ones do."""

    def __init__(self) -> None:
        self._frames = Allowance(16 * 1024, bytes_each=64, per_s=50)
        self._header = b""
        self._left_bytes = 0

    def split(self, data: bytes) -> list[bytes]:
        """Return the data in pieces of a few frames. Raises WireError CRUMBLED for too many of them."""
        cuts, at, frames = [0], 0, 0
        while at < len(data):
            if self._left_bytes:
                step = min(self._left_bytes, len(data) - at)
                self._left_bytes -= step
                at += step
                continue
            header = self._header + data[at : at + _HEADER_MAX_BYTES - len(self._header)]
            size_bytes = _header_bytes(header)
            if len(header) < size_bytes:
                self._header = header
                break
            at += size_bytes - len(self._header)
            self._header, self._left_bytes = b"", _payload_bytes(header)
            frames += 1
            if frames % _FRAMES_A_TURN == 0:
                cuts.append(at)
            if frames % _CHECKED_EVERY == 0:
                self._count(_CHECKED_EVERY, 0)
        self._count(frames % _CHECKED_EVERY, len(data))
        return [data[start:end] for start, end in pairwise([*cuts, len(data)]) if end > start]

    def _count(self, frames: int, content_bytes: int) -> None:
        if not self._frames.take(frames, content_bytes):
            raise WireError(Breakage.CRUMBLED)


def _header_bytes(header: bytes) -> int:
    if len(header) < 2:
        return 2
    return 2 + _LONG.get(header[1] & ~_MASKED, 0) + (4 if header[1] & _MASKED else 0)


def _payload_bytes(header: bytes) -> int:
    short = header[1] & ~_MASKED
    return int.from_bytes(header[2 : 2 + _LONG[short]]) if short in _LONG else short
