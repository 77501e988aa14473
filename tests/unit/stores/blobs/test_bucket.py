"""The suite over memory, a folder and a small S3 on loopback; and what is the bucket's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from tests.fakes.s3_server import BUCKET, FakeS3, fake_s3
from tests.ports.blobs_suite import LARGE, BlobsSuite, content, digest, is_gone, poured, stored
from toolhub_service.domain.artifact import Blobs
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.stores.blobs.bucket import BucketBlobs, bucket_of

DATA = b"content" * 1_000
URL = f"s3://{BUCKET}/hub/artifacts"


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with fake_s3() as server:
        yield server


class TestBucketInMemory(BlobsSuite):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return BucketBlobs(MemoryStore(), settle_s=0.0)


class TestBucketInAFolder(BlobsSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return BucketBlobs(LocalStore(tmp_path), settle_s=0.0)


class TestBucketOfS3(BlobsSuite):
    @pytest.fixture
    def blobs(self, s3: FakeS3) -> Blobs:
        return BucketBlobs(bucket_of(URL, s3.environment()), settle_s=-1.0)  # S3 has times in whole seconds


async def test_small_content_is_put_at_once_and_large_content_leaves_nothing_temporary(s3: FakeS3) -> None:
    blobs = BucketBlobs(bucket_of(URL, s3.environment()))
    small = await stored(blobs, DATA)
    assert s3.contents.requests == [f"PUT hub/artifacts/{small[:2]}/{small[2:]}?"]
    large = await stored(blobs, LARGE)
    assert sorted(s3.contents.objects) == sorted(f"hub/artifacts/{name[:2]}/{name[2:]}" for name in (small, large))
    assert s3.contents.uploads == {}


async def test_a_server_that_takes_a_range_over_all_for_none_is_read_likewise(s3: FakeS3) -> None:
    blobs = BucketBlobs(bucket_of(URL, s3.environment()))
    s3.contents.ignore_whole_ranges = True
    name = await stored(blobs, DATA)
    assert b"".join([chunk async for chunk in blobs.read(name, 0, 0)]) == DATA
    assert b"".join([chunk async for chunk in blobs.read(name, 5, 0)]) == DATA[5:]


async def test_aborted_upload_takes_its_parts_back(s3: FakeS3) -> None:
    writer = await BucketBlobs(bucket_of(URL, s3.environment())).writer()
    await poured(writer, LARGE)
    await writer.abort()
    assert (s3.contents.objects, s3.contents.uploads) == ({}, {})


async def test_copy_that_fails_is_reported_and_leaves_nothing(s3: FakeS3) -> None:
    s3.contents.refuse_copies = True
    writer = await BucketBlobs(bucket_of(URL, s3.environment())).writer()
    await poured(writer, LARGE)
    with pytest.raises(ToolFailure):
        await writer.finish()
    await writer.abort()
    assert (s3.contents.objects, s3.contents.uploads) == ({}, {})


async def test_young_bytes_outlive_their_removal_and_old_ones_do_not(s3: FakeS3) -> None:
    blobs = BucketBlobs(bucket_of(URL, s3.environment()), settle_s=60.0)
    sha256 = await stored(blobs, DATA)
    await blobs.remove(sha256)
    assert await content(blobs, sha256) == DATA
    s3.contents.age(61.0)
    await blobs.remove(sha256)
    assert await is_gone(blobs, sha256)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [(403, ErrorKind.IO_ERROR, False), (401, ErrorKind.IO_ERROR, False), (400, ErrorKind.TOOL_UNAVAILABLE, True)],
)
async def test_a_refusing_bucket_is_reported_without_its_address(
    s3: FakeS3, status: int, kind: ErrorKind, retryable: bool
) -> None:
    blobs = BucketBlobs(bucket_of(URL, s3.environment()))
    s3.contents.refuse_with = status
    writer = await blobs.writer()
    await writer.write(DATA)
    with pytest.raises(ToolFailure) as refused:
        await writer.finish()
    with pytest.raises(ToolFailure) as unread:
        await content(blobs, digest(DATA))
    for error in (refused.value.error, unread.value.error):
        assert (error.kind, error.is_retryable) == (kind, retryable)
        assert "127.0.0.1" not in repr(error)
        assert BUCKET + "/" not in repr(error)


async def test_upload_that_breaks_half_way_fails_its_writer_instead_of_hanging(s3: FakeS3) -> None:
    writer = await BucketBlobs(bucket_of(URL, s3.environment())).writer()
    await poured(writer, LARGE)
    s3.contents.refuse_with = 400
    with pytest.raises(ToolFailure) as refused:
        await poured(writer, LARGE * 10)
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    await writer.abort()


async def test_credential_comes_from_the_environment_or_from_secret_files(s3: FakeS3, tmp_path: Path) -> None:
    await stored(BucketBlobs(bucket_of(URL, s3.environment())), DATA)
    assert s3.contents.signed == {"test-id"}
    secret = tmp_path / "id"
    secret.write_text("from-a-file\n")
    await stored(BucketBlobs(bucket_of(URL, s3.environment(AWS_ACCESS_KEY_ID_FILE=str(secret)))), DATA)
    assert s3.contents.signed == {"test-id", "from-a-file"}


@pytest.mark.parametrize(
    "url", ["", "bucket", "http://bucket", "s3://", "s3://bucket?x=1", "s3://bucket/a#b", "file:///etc"]
)
def test_url_that_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="s3://"):
        bucket_of(url, {})
