"""A PNG without what is not needed to show it, streamed: ComfyUI writes the whole graph into text chunks.

Chunks of length, type, data and CRC (W3C PNG, third edition, §5): critical ones and those that change the picture pass,
all others go, each with its CRC checked; bytes after IEND are refused. What arrives at once is handed on at once, and
chunks are bounded in number: an empty one costs 12 bytes to send, and more to read.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

CHUNKS_MAX: Final = 65_536
"""Encoders write some 8 KiB into each."""
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEPT: Final = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"mDCV", b"cLLI"),
        *(b"sBIT", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"acTL", b"fcTL", b"fdAT"),
    }
)


class Damaged(ValueError):
    """It is no whole PNG, or of more chunks than a picture has."""


async def stripped(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same picture. Raises Damaged, and what `chunks` raises."""
    sieve = _Sieve()
    async for chunk in chunks:
        passed = sieve.passed(chunk)
        if passed:
            yield passed
    sieve.end()


class _Sieve:
    """Reads what arrives, wherever it is cut."""

    def __init__(self) -> None:
        self._wanted = len(SIGNATURE)
        self._step: Callable[[bytes], bytes] = self._signature
        self._held = b""
        """Less than is wanted."""
        self._kind = b""
        self._crc = 0
        self._left = 0
        """Bytes of data to come."""
        self._count = 0

    def passed(self, arrived: bytes) -> bytes:
        """What of it is handed on. Raises Damaged."""
        data, at, out = self._held + arrived, 0, bytearray()
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                out += self._body(piece)
                at += len(piece)
            elif len(data) - at >= self._wanted:
                part = data[at : at + self._wanted]
                at += len(part)
                out += self._step(part)
            else:
                break
        self._held = data[at:]
        return bytes(out)

    def end(self) -> None:
        """Raises Damaged unless the picture has ended, too."""
        if self._step != self._nothing or self._held:
            raise Damaged

    def _signature(self, part: bytes) -> bytes:
        if part != SIGNATURE:
            raise Damaged
        self._wanted, self._step = 8, self._head
        return part

    def _head(self, part: bytes) -> bytes:
        self._left, self._kind = int.from_bytes(part[:4], "big"), part[4:]
        self._crc = zlib.crc32(self._kind)
        self._count += 1
        if self._count > CHUNKS_MAX:
            raise Damaged
        self._wanted, self._step = 4, self._tail
        return self._if_kept(part)

    def _body(self, piece: bytes) -> bytes:
        self._crc, self._left = zlib.crc32(piece, self._crc), self._left - len(piece)
        return self._if_kept(piece)

    def _tail(self, part: bytes) -> bytes:
        if int.from_bytes(part, "big") != self._crc:
            raise Damaged
        is_over = self._kind == b"IEND"
        self._wanted, self._step = (1, self._nothing) if is_over else (8, self._head)
        return self._if_kept(part)

    def _nothing(self, _: bytes) -> bytes:
        raise Damaged

    def _if_kept(self, part: bytes) -> bytes:
        return part if self._kind in _KEPT else b""
