"""The suite, and what is the disk's own: places, links, leftovers of killed processes, a failing disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import multiprocessing
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.file_calls import descriptors
from tests.ports.blobs_suite import LARGE, BlobsSuite, content, digest, is_gone, poured, stored
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.stores.blobs.disk import DiskBlobs

DATA = b"content" * 1_000


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[DiskBlobs]:
    store = DiskBlobs(str(tmp_path / "blobs"), settle_s=0.0)
    yield store
    await store.close()


class TestDiskBlobs(BlobsSuite):
    pass


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def place(folder: Path, data: bytes) -> Path:
    return folder / digest(data)[:2] / digest(data)[2:]


async def test_equal_content_is_one_private_file(blobs: DiskBlobs, tmp_path: Path) -> None:
    for _ in range(3):
        await stored(blobs, DATA)
    expected = place(tmp_path / "blobs", DATA)
    assert files(tmp_path) == sorted(["blobs/.lock", str(expected.relative_to(tmp_path))])
    assert expected.read_bytes() == DATA
    assert expected.stat().st_mode & 0o777 == 0o600
    assert expected.parent.stat().st_mode & 0o777 == 0o700


async def test_every_descriptor_is_given_back(blobs: DiskBlobs) -> None:
    sha256 = await stored(blobs, LARGE)
    before = descriptors()
    await stored(blobs, DATA)
    await content(blobs, sha256)
    reading = blobs.read(sha256, 0, 0)
    await anext(reading)
    await reading.aclose()  # type: ignore[attr-defined]
    writer = await blobs.writer()
    await poured(writer, LARGE)
    await writer.abort()
    await blobs.remove(sha256)
    assert descriptors() == before


async def test_young_bytes_outlive_their_removal_and_old_ones_do_not(tmp_path: Path) -> None:
    store = DiskBlobs(str(tmp_path), settle_s=60.0)
    sha256 = await stored(store, DATA)
    await store.remove(sha256)
    assert await content(store, sha256) == DATA
    os.utime(place(tmp_path, DATA), (0, 0))
    await store.remove(sha256)
    assert await is_gone(store, sha256)
    await store.close()


async def test_content_that_is_written_again_is_young_again(tmp_path: Path) -> None:
    store = DiskBlobs(str(tmp_path), settle_s=60.0)
    sha256 = await stored(store, DATA)
    os.utime(place(tmp_path, DATA), (0, 0))
    await stored(store, DATA)
    await store.remove(sha256)
    assert await content(store, sha256) == DATA
    await store.close()


async def test_start_removes_what_was_left_behind_and_nothing_that_is_being_written(tmp_path: Path) -> None:
    first = DiskBlobs(str(tmp_path))
    writer = await first.writer()
    await poured(writer, LARGE)
    (tmp_path / ".incoming" / "left-behind").write_bytes(b"half")
    second = DiskBlobs(str(tmp_path))
    assert len(files(tmp_path / ".incoming")) == 1
    sha256, _ = await writer.finish()
    assert await content(second, sha256) == LARGE
    await first.close()
    await second.close()


def _write_half(folder: str, written: multiprocessing.synchronize.Event) -> None:
    async def write() -> None:
        writer = await DiskBlobs(folder).writer()
        await poured(writer, LARGE)
        written.set()
        await asyncio.Event().wait()

    asyncio.run(write())


async def test_process_killed_while_writing_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    written = context.Event()
    victim = context.Process(target=_write_half, args=(str(tmp_path), written))
    victim.start()
    assert await asyncio.to_thread(written.wait, 60)
    victim.kill()
    victim.join()
    assert len(files(tmp_path / ".incoming")) == 1
    store = DiskBlobs(str(tmp_path))
    assert files(tmp_path / ".incoming") == []
    assert await is_gone(store, digest(LARGE))
    await store.close()


async def test_link_in_the_place_of_a_blob_is_not_followed(blobs: DiskBlobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    target = place(tmp_path / "blobs", DATA)
    target.parent.mkdir()
    target.symlink_to(secret)
    with pytest.raises(ToolFailure) as refused:
        await content(blobs, digest(DATA))
    assert refused.value.error.kind is ErrorKind.IO_ERROR
    await stored(blobs, DATA)
    assert secret.read_text() == "not yours"
    assert await content(blobs, digest(DATA)) == DATA


async def test_link_in_the_place_of_a_folder_is_not_followed(blobs: DiskBlobs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place(tmp_path / "blobs", DATA).parent.symlink_to(outside)
    with pytest.raises(ToolFailure) as refused:
        await stored(blobs, DATA)
    assert refused.value.error.kind is ErrorKind.IO_ERROR
    assert files(outside) == []


async def test_folder_or_pipe_in_the_place_of_a_blob_is_refused(blobs: DiskBlobs, tmp_path: Path) -> None:
    target = place(tmp_path / "blobs", DATA)
    target.parent.mkdir()
    os.mkfifo(target)
    with pytest.raises(ToolFailure) as refused:
        await content(blobs, digest(DATA))
    assert refused.value.error.kind is ErrorKind.IO_ERROR


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_the_refusal_that_all_writers_give(
    blobs: DiskBlobs, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    writer = await blobs.writer()
    with pytest.raises(ToolFailure) as refused:
        await poured(writer, LARGE)
    monkeypatch.undo()
    await writer.abort()
    assert refused.value.error.kind is ErrorKind.BUDGET_EXCEEDED
    assert refused.value.error.details["cause"] == "DISK_FULL"


@pytest.mark.parametrize(
    ("code", "word"),
    [(errno.EFBIG, "size"), (errno.EACCES, "permissions"), (errno.EIO, "errno"), (errno.EMFILE, "open")],
)
async def test_a_failing_disk_is_reported_with_the_remedy_and_without_a_path(
    blobs: DiskBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, word: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code), str(tmp_path))

    monkeypatch.setattr(os, "write", refuse)
    writer = await blobs.writer()
    with pytest.raises(ToolFailure) as refused:
        await poured(writer, LARGE)
    monkeypatch.undo()
    await writer.abort()
    error = refused.value.error
    assert error.kind is ErrorKind.IO_ERROR
    assert word in error.message
    assert str(tmp_path) not in repr(error)
    assert error.details == {"errno": errno.errorcode[code]}
    assert files(tmp_path / "blobs" / ".incoming") == []


async def test_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolFailure) as refused:
        DiskBlobs(str(tmp_path / "file" / "blobs"))
    assert refused.value.error.kind is ErrorKind.IO_ERROR


async def test_cancelled_writing_can_be_aborted_and_publishes_nothing(blobs: DiskBlobs, tmp_path: Path) -> None:
    writer = await blobs.writer()
    await poured(writer, LARGE)
    lock = os.open(tmp_path / "blobs" / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # finishing waits here, as behind a removal
    finishing = asyncio.create_task(writer.finish())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.sleep(0)  # stopped before it is let go
    os.close(lock)
    with pytest.raises(asyncio.CancelledError):
        await finishing
    await writer.abort()
    assert await is_gone(blobs, digest(LARGE))
    assert files(tmp_path / "blobs" / ".incoming") == []
