"""Reads requests of HTTP/1.1 from the bytes of a connection, strictly, and one at a time (RFC 9112).

Two readers that see different boundaries let a caller smuggle a request past one of them: a proxy that checks, a log, a
limit. So whatever could be read in two ways is refused, and the connection closed, although some of it may be
tolerated: both Content-Length and Transfer-Encoding, either of them twice, a bare CR or LF, folded lines, blanks before
a colon, other codings than `chunked`, versions other than 1.0 and 1.1. Chunk extensions and trailers are checked and
dropped. No other parser of the hub reads a request after this one.

Sources: RFC 9112 §2.2, §2.3, §3, §5, §6, §7.1; RFC 9110 §5.5, §7.2; CWE-444.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

HEAD_MAX_BYTES: Final = 32 * 1024
FIELDS_MAX: Final = 100
_LINE_MAX_BYTES: Final = 256
_TRAILERS_MAX_BYTES: Final = 4 * 1024
# So many chunks are free; beyond, there is one for each so many bytes: a chunk of one byte costs what a large one does.
_CHUNKS_FREE: Final = 1_000
_BYTES_A_CHUNK: Final = 64

_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") (\S+) HTTP/(\d\.\d)")
_TARGET: Final = re.compile(rb"/[!$-~]*")  # a path (origin-form): without a fragment, and of visible ASCII
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):([\t -~\x80-\xff]*)")
_HOST: Final = re.compile(rb"[^\s,/]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t -~\x80-\xff]*)?")

_FRAMING: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
_NO_FIELD: Final = "A line of the head is no header field. Write `name: value`, without a blank before the colon."
_FOLDED: Final = "A line of the head begins with a blank. Write each field on one line."
_BARE_END: Final = "A line ends without CR LF. End each line of a request with both."


class RequestRefused(Exception):
    """The connection cannot be read further: answer with `status` and the message, and close it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead(NamedTuple):
    method: str
    target: bytes
    """A path with its query, of visible ASCII."""
    version: str
    """`1.0` or `1.1`."""
    fields: list[tuple[bytes, bytes]]
    """Names in lower case, values without blanks around them."""
    length: int
    """Bytes of the body, if it is not chunked."""
    is_chunked: bool


class Arrived(NamedTuple):
    """What has arrived of a request."""

    head: RequestHead | None
    """None: it came before, or is not whole."""
    content: bytes
    """The next part of its body, without framing."""


class RequestFraming:
    """The requests that arrive on one connection. `take` what arrives; after each request `go_on`."""

    def __init__(self) -> None:
        self._held = bytearray()
        """What has arrived and was not read."""
        self._arrived: RequestHead | None = None
        self._searched = 0
        self._left = 0
        """Bytes of the body, or of the chunk, that are to come."""
        self._is_in_chunk = False
        self._trailers_left = 0
        self._chunks_left = 0
        self._state = self._head

    @property
    def is_whole(self) -> bool:
        """Whether a request has arrived to its end, and the next one waits for `go_on`."""
        return self._state == self._nothing

    @property
    def is_between(self) -> bool:
        """Whether nothing of the next request has arrived."""
        return self._state == self._head and not self._held

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the end of a head, or for `go_on`."""
        return len(self._held)

    def take(self, data: bytes) -> Arrived:
        """Return what of the request is there now. Raises RequestRefused."""
        self._held += data
        self._arrived = None
        content = bytearray()
        while self._state(content):
            pass
        return Arrived(self._arrived, bytes(content))

    def go_on(self) -> Arrived:
        """Begin the next request: as `take`, of what was held meanwhile."""
        if self.is_whole:
            self._state = self._head
        return self.take(b"")

    # Each state reads what it can, and returns whether the next one has something to read.

    def _nothing(self, content: bytearray) -> bool:
        return False

    def _head(self, content: bytearray) -> bool:
        end = self._held.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end < 0:
            self._check_unfinished()
            return False
        if end > HEAD_MAX_BYTES:
            raise _head_too_large()
        head = self._arrived = read_head(bytes(self._held[:end]))
        del self._held[: end + 4]
        self._searched = 0
        self._left, self._is_in_chunk = head.length, False
        self._chunks_left, self._trailers_left = _CHUNKS_FREE * _BYTES_A_CHUNK, _TRAILERS_MAX_BYTES
        self._state = self._chunks if head.is_chunked else self._body if head.length else self._nothing
        return True

    def _check_unfinished(self) -> None:
        if _BARE.search(self._held, max(0, self._searched - 1)):
            raise RequestRefused(400, _BARE_END)
        if len(self._held) > HEAD_MAX_BYTES:
            raise _head_too_large()
        self._searched = len(self._held)

    def _body(self, content: bytearray) -> bool:
        taken = self._held[: self._left]
        content += taken
        del self._held[: len(taken)]
        self._left -= len(taken)
        if not self._left:
            self._state = self._nothing
        return False

    def _chunks(self, content: bytearray) -> bool:
        """Read the content of every chunk that is here."""
        at = 0
        while True:
            taken = self._held[at : at + self._left]
            content += taken
            at += len(taken)
            self._left -= len(taken)
            if self._left:
                break
            end = self._line_end(at)
            if end < 0:
                break
            is_last = self._begin_chunk(bytes(self._held[at:end]))
            at = end + 2
            if is_last:
                self._state = self._trailers
                break
        del self._held[:at]
        return self._state == self._trailers

    def _begin_chunk(self, line: bytes) -> bool:
        """Read the line before a chunk, or the empty one behind its content; return whether it is the last chunk."""
        if self._is_in_chunk:
            self._is_in_chunk = False
            if line:
                raise RequestRefused(400, "A chunk is longer than it says. Send as many bytes as its size.")
            return False
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise RequestRefused(400, "A chunk has no valid size. Write it as hexadecimal digits, eight at most.")
        self._left = int(size[1], 16)
        self._is_in_chunk = self._left > 0
        self._chunks_left += self._left - _BYTES_A_CHUNK
        if self._chunks_left < 0:
            raise RequestRefused(400, "The body has too many small chunks. Send larger ones, or Content-Length.")
        return not self._left

    def _line_end(self, at: int) -> int:
        """Return where the line that begins there ends; -1 when more has to come."""
        end = self._held.find(b"\n", at, at + _LINE_MAX_BYTES)
        if end < 0:
            if len(self._held) - at >= _LINE_MAX_BYTES:
                raise RequestRefused(400, "The line before a chunk is too long. Leave chunk extensions out.")
            return -1
        if end == at or self._held[end - 1] != 13:
            raise RequestRefused(400, _BARE_END)
        return end - 1

    def _trailers(self, content: bytearray) -> bool:
        """Fields behind the last chunk: checked and dropped."""
        while (end := self._line_end(0)) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 2]
            self._trailers_left -= end + 2
            if not line:
                self._state = self._nothing
                return False
            if self._trailers_left < 0 or _FIELD.fullmatch(line) is None:
                raise RequestRefused(400, "The trailers behind the body are invalid. Leave them out.")
        return False


def _head_too_large() -> RequestRefused:
    return RequestRefused(431, f"The head of the request is larger than {HEAD_MAX_BYTES:,} bytes.")


def read_head(raw: bytes) -> RequestHead:
    """Read a head. `raw`: without its last CR LF CR LF. Raises RequestRefused."""
    if _BARE.search(raw):
        raise RequestRefused(400, _BARE_END)
    first, *lines = raw.split(b"\r\n")
    method, target, version = _read_request_line(first)
    if len(lines) > FIELDS_MAX:
        raise RequestRefused(431, f"The request has more than {FIELDS_MAX} header fields.")
    fields: list[tuple[bytes, bytes]] = []
    framing: dict[bytes, bytes] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise RequestRefused(400, _FOLDED if line[:1] in b" \t" else _NO_FIELD)
        name, value = field[1].lower(), field[2].strip(b" \t")
        if name in _FRAMING:
            if name in framing:
                raise RequestRefused(400, f"The request has several {name.decode()} fields. Send one.")
            framing[name] = value
        fields.append((name, value))
    host = framing.get(b"host")
    if _HOST.fullmatch(host or b"") is None or (host is None and version == "1.1"):
        raise RequestRefused(400, "The request needs one Host field, with one name or address.")
    length = _read_length(framing.get(b"content-length"), framing.get(b"transfer-encoding"), version)
    return RequestHead(method, target, version, fields, length or 0, is_chunked=length is None)


def _read_request_line(line: bytes) -> tuple[str, bytes, str]:
    """Return (method, target, version)."""
    parts = _REQUEST_LINE.fullmatch(line)
    if parts is None:
        raise RequestRefused(400, "The first line is no request. Write `METHOD PATH HTTP/1.1`, with single blanks.")
    version = parts[3].decode()
    if version not in ("1.0", "1.1"):
        raise RequestRefused(505, f"This port speaks HTTP/1.1, not HTTP/{version}.")
    if _TARGET.fullmatch(parts[2]) is None:
        raise RequestRefused(400, "The target of a request is a path that begins with `/`, in ASCII.")
    return parts[1].decode(), parts[2], version


def _read_length(length: bytes | None, coding: bytes | None, version: str) -> int | None:
    """Return the bytes of the body; None when it is chunked."""
    if coding is None:
        if length is None:
            return 0
        if _LENGTH.fullmatch(length) is None:
            raise RequestRefused(400, "Content-Length is no number. Send the body's size in bytes, in decimal digits.")
        return int(length)
    if length is not None:
        raise RequestRefused(400, "The request has Content-Length and Transfer-Encoding. Send one of them.")
    if version == "1.0":
        raise RequestRefused(400, "HTTP/1.0 has no Transfer-Encoding. Send Content-Length.")
    if coding.lower() != b"chunked":
        raise RequestRefused(501, "This port reads no other Transfer-Encoding than `chunked`. Leave others out.")
    return None
