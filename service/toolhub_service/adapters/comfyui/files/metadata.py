"""Removes metadata from images while they stream: ComfyUI writes the whole graph, with all arguments, into them.

A file is a sequence of parts of known lengths. A step receives the parts that it needs whole; the data between two
steps are kept or dropped as they arrive, however they are split. At most one part is buffered. MP4, WebM, FLAC, Ogg and
MP3 keep their metadata, because other parts count offsets from it; the evidence says so.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Final, Protocol

PARTS_MAX: Final = 65_536
"""Chunks, segments or blocks of one file: an empty one costs few bytes to send, and more to process."""


class DamagedImage(ValueError):
    """It is not a whole file of its kind, or has more parts than a picture needs."""


class MetadataFilter(Protocol):
    """Removes the metadata of one file as it streams."""

    def keep(self, arrived: bytes) -> bytes:
        """Return those of the arrived bytes that are kept. Raises DamagedImage."""
        ...

    def end(self) -> None:
        """Raises DamagedImage unless the file is complete."""
        ...


async def filter_chunks(chunks: AsyncIterator[bytes], filter_: MetadataFilter) -> AsyncGenerator[bytes, None]:
    """Yield the kept bytes. Raises DamagedImage, and what `chunks` raises."""
    async for chunk in chunks:
        passed = filter_.keep(chunk)
        if passed:
            yield passed
    filter_.end()


class PartFilter(ABC):
    """A filter that proceeds part by part."""

    def __init__(self, wanted: int, step: Callable[[bytes], bytes]) -> None:
        """`step` is called with the first `wanted` bytes, and returns the bytes to keep."""
        self._wanted = wanted
        self._step = step
        self._left = 0
        """Bytes of data before the next step."""
        self._held = b""
        """Buffered bytes, fewer than wanted."""
        self._parts = 0

    def keep(self, arrived: bytes) -> bytes:
        data, at, out = self._held + arrived, 0, bytearray()
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                out += self._data(piece)
            elif len(data) - at >= self._wanted:
                piece = data[at : at + self._wanted]
                out += self._step(piece)
            else:
                break
            at += len(piece)
        self._held = data[at:]
        return bytes(out)

    def end(self) -> None:
        if self._step != self._after_end or self._held or self._left:
            raise DamagedImage

    def _next_step(self, wanted: int, step: Callable[[bytes], bytes], *, after: int = 0) -> None:
        """Set the next step, which follows `after` bytes of data."""
        self._wanted, self._step, self._left = wanted, step, after

    def _count(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise DamagedImage

    def _after_end(self, _: bytes) -> bytes:
        """Raises DamagedImage, because bytes came after the end."""
        raise DamagedImage

    @abstractmethod
    def _data(self, piece: bytes) -> bytes:
        """Return the bytes to keep of a piece of data."""


# PNG: chunks of length, type, data and CRC (W3C PNG, third edition, §5). Critical chunks and those that change the
# picture are kept, all others dropped; every CRC is checked; bytes after IEND are refused.
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEPT: Final = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"mDCV", b"cLLI"),
        *(b"sBIT", b"bKGD", b"hIST", b"pHYs", b"sPLT", b"acTL", b"fcTL", b"fdAT"),
    }
)


class PngFilter(PartFilter):
    def __init__(self) -> None:
        super().__init__(len(SIGNATURE), self._signature)
        self._kind = b""
        self._crc = 0

    def _signature(self, part: bytes) -> bytes:
        if part != SIGNATURE:
            raise DamagedImage
        self._next_step(8, self._head)
        return part

    def _head(self, part: bytes) -> bytes:
        self._count()
        self._kind = part[4:]
        self._crc = zlib.crc32(self._kind)
        self._next_step(4, self._tail, after=int.from_bytes(part[:4], "big"))
        return self._filter_part(part)

    def _data(self, piece: bytes) -> bytes:
        self._crc = zlib.crc32(piece, self._crc)
        return self._filter_part(piece)

    def _tail(self, part: bytes) -> bytes:
        if int.from_bytes(part, "big") != self._crc:
            raise DamagedImage
        if self._kind == b"IEND":
            self._next_step(1, self._after_end)
        else:
            self._next_step(8, self._head)
        return self._filter_part(part)

    def _filter_part(self, part: bytes) -> bytes:
        return part if self._kind in _KEPT else b""


# JPEG: segments of marker, length and data (ITU T.81, annex B). Segments that decoders need are kept; of the
# application segments only JFIF, ICC profiles and Adobe's colours. Coded data follow the head of a scan, up to a marker
# that is no restart; bytes after the end of the image are refused. The orientation in EXIF is lost.
_BEGIN: Final = b"\xff\xd8"
_SCAN, _END, _APP_FIRST, _APP_LAST = 0xDA, 0xD9, 0xE0, 0xEF
# Frames, tables, scans, restart intervals.
_NEEDED: Final = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xE0)}) - {0xC8}
# Prefixes of application segments that change how the picture looks.
_OWN: Final = {0xE0: b"JFIF\0", 0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}
_SEEN_BYTES: Final = max(map(len, _OWN.values()))
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class JpegFilter:
    """Implements `MetadataFilter`."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        """Remaining bytes of the segment."""
        self._is_kept = False
        self._has_begun = self._is_coded = self._has_scan = self._is_over = False
        self._parts = 0

    def keep(self, arrived: bytes) -> bytes:
        data, at, out = self._held + arrived, 0, bytearray()
        while at < len(data):
            before = at
            at = self._consume(data, at, out)
            if at == before:
                break
        self._held = data[at:]
        return bytes(out)

    def end(self) -> None:
        if not self._is_over or self._held:
            raise DamagedImage

    def _consume(self, data: bytes, at: int, out: bytearray) -> int:
        """Return where the next part begins; `at` itself when more must arrive first."""
        if self._left:
            piece = data[at : at + self._left]
            self._left -= len(piece)
            out += piece if self._is_kept else b""
            return at + len(piece)
        if self._is_coded:
            return self._scan_data(data, at, out)
        if len(data) - at < 2:
            return at
        if self._is_over or data[at] != 0xFF or (not self._has_begun and data[at : at + 2] != _BEGIN):
            raise DamagedImage
        if not self._has_begun:
            self._has_begun = True
            out += _BEGIN
            return at + 2
        return self._segment(data, at, out)

    def _scan_data(self, data: bytes, at: int, out: bytearray) -> int:
        """Copy data up to the next marker; a 0xFF at the very end may be the beginning of one."""
        found = _MARKER.search(data, at)
        until = found.start() if found else len(data) - data.endswith(b"\xff")
        self._is_coded = found is None
        out += data[at:until]
        return until if found is None or until > at else self._consume(data, at, out)

    def _segment(self, data: bytes, at: int, out: bytearray) -> int:
        marker = data[at + 1]
        self._count()
        if marker == 0xFF:
            return at + 1  # fill byte
        if marker == _END:
            if not self._has_scan:
                raise DamagedImage
            self._is_over = True
            out += data[at : at + 2]
            return at + 2
        if marker < 0xC0 or 0xD0 <= marker <= 0xD8:
            raise DamagedImage  # a marker without a length, or the beginning of another image
        return self._take_segment(marker, data, at, out)

    def _take_segment(self, marker: int, data: bytes, at: int, out: bytearray) -> int:
        """Process a segment with a length, once enough of it has arrived to decide."""
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        seen = at + 4 + min(max(size - 2, 0), _SEEN_BYTES)
        if len(data) - at < 4 or len(data) < seen:
            return at
        if size < 2:
            raise DamagedImage
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
            raise DamagedImage


# WebP (RFC 9649): the file's length comes first, before it is known what will be dropped. So a dropped chunk is
# replaced by zeros under a type that readers skip, and the flags of VP8X declare no metadata. Frames of an animation
# contain chunks of their own, which are filtered in the same way.
_WEBP_KEPT: Final = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ICCP", b"ANIM", b"ANMF"})
# Type of the replaced chunks, which no reader knows.
_NOTHING: Final = b"JUNK"
_FLAGS_OF_METADATA: Final = 0x04 | 0x08
_VP8X_BYTES: Final = 10
_FRAME_HEAD_BYTES: Final = 16


class WebpFilter(PartFilter):
    def __init__(self) -> None:
        super().__init__(12, self._riff)
        self._whole_left = 0
        """Remaining bytes of the file."""
        self._frame_left = 0
        """Remaining bytes of the frame that contains the chunks; 0: no frame."""
        self._is_kept = True

    def _riff(self, part: bytes) -> bytes:
        size = int.from_bytes(part[4:8], "little")
        if part[:4] != b"RIFF" or part[8:] != b"WEBP" or size < 4 or size % 2:
            raise DamagedImage
        self._whole_left = size - 4
        self._next()
        return part

    def _head(self, part: bytes) -> bytes:
        self._count()
        kind, size = part[:4], int.from_bytes(part[4:], "little")
        padded = size + size % 2
        self._take(8 + padded, is_frame=kind == b"ANMF")
        self._is_kept = kind in _WEBP_KEPT
        if kind == b"ANMF":
            if size < _FRAME_HEAD_BYTES or size % 2:
                raise DamagedImage
            self._next_step(_FRAME_HEAD_BYTES, self._frame)
        elif kind == b"VP8X":
            if size != _VP8X_BYTES:
                raise DamagedImage
            self._next_step(_VP8X_BYTES, self._features)
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
        """Count a chunk of that size, head included. Raises DamagedImage when it exceeds its container."""
        if self._frame_left:
            if is_frame or size > self._frame_left:
                raise DamagedImage
            self._frame_left -= size
            return
        if size > self._whole_left:
            raise DamagedImage
        self._whole_left -= size
        if is_frame:
            self._frame_left = size - 8

    def _next(self, *, after: int = 0) -> None:
        if self._whole_left or self._frame_left:
            self._next_step(8, self._head, after=after)
        else:
            self._next_step(1, self._after_end, after=after)


# GIF (GIF89a, W3C copy): a header, a screen with or without colours, then blocks up to a trailer; a block's content
# comes in pieces of up to 255 bytes, the last one empty. Of application data only the repeat count is kept. Encoders
# write all pieces but the last with this size; the number of shorter ones is limited.
_PIECE_BYTES: Final = 255
_HEAD_BYTES: Final = 13
_IMAGE, _EXTENSION, _TRAILER = b"\x2c", b"\x21", b"\x3b"
_GRAPHIC_CONTROL, _PLAIN_TEXT, _APPLICATION = b"\xf9", b"\x01", b"\xff"
_REPEATS: Final = frozenset({b"\x0bNETSCAPE2.0", b"\x0bANIMEXTS1.0"})
_HAS_COLOURS: Final = 0x80


class GifFilter(PartFilter):
    def __init__(self) -> None:
        super().__init__(_HEAD_BYTES, self._head)
        self._is_kept = True

    def _head(self, part: bytes) -> bytes:
        if part[:6] not in (b"GIF87a", b"GIF89a"):
            raise DamagedImage
        self._next_step(1, self._block, after=_colours(part[10]))
        return part

    def _block(self, part: bytes) -> bytes:
        self._count()
        self._is_kept = True
        if part == _TRAILER:
            self._next_step(1, self._after_end)
            return part
        if part == _IMAGE:
            self._next_step(9, self._image)
            return part
        if part != _EXTENSION:
            raise DamagedImage
        self._next_step(1, self._extension)
        return b""

    def _image(self, part: bytes) -> bytes:
        self._next_step(1, self._piece, after=_colours(part[8]) + 1)
        return part

    def _extension(self, label: bytes) -> bytes:
        if label == _APPLICATION:
            self._next_step(12, self._application)
            return b""
        self._is_kept = label in (_GRAPHIC_CONTROL, _PLAIN_TEXT)
        self._next_step(1, self._piece)
        return _EXTENSION + label if self._is_kept else b""

    def _application(self, part: bytes) -> bytes:
        if part[0] != 11:
            raise DamagedImage
        self._is_kept = part in _REPEATS
        self._next_step(1, self._piece)
        return _EXTENSION + _APPLICATION + part if self._is_kept else b""

    def _piece(self, part: bytes) -> bytes:
        if part[0] < _PIECE_BYTES:
            self._count()
        following: Callable[[bytes], bytes] = self._piece if part[0] else self._block
        self._next_step(1, following, after=part[0])
        return self._data(part)

    def _data(self, piece: bytes) -> bytes:
        return piece if self._is_kept else b""


def _colours(flags: int) -> int:
    """Return the number of bytes of colours that follow."""
    return 3 << ((flags & 0x07) + 1) if flags & _HAS_COLOURS else 0


METADATA_FILTERS: Final[Mapping[str, Callable[[], MetadataFilter]]] = {
    "image/png": PngFilter,
    "image/jpeg": JpegFilter,
    "image/webp": WebpFilter,
    "image/gif": GifFilter,
}
"""By media type."""
