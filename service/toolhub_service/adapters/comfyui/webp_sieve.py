"""A WebP without EXIF, XMP and whatever else is not needed to show it (RFC 9649).

The length of the whole stands at its beginning, before anybody knows what will be dropped: so what goes leaves a chunk
of zeros in its place, of a kind that readers skip, and the flags of VP8X tell that there is no metadata. Frames of an
animation hold chunks of their own, which are looked at alike.
"""

from __future__ import annotations

from typing import Final

from toolhub_service.adapters.comfyui.sieve import Damaged, StepSieve

_KEPT: Final = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP", b"ANIM", b"ANMF"})
_NOTHING: Final = b"JUNK"
"""The kind of what is left of a chunk: no reader knows it."""
_FLAGS_OF_METADATA: Final = 0x04 | 0x08
_VP8X_BYTES: Final = 10
_FRAME_HEAD_BYTES: Final = 16


class WebpSieve(StepSieve):
    def __init__(self) -> None:
        super().__init__(12, self._riff)
        self._whole_left = 0
        """Bytes of the file to come."""
        self._frame_left = 0
        """Bytes of the frame that chunks are in; 0: they are in none."""
        self._is_kept = True

    def _riff(self, part: bytes) -> bytes:
        size = int.from_bytes(part[4:8], "little")
        if part[:4] != b"RIFF" or part[8:] != b"WEBP" or size < 4 or size % 2:
            raise Damaged
        self._whole_left = size - 4
        self._next()
        return part

    def _head(self, part: bytes) -> bytes:
        self._count()
        kind, size = part[:4], int.from_bytes(part[4:], "little")
        padded = size + size % 2
        self._take(8 + padded, is_frame=kind == b"ANMF")
        self._is_kept = kind in _KEPT
        if kind == b"ANMF":
            if size < _FRAME_HEAD_BYTES or size % 2:
                raise Damaged
            self._then(_FRAME_HEAD_BYTES, self._frame)
        elif kind == b"VP8X":
            if size != _VP8X_BYTES:
                raise Damaged
            self._then(_VP8X_BYTES, self._features)
        else:
            self._next(after=padded)
        return part if self._is_kept else _NOTHING + part[4:]

    def _features(self, part: bytes) -> bytes:
        self._next()
        return bytes((part[0] & ~_FLAGS_OF_METADATA,)) + part[1:]

    def _frame(self, part: bytes) -> bytes:
        self._frame_left -= _FRAME_HEAD_BYTES
        self._next()
        return part

    def _data(self, piece: bytes) -> bytes:
        return piece if self._is_kept else bytes(len(piece))

    def _take(self, size: int, *, is_frame: bool) -> None:
        """A chunk of that size, its head included, is next. Raises Damaged where it goes over what it is in."""
        if self._frame_left:
            if is_frame or size > self._frame_left:
                raise Damaged
            self._frame_left -= size
            return
        if size > self._whole_left:
            raise Damaged
        self._whole_left -= size
        if is_frame:
            self._frame_left = size - 8

    def _next(self, *, after: int = 0) -> None:
        if self._whole_left or self._frame_left:
            self._then(8, self._head, after=after)
        else:
            self._then(1, self._over, after=after)
