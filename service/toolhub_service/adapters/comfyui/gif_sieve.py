"""A GIF without comments and data of applications, but for how often it is repeated (GIF89a, W3C copy).

A header, a screen with or without colours, then blocks up to a trailer; what a block holds comes in pieces of up to 255
bytes, the last one empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolhub_service.adapters.comfyui.sieve import Damaged, StepSieve

_PIECE_BYTES: Final = 255
"""Of all but the last one, as encoders write them: shorter ones are bounded in number."""
_HEAD_BYTES: Final = 13
_IMAGE, _EXTENSION, _TRAILER = b"\x2c", b"\x21", b"\x3b"
_GRAPHIC_CONTROL, _PLAIN_TEXT, _APPLICATION = b"\xf9", b"\x01", b"\xff"
_REPEATS: Final = frozenset({b"\x0bNETSCAPE2.0", b"\x0bANIMEXTS1.0"})
_HAS_COLOURS: Final = 0x80


class GifSieve(StepSieve):
    def __init__(self) -> None:
        super().__init__(_HEAD_BYTES, self._head)
        self._is_kept = True

    def _head(self, part: bytes) -> bytes:
        if part[:6] not in (b"GIF87a", b"GIF89a"):
            raise Damaged
        self._then(1, self._block, after=_colours(part[10]))
        return part

    def _block(self, part: bytes) -> bytes:
        self._count()
        self._is_kept = True
        if part == _TRAILER:
            self._then(1, self._over)
            return part
        if part == _IMAGE:
            self._then(9, self._image)
            return part
        if part != _EXTENSION:
            raise Damaged
        self._then(1, self._extension)
        return b""

    def _image(self, part: bytes) -> bytes:
        self._then(1, self._piece, after=_colours(part[8]) + 1)
        return part

    def _extension(self, label: bytes) -> bytes:
        if label == _APPLICATION:
            self._then(12, self._application)
            return b""
        self._is_kept = label in (_GRAPHIC_CONTROL, _PLAIN_TEXT)
        self._then(1, self._piece)
        return _EXTENSION + label if self._is_kept else b""

    def _application(self, part: bytes) -> bytes:
        if part[0] != 11:
            raise Damaged
        self._is_kept = part in _REPEATS
        self._then(1, self._piece)
        return _EXTENSION + _APPLICATION + part if self._is_kept else b""

    def _piece(self, part: bytes) -> bytes:
        if part[0] < _PIECE_BYTES:
            self._count()
        following: Callable[[bytes], bytes] = self._piece if part[0] else self._block
        self._then(1, following, after=part[0])
        return self._data(part)

    def _data(self, piece: bytes) -> bytes:
        return piece if self._is_kept else b""


def _colours(flags: int) -> int:
    """How many bytes of colours follow."""
    return 3 << ((flags & 0x07) + 1) if flags & _HAS_COLOURS else 0
