"""Pictures without what is written into them: small files of each kind, cut anywhere as they arrive."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.comfyui_templates import BLUR, changed
from tests.unit.adapters.comfyui.comfy_harness import comfy_harness
from toolhub_service.adapters.comfyui.files.metadata import (
    METADATA_FILTERS,
    PARTS_MAX,
    SIGNATURE,
    DamagedImage,
    filter_chunks,
)

GRAPH = b'prompt: {"1": {"class_type": "Secret"}}'
SIZES = pytest.mark.parametrize("size", [1, 7, 10_000])
PNG, JPEG, WEBP, GIF = "image/png", "image/jpeg", "image/webp", "image/gif"


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def strip(media_type: str, data: bytes, size: int = 7) -> bytes:
    return b"".join([piece async for piece in filter_chunks(pieces(data, size), METADATA_FILTERS[media_type]())])


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def segment(marker: int, data: bytes = b"") -> bytes:
    """Of a JPEG."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def part(kind: bytes, data: bytes = b"") -> bytes:
    """Of a WebP."""
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def webp(*parts: bytes) -> bytes:
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def blocks(data: bytes) -> bytes:
    """Of a GIF."""
    cut = [data[at : at + 255] for at in range(0, len(data), 255)]
    return b"".join(bytes((len(piece),)) + piece for piece in cut) + b"\0"


HEADER = SIGNATURE + chunk(b"IHDR", b"x" * 13)
PIXELS = chunk(b"IDAT", b"pixels" * 20) + chunk(b"IEND")
CODED = b"coded \xff\x00 data \xff\xd0 restarted \xff\x00"
SCAN = segment(0xDA, b"\1\1\0\0\x3f\0") + CODED
JFIF, PROFILE, ADOBE = (
    segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
    segment(0xE2, b"ICC_PROFILE\0\1\1colours"),
    segment(0xEE, b"Adobe\0d\0\0\0\0\1"),
)
TABLES = segment(0xDB, b"t" * 65) + segment(0xC2, b"f" * 15) + segment(0xC4, b"h" * 20)
LATE_TABLE = segment(0xC4, b"l" * 20)
PLAIN_JPEG = b"\xff\xd8" + JFIF + PROFILE + ADOBE + TABLES + SCAN + LATE_TABLE + SCAN + b"\xff\xd9"
SCREEN = b"GIF89a" + b"\2\0\2\0\x80\0\0" + b"\0\0\0\xff\xff\xff"
REPEATED = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
SHOWN = b"\x21\xf9\x04\0\x0a\0\0\0" + b"\x2c\0\0\0\0\2\0\2\0\0" + b"\x02" + blocks(b"i" * 600)
PLAIN_GIF = SCREEN + REPEATED + SHOWN + SHOWN + b"\x3b"
FRAME = part(b"ANMF", b"f" * 16 + part(b"ALPH", b"alpha") + part(b"VP8 ", b"frame!"))
PLAIN_WEBP = webp(part(b"VP8X", b"\x32" + bytes(9)), part(b"ICCP", b"colours"), part(b"ANIM", b"a" * 6), FRAME, FRAME)
PLAIN = {PNG: HEADER + PIXELS, JPEG: PLAIN_JPEG, WEBP: PLAIN_WEBP, GIF: PLAIN_GIF}
KINDS = pytest.mark.parametrize("media_type", list(PLAIN))


@KINDS
@SIZES
async def test_a_picture_without_anything_else_stays_as_it_is(media_type: str, size: int) -> None:
    assert await strip(media_type, PLAIN[media_type], size) == PLAIN[media_type]


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"comf", b"tIME", b"prIv"])
@SIZES
async def test_a_png_is_passed_without_what_is_written_into_it(kind: bytes, size: int) -> None:
    comment = chunk(kind, GRAPH)
    assert await strip(PNG, HEADER + comment + PIXELS[:-12] + comment + PIXELS[-12:], size) == HEADER + PIXELS


@pytest.mark.parametrize("marker", [0xE1, 0xED, 0xEF, 0xFE, 0xE0, 0xE2, 0xEE, 0xF7])
@SIZES
async def test_a_jpeg_is_passed_without_what_is_written_into_it(marker: int, size: int) -> None:
    comment = segment(marker, GRAPH * 40)
    before, between = PLAIN_JPEG.index(TABLES), PLAIN_JPEG.index(LATE_TABLE)
    full = PLAIN_JPEG[:before] + comment + b"\xff" + PLAIN_JPEG[before:between] + comment + PLAIN_JPEG[between:]
    assert await strip(JPEG, full, size) == PLAIN_JPEG


@pytest.mark.parametrize("kind", [b"EXIF", b"XMP ", b"META", b"JUNK"])
@SIZES
async def test_a_webp_is_passed_with_zeros_in_the_place_of_what_is_written_into_it(kind: bytes, size: int) -> None:
    inside = part(b"ANMF", b"f" * 16 + part(b"VP8 ", b"frame!") + part(kind, GRAPH))
    full = webp(part(b"VP8X", b"\x0e" + bytes(9)), part(b"VP8 ", b"image"), part(kind, GRAPH), inside)
    bare = part(b"JUNK", bytes(len(GRAPH)))
    frame = part(b"ANMF", b"f" * 16 + part(b"VP8 ", b"frame!") + bare)
    assert await strip(WEBP, full, size) == webp(
        part(b"VP8X", b"\x02" + bytes(9)), part(b"VP8 ", b"image"), bare, frame
    )


@pytest.mark.parametrize(
    "comment",
    [b"\x21\xfe" + blocks(GRAPH * 20), b"\x21\xff\x0bXMP DataXMP" + blocks(GRAPH), b"\x21\xab" + blocks(GRAPH)],
)
@SIZES
async def test_a_gif_is_passed_without_what_is_written_into_it(comment: bytes, size: int) -> None:
    assert await strip(GIF, SCREEN + comment + REPEATED + SHOWN + comment + SHOWN + b"\x3b", size) == PLAIN_GIF


@KINDS
@pytest.mark.parametrize("size", [1, 10_000])
async def test_a_file_that_is_cut_or_goes_on_after_its_end_is_damaged(media_type: str, size: int) -> None:
    data = PLAIN[media_type]
    for broken in (b"", data[:-1], data[:13], data[: len(data) // 2], data + b"x", data + b"PK\x03\x04 behind it"):
        with pytest.raises(DamagedImage):
            await strip(media_type, broken, size)


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        (PNG, (HEADER + PIXELS).replace(b"pixels", b"pixelz", 1)),
        (PNG, b"GIF89a" + HEADER + PIXELS),
        (PNG, SIGNATURE + chunk(b"IDAT") * (PARTS_MAX + 1) + chunk(b"IEND")),
        (JPEG, b"\xff\xd8" + TABLES + b"\xff\xd9"),
        (JPEG, b"\xff\xd8" + b"\xff\xe1\0\1" + SCAN + b"\xff\xd9"),
        (JPEG, b"\xff\xd8" + TABLES + b"\xff\xd8" + SCAN + b"\xff\xd9"),
        (JPEG, b"\xff\xd8" + TABLES + b"between" + SCAN + b"\xff\xd9"),
        (JPEG, b"\xff\xd8" + b"\xff" * (PARTS_MAX + 2) + SCAN + b"\xff\xd9"),
        (JPEG, b"\xff\xd8" + segment(0xFE) * (PARTS_MAX + 1) + SCAN + b"\xff\xd9"),
        (WEBP, webp(part(b"VP8X", b"short"))),
        (WEBP, webp(part(b"ANMF", b"short."))),
        (WEBP, webp(part(b"ANMF", b"f" * 16 + FRAME))),
        (WEBP, webp(part(b"ANMF", b"f" * 16 + b"VP8 \xff\0\0\0"), part(b"VP8 ", b"x" * 300))),
        (WEBP, webp(b"VP8 \xff\xff\xff\xff" + b"x" * 100)),
        (WEBP, webp(*[part(b"EXIF")] * (PARTS_MAX + 1))),
        (GIF, SCREEN + b"\x99" + SHOWN + b"\x3b"),
        (GIF, SCREEN + b"\x21\xff\x04none\0" + SHOWN + b"\x3b"),
        (GIF, SCREEN + b"\x21\xfe" + b"\x01a" * (PARTS_MAX + 1) + b"\0\x3b"),
    ],
)
async def test_bytes_that_no_encoder_writes_are_damage(media_type: str, data: bytes) -> None:
    with pytest.raises(DamagedImage):
        await strip(media_type, data, 1 << 16)


@KINDS
@given(noise=st.binary(max_size=200), at=st.integers(0, 400), size=st.integers(1, 300))
async def test_inserted_bytes_are_damage_or_kept_alike_in_any_chunking(
    media_type: str, noise: bytes, at: int, size: int
) -> None:
    data = PLAIN[media_type][:at] + noise + PLAIN[media_type][at:]
    ends: list[bytes | None] = []
    for step in (size, len(data)):
        try:
            ends.append(await strip(media_type, data, step))
        except DamagedImage:
            ends.append(None)
    assert ends[0] == ends[1]


FILM = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + GRAPH


@pytest.mark.parametrize(
    ("data", "media_type", "is_taken_out"),
    [
        (b"\xff\xd8" + segment(0xE1, GRAPH) + PLAIN_JPEG[2:], JPEG, True),
        (webp(part(b"VP8L", b"image"), part(b"EXIF", GRAPH)), WEBP, True),
        (SCREEN + b"\x21\xfe" + blocks(GRAPH) + SHOWN + b"\x3b", GIF, True),
        (FILM, "video/mp4", False),
    ],
)
async def test_memory_of_a_finished_run_is_freed_where_possible_and_the_evidence_states_it(
    tmp_path: Path, data: bytes, media_type: str, is_taken_out: bool
) -> None:
    output = {**BLUR["sidecar"]["outputs"][0], "mime": ["image/*", "video/*"]}
    async with comfy_harness(tmp_path, templates=(changed(BLUR, outputs=[output]),)) as harness:
        harness.comfy.hold_history()
        running = harness.begin("blur")
        await harness.comfy.until(lambda: bool(harness.comfy.folders.outputs()))
        harness.comfy.replace_outputs(data)
        harness.comfy.release_history()
        outcome = await running
        value: Any = outcome.value
        kept = await harness.bytes_of(value["image"][0]["artifact"])
    assert value["image"][0]["media_type"] == media_type
    assert (b"class_type" not in kept) is is_taken_out
    (note,) = (proof.attributes["metadata"] for proof in outcome.evidence if "metadata" in proof.attributes)
    assert note == ("taken out" if is_taken_out else "as the server wrote them")
