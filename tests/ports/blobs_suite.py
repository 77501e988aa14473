"""What every store of bytes promises. Implementations subclass `BlobsSuite` and give `blobs`, which forgets at once."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from toolhub_service.domain.artifact import Blobs, BlobWriter
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure

CHUNK_MAX_BYTES = 262_144
LARGE = random.Random(7).randbytes(11 * 1024 * 1024 + 13)
"""More than two parts of a multipart upload."""
SIZES = [0, 1, CHUNK_MAX_BYTES, CHUNK_MAX_BYTES + 1, 5 * 1024 * 1024, len(LARGE)]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def poured(writer: BlobWriter, data: bytes, chunk_bytes: int = 700_001) -> None:
    for start in range(0, len(data), chunk_bytes):
        await writer.write(data[start : start + chunk_bytes])


async def stored(blobs: Blobs, data: bytes, chunk_bytes: int = 700_001) -> str:
    """The digest under which the data lies now."""
    writer = await blobs.writer()
    await poured(writer, data, chunk_bytes)
    sha256, size_bytes = await writer.finish()
    assert (sha256, size_bytes) == (digest(data), len(data))
    return sha256


async def content(blobs: Blobs, sha256: str, offset_bytes: int = 0, limit_bytes: int = 0) -> bytes:
    chunks = [chunk async for chunk in blobs.read(sha256, offset_bytes, limit_bytes)]
    assert all(type(chunk) is bytes and 1 <= len(chunk) <= CHUNK_MAX_BYTES for chunk in chunks)
    return b"".join(chunks)


async def is_gone(blobs: Blobs, sha256: str) -> bool:
    with pytest.raises(ToolFailure) as missing:
        await content(blobs, sha256)
    return missing.value.error.kind is ErrorKind.NOT_FOUND


class BlobsSuite:
    @pytest.mark.parametrize("size_bytes", SIZES)
    async def test_written_bytes_are_read_again(self, blobs: Blobs, size_bytes: int) -> None:
        data = LARGE[:size_bytes]
        assert await content(blobs, await stored(blobs, data)) == data

    async def test_chunks_of_any_size_make_the_same_blob(self, blobs: Blobs) -> None:
        data = LARGE[:300_000]
        assert await stored(blobs, data, 1_000) == await stored(blobs, data, 300_000)
        assert await content(blobs, digest(data)) == data

    @pytest.mark.parametrize(
        ("offset", "limit"),
        [(0, 1), (0, 300_000), (1, 0), (262_143, 2), (5_000_000, 6_000_000), (len(LARGE) - 1, 0), (7, 10**12)],
    )
    async def test_a_part_is_read_by_offset_and_limit(self, blobs: Blobs, offset: int, limit: int) -> None:
        sha256 = await stored(blobs, LARGE)
        end = offset + limit if limit else len(LARGE)
        assert await content(blobs, sha256, offset, limit) == LARGE[offset:end]

    @pytest.mark.parametrize("past", [0, 1, 10**9])
    @pytest.mark.parametrize("limit", [0, 5])
    async def test_reading_from_the_end_on_gives_nothing(self, blobs: Blobs, past: int, limit: int) -> None:
        data = b"some bytes"
        assert await content(blobs, await stored(blobs, data), len(data) + past, limit) == b""

    async def test_unknown_digest_is_not_found(self, blobs: Blobs) -> None:
        assert await is_gone(blobs, digest(b"never written"))

    @pytest.mark.parametrize(
        "name", ["", "../../etc/passwd", "a", "A" * 64, "/" * 64, ".lock", "é" * 64, "0" * 63 + "\n"]
    )
    async def test_an_invalid_digest_is_not_found_and_removes_nothing(self, blobs: Blobs, name: str) -> None:
        assert await is_gone(blobs, name)
        await blobs.remove(name)

    @pytest.mark.parametrize("size_bytes", [10, len(LARGE)])
    async def test_aborted_writing_leaves_nothing_behind(self, blobs: Blobs, size_bytes: int) -> None:
        writer = await blobs.writer()
        await poured(writer, LARGE[:size_bytes])
        await writer.abort()
        assert await is_gone(blobs, digest(LARGE[:size_bytes]))

    async def test_writer_that_was_never_used_can_be_aborted_or_finished(self, blobs: Blobs) -> None:
        await (await blobs.writer()).abort()
        assert await (await blobs.writer()).finish() == (digest(b""), 0)

    @pytest.mark.parametrize("size_bytes", [10, len(LARGE)])
    async def test_abort_after_finish_does_nothing(self, blobs: Blobs, size_bytes: int) -> None:
        data = LARGE[:size_bytes]
        writer = await blobs.writer()
        await poured(writer, data)
        sha256, _ = await writer.finish()
        await writer.abort()
        assert await content(blobs, sha256) == data

    async def test_removed_bytes_are_gone_and_can_be_written_again(self, blobs: Blobs) -> None:
        sha256 = await stored(blobs, b"once")
        await blobs.remove(sha256)
        assert await is_gone(blobs, sha256)
        await blobs.remove(sha256)
        assert await content(blobs, await stored(blobs, b"once")) == b"once"

    async def test_removal_touches_no_other_content(self, blobs: Blobs) -> None:
        kept, removed = await stored(blobs, b"kept"), await stored(blobs, b"removed")
        await blobs.remove(removed)
        assert await content(blobs, kept) == b"kept"

    async def test_equal_content_written_at_once_is_one_blob(self, blobs: Blobs) -> None:
        data = LARGE[: 6 * 1024 * 1024]
        digests = await asyncio.gather(*[stored(blobs, data) for _ in range(8)])
        assert set(digests) == {digest(data)}
        assert await content(blobs, digest(data)) == data

    async def test_different_contents_written_at_once_do_not_mix(self, blobs: Blobs) -> None:
        contents = [bytes([number]) * 1_500_000 for number in range(8)]
        digests = await asyncio.gather(*[stored(blobs, data) for data in contents])
        for sha256, data in zip(digests, contents, strict=True):
            assert await content(blobs, sha256) == data

    async def test_reader_that_has_begun_ends_whole_though_equal_content_is_written(self, blobs: Blobs) -> None:
        sha256 = await stored(blobs, LARGE)
        reading = blobs.read(sha256, 0, 0)
        first = await anext(reading)
        await stored(blobs, LARGE)
        rest = b"".join([chunk async for chunk in reading])
        assert first + rest == LARGE
