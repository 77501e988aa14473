"""A PNG without what is not needed to show it, streamed: ComfyUI writes the whole graph into text chunks.

Chunks of length, type, data and CRC (W3C PNG, third edition, §5): critical ones and those that change the picture pass,
all others go, each with its CRC checked; bytes after IEND are refused. Nothing is held but what arrives at once.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEPT: Final = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"mDCV", b"cLLI"),
        *(b"sBIT", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"acTL", b"fcTL", b"fdAT"),
    }
)


class Damaged(ValueError):
    """It is no whole PNG."""


async def stripped(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same picture. Raises Damaged, and what `chunks` raises."""
    reader = _Reader(chunks)
    if await reader.exactly(8) != SIGNATURE:
        raise Damaged
    yield SIGNATURE
    kind = b""
    while kind != b"IEND":
        head = await reader.exactly(8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        is_kept = kind in _KEPT
        if is_kept:
            yield head
        crc, left = zlib.crc32(kind), length
        while left:
            piece = await reader.some(left)
            crc, left = zlib.crc32(piece, crc), left - len(piece)
            if is_kept:
                yield piece
        tail = await reader.exactly(4)
        if int.from_bytes(tail, "big") != crc:
            raise Damaged
        if is_kept:
            yield tail
    if await reader.has_more():
        raise Damaged


class _Reader:
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    async def some(self, most: int) -> bytes:
        """Between 1 and `most` bytes. Raises Damaged at the end."""
        if not await self.has_more():
            raise Damaged
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    async def exactly(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            taken += await self.some(size - len(taken))
        return taken

    async def has_more(self) -> bool:
        while not self._held:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return False
            self._held = chunk
        return True
