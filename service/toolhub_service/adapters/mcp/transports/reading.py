"""One response of HTTP/1.1 as llhttp reads it (httptools), with bounds on how much framing its content may come in.

Counted are heads, fields, chunks, and the bytes that are not content (`egress/framing.py` says how many are free). The
bytes are parsed in pieces of a few lines, so that no response costs others more than a turn of the loop. Each response
has a parser of its own: whatever follows a complete one cannot answer the next request (response desync).
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from toolhub_service.adapters.mcp.messages.http import field_in
from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.framing import (
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    HEADS_MAX,
    LINES_A_TURN,
    chunk_allowance,
    framing_allowance,
)

_LINE_END: Final = b"\r\n"
_WITHOUT_BODY: Final = frozenset({204, 304})


class ResponseReader:
    """Reads one response. The methods `on_…` are the parser's."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.has_head = False
        """Whether the final head was read; interim ones (1xx) are dropped."""
        self.body: list[bytes] = []
        """What was read of the body and not yet taken."""
        self.is_complete = False
        self.can_be_followed = False
        """Whether the connection can serve another request, once this response is complete."""
        self._parser = HttpResponseParser(self)
        self._ends_with_connection = False
        self._is_chunked = False
        self._heads = self._lines = self._head_bytes = 0
        self._new_chunks = self._new_bytes = 0
        """Since the last count."""
        self._chunks, self._framing = chunk_allowance(), framing_allowance()

    def end_of_turn(self, arrived: bytes, start: int) -> int:
        """Return the end of what one turn may parse."""
        if self.has_head and not self._is_chunked:
            return len(arrived)
        end = len(arrived) if self.has_head else min(len(arrived), start + HEAD_MAX_BYTES - self._head_bytes)
        if arrived.count(_LINE_END, start, end) <= LINES_A_TURN:
            return end
        at = start
        for _ in range(LINES_A_TURN):
            at = arrived.find(_LINE_END, at) + len(_LINE_END)
        return at

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raises WireError BROKEN for a head that is none, MALFORMED, CRUMBLED."""
        is_in_head = not self.has_head
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.can_be_followed = False
            if not self.is_complete:
                raise WireError(Breakage.MALFORMED if self.has_head else Breakage.BROKEN) from None
        if is_in_head:
            self._head_bytes += len(data)
            is_too_long = self._head_bytes >= HEAD_MAX_BYTES and not self.has_head
            if is_too_long or self._heads > HEADS_MAX or self._lines > FIELDS_MAX:
                raise WireError(Breakage.MALFORMED)
        if self._is_chunked:
            self._count_chunks(0 if is_in_head else len(data) - self._new_bytes)

    def end(self) -> None:
        """The connection has ended. Raises WireError BROKEN when the response has not."""
        self.can_be_followed = False
        if not self.is_complete:
            if not self._ends_with_connection:
                raise WireError(Breakage.BROKEN)
            self.is_complete = True

    def _count_chunks(self, framing_bytes: int) -> None:
        is_within = self._chunks.take(self._new_chunks, self._new_bytes)
        if not self._framing.take(framing_bytes, self._new_bytes) or not is_within or self._lines > FIELDS_MAX:
            raise WireError(Breakage.CRUMBLED)
        self._new_chunks = self._new_bytes = 0

    def _choose_framing(self) -> None:
        """Note how the body ends (RFC 9112 §6.3); llhttp has refused what is contradictory."""
        coding = field_in(self.fields, b"transfer-encoding").lower()
        if coding not in {"", "chunked"}:
            raise ValueError
        self._is_chunked = bool(coding)
        self._ends_with_connection = not coding and all(name != b"content-length" for name, _ in self.fields)

    # What HttpResponseParser calls; an exception of theirs is an HttpParserError to `feed`.

    def on_message_begin(self) -> None:
        self.can_be_followed = False
        if not self.is_complete:
            self._heads += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self._lines += 1
        if not self.has_head:
            self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:  # a switch of protocols, which was not asked for
                raise ValueError
            self.fields.clear()
            return
        self._choose_framing()
        self.has_head = True
        self.status = status
        # llhttp believes a length that such a response names, and would wait for the bytes.
        self.is_complete = status in _WITHOUT_BODY

    def on_chunk_header(self) -> None:
        self._new_chunks += 1

    def on_body(self, data: bytes) -> None:
        if self.has_head and not self.is_complete:
            self._new_bytes += len(data)
            self.body.append(data)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_complete:
            self.is_complete = True
            self.can_be_followed = self._parser.should_keep_alive()
