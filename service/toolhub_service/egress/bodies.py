"""Bodies of responses: decoded by at most one layer of gzip, and cut at a number of bytes.

`zlib.decompressobj` decompresses gzip with a maximum output per step (a 494-byte body can hold 200 MB); a second layer,
or any other encoding, is refused. Between steps that need no new input other tasks run, so deadlines hold (RFC 1952,
RFC 9110 section 8.4).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from toolhub_service.egress.breakage import Breakage, WireError

STEP_MAX_BYTES = 256 * 1024
_GZIP = 31  # window size 2**15, gzip header required
_MEMBERS_MAX = 64

Pull = Callable[[], Awaitable[bytes]]
"""Returns the next bytes as they were sent; empty at the end."""


def decoder_of(encoding: str, pull: Pull) -> Pull:
    """Return a decoder for the Content-Encoding. Raises WireError UNDECODABLE for any but gzip and identity, or for
    two."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return pull
    if name in {"gzip", "x-gzip"}:
        return _Gunzip(pull).next_piece
    raise WireError(Breakage.UNDECODABLE)


class BoundedBody:
    """At most `max_bytes` of a decoded body."""

    def __init__(self, pull: Pull, max_bytes: int) -> None:
        self._pull = pull
        self._left_bytes = max_bytes
        self.is_cut = False
        """Whether there was more."""

    async def next_piece(self) -> bytes:
        """Return the next bytes; empty at the end or at the limit."""
        if self.is_cut:
            return b""
        piece = await self._pull()
        if len(piece) > self._left_bytes:
            self.is_cut = True
            piece = piece[: self._left_bytes]
        self._left_bytes -= len(piece)
        return piece

    async def whole(self) -> bytes:
        """Return all that is left."""
        pieces = []
        while piece := await self.next_piece():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Gunzip:
    """Decompresses step by step; several members are one body (RFC 1952 §2.2), anything after them is ignored."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._inflater = zlib.decompressobj(_GZIP)
        self._input = b""
        self._has_more_output = False
        self._has_begun = False
        self._is_over = False
        self._members = 1

    async def next_piece(self) -> bytes:
        while not self._is_over:
            if not self._input and not self._has_more_output:
                self._input = await self._pull()
                if not self._input:
                    return self._end()
                self._has_begun = True
            else:
                await asyncio.sleep(0)
            if piece := self._step():
                return piece
        return b""

    def _step(self) -> bytes:
        try:
            piece = self._inflater.decompress(self._input, STEP_MAX_BYTES)
        except zlib.error:
            raise WireError(Breakage.UNDECODABLE) from None
        self._input = self._inflater.unconsumed_tail
        # After a full step the decompressor may hold more output although its input is used up.
        self._has_more_output = len(piece) == STEP_MAX_BYTES
        if self._inflater.eof:
            self._next_member(self._inflater.unused_data)
        return piece

    def _next_member(self, rest: bytes) -> None:
        self._has_more_output = False
        # The first byte of gzip's magic number; padding after the last member is zeros.
        if rest.startswith(b"\x1f"):
            self._members += 1
            if self._members > _MEMBERS_MAX:
                raise WireError(Breakage.UNDECODABLE)
            self._inflater, self._input = zlib.decompressobj(_GZIP), rest
        else:
            self._is_over = True

    def _end(self) -> bytes:
        self._is_over = True
        if self._has_begun and not self._inflater.eof:
            raise WireError(Breakage.UNDECODABLE)
        return b""
