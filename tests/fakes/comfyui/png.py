"""Real PNG files of one colour, made by hand: big enough to be read as images, small enough for a test.

PNG (RFC 2083): signature, then chunks of length, type, data and CRC-32; rows of RGB bytes, each after a filter byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"
"""A picture of one pixel."""


@dataclass(frozen=True)
class Picture:
    """What flows between nodes as IMAGE: `batch` pictures of one colour (0xRRGGBB)."""

    width: int
    height: int
    color: int = 0
    batch: int = 1

    def __repr__(self) -> str:
        red, green, blue = (channel / 255 for channel in self.color.to_bytes(3, "big"))
        return f"tensor([[[[{red:.4f}, {green:.4f}, {blue:.4f}], ...]]])"


def encoded(picture: Picture, texts: dict[str, str] | None = None) -> bytes:
    """One PNG of the batch, with `texts` as tEXt chunks, as SaveImage leaves them."""
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 0)
    row = b"\0" + picture.color.to_bytes(3, "big") * picture.width
    chunks = [_chunk(b"IHDR", header)]
    chunks += [_chunk(b"tEXt", f"{key}\0{text}".encode()) for key, text in (texts or {}).items()]
    chunks += [_chunk(b"IDAT", zlib.compress(row * picture.height, 1)), _chunk(b"IEND", b"")]
    return SIGNATURE + b"".join(chunks)


def decoded(data: bytes) -> Picture:
    """Size and first pixel of an 8-bit RGB(A) PNG. Raises: ValueError when it is none."""
    if not data.startswith(SIGNATURE):
        raise ValueError("cannot identify image file")
    parts = list(chunks(data))
    width, height = struct.unpack_from(">II", dict(parts)[b"IHDR"])
    pixels = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    return Picture(width, height, int.from_bytes(pixels[1:4], "big"))


def texts_of(data: bytes) -> dict[str, str]:
    """The tEXt chunks of a PNG."""
    pairs = (body.split(b"\0", 1) for kind, body in chunks(data) if kind == b"tEXt")
    return {key.decode("latin-1"): text.decode("latin-1") for key, text in pairs}


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and data of every chunk."""
    at = len(SIGNATURE)
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
