"""A JPEG without EXIF, XMP, comments and whatever else is not needed to show it (ITU T.81, annex B).

Segments of marker, length and data: those that decoders need pass, and of applications' own JFIF, ICC profiles and
Adobe's colours. After the head of a scan come its coded data, up to a marker that is no restart; bytes after the end of
the image are refused. The orientation that a camera writes into EXIF goes with it.
"""

from __future__ import annotations

import re
from typing import Final

from toolhub_service.adapters.comfyui.sieve import PARTS_MAX, Damaged

_BEGIN: Final = b"\xff\xd8"
_SCAN, _END, _APP_FIRST, _APP_LAST = 0xDA, 0xD9, 0xE0, 0xEF
_NEEDED: Final = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xE0)}) - {0xC8}
"""Frames, tables, scans, restart intervals."""
_OWN: Final = {0xE0: b"JFIF\0", 0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}
"""How segments of applications begin that change how the picture looks."""
_SEEN_BYTES: Final = max(map(len, _OWN.values()))
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class JpegSieve:
    """Implements `Sieve`."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        """Bytes of the segment to come."""
        self._is_kept = False
        self._has_begun = self._is_coded = self._has_scan = self._is_over = False
        self._parts = 0

    def passed(self, arrived: bytes) -> bytes:
        data, at, out = self._held + arrived, 0, bytearray()
        while at < len(data):
            before = at
            at = self._taken(data, at, out)
            if at == before:
                break
        self._held = data[at:]
        return bytes(out)

    def end(self) -> None:
        if not self._is_over or self._held:
            raise Damaged

    def _taken(self, data: bytes, at: int, out: bytearray) -> int:
        """Where the next part begins; `at` itself where more must arrive first."""
        if self._left:
            piece = data[at : at + self._left]
            self._left -= len(piece)
            out += piece if self._is_kept else b""
            return at + len(piece)
        if self._is_coded:
            return self._coded(data, at, out)
        if len(data) - at < 2:
            return at
        if self._is_over or data[at] != 0xFF or (not self._has_begun and data[at : at + 2] != _BEGIN):
            raise Damaged
        if not self._has_begun:
            self._has_begun = True
            out += _BEGIN
            return at + 2
        return self._segment(data, at, out)

    def _coded(self, data: bytes, at: int, out: bytearray) -> int:
        """Up to the next marker; a 0xFF at the very end may be the beginning of one."""
        found = _MARKER.search(data, at)
        until = found.start() if found else len(data) - data.endswith(b"\xff")
        self._is_coded = found is None
        out += data[at:until]
        return until if found is None or until > at else self._taken(data, at, out)

    def _segment(self, data: bytes, at: int, out: bytearray) -> int:
        marker = data[at + 1]
        self._count()
        if marker == 0xFF:
            return at + 1  # filling
        if marker == _END:
            if not self._has_scan:
                raise Damaged
            self._is_over = True
            out += data[at : at + 2]
            return at + 2
        if marker < 0xC0 or 0xD0 <= marker <= 0xD8:
            raise Damaged  # no marker that has a length, or the beginning of another image
        return self._measured(marker, data, at, out)

    def _measured(self, marker: int, data: bytes, at: int, out: bytearray) -> int:
        """A segment with a length, once enough of it is there to be judged."""
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        seen = at + 4 + min(max(size - 2, 0), _SEEN_BYTES)
        if len(data) - at < 4 or len(data) < seen:
            return at
        if size < 2:
            raise Damaged
        own = _OWN.get(marker)
        self._is_kept = marker in _NEEDED or (own is not None and data.startswith(own, at + 4, seen))
        self._left = at + 2 + size - seen
        self._is_coded = marker == _SCAN
        self._has_scan |= self._is_coded
        out += data[at:seen] if self._is_kept else b""
        return seen

    def _count(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise Damaged
