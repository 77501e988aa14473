"""A PNG without what is not needed to show it: ComfyUI writes the whole graph into text chunks.

Chunks of length, type, data and CRC (W3C PNG, third edition, §5): critical ones and those that change the picture pass,
all others go, each with its CRC checked; bytes after IEND are refused.
"""

from __future__ import annotations

import zlib
from typing import Final

from toolhub_service.adapters.comfyui.sieve import Damaged, StepSieve

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEPT: Final = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"mDCV", b"cLLI"),
        *(b"sBIT", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"acTL", b"fcTL", b"fdAT"),
    }
)


class PngSieve(StepSieve):
    def __init__(self) -> None:
        super().__init__(len(SIGNATURE), self._signature)
        self._kind = b""
        self._crc = 0

    def _signature(self, part: bytes) -> bytes:
        if part != SIGNATURE:
            raise Damaged
        self._then(8, self._head)
        return part

    def _head(self, part: bytes) -> bytes:
        self._count()
        self._kind = part[4:]
        self._crc = zlib.crc32(self._kind)
        self._then(4, self._tail, after=int.from_bytes(part[:4], "big"))
        return self._if_kept(part)

    def _data(self, piece: bytes) -> bytes:
        self._crc = zlib.crc32(piece, self._crc)
        return self._if_kept(piece)

    def _tail(self, part: bytes) -> bytes:
        if int.from_bytes(part, "big") != self._crc:
            raise Damaged
        if self._kind == b"IEND":
            self._then(1, self._over)
        else:
            self._then(8, self._head)
        return self._if_kept(part)

    def _if_kept(self, part: bytes) -> bytes:
        return part if self._kind in _KEPT else b""
