"""The Python client's artifacts against a real ArtifactService, and against one that breaks."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.breaking_artifacts import DATA, BreakingArtifactServicer, served
from tests.rpc.artifact_server import MIB, ArtifactServer, artifact_server, sha256
from toolhub_client import (
    Context,
    CutShort,
    DigestMismatch,
    HubUnavailable,
    NotFound,
    Overloaded,
    Stalled,
    connect,
    connect_sync,
)
from toolhub_client import channel as client_channel


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ArtifactServer]:
    async with artifact_server(tmp_path / "blobs") as running:
        yield running


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_channel, "FIRST_PAUSE_S", 0.001)


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), MIB):
        yield data[start : start + MIB]


@pytest.mark.parametrize("data", [b"", b"some", DATA])
async def test_bytes_files_and_streams_go_up_and_come_down(server: ArtifactServer, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(data)
    async with connect(server.address, context=Context(task_id="task-1")) as hub:
        for content, name in ((data, ""), (file, "rows.csv"), (in_pieces(data), "")):
            artifact = await hub.put_artifact(content, media_type="text/csv")
            assert (artifact.sha256, artifact.name, artifact.task_id) == (sha256(data), name, "task-1")
            assert await hub.get_artifact(artifact.artifact_id) == data


async def test_a_refusal_is_reported_with_its_reason(server: ArtifactServer) -> None:
    async with connect(server.address) as hub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await hub.put_artifact(b"x" * 40 * MIB)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await hub.get_artifact("art_1")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_stream_that_breaks_is_not_kept(server: ArtifactServer) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x" * MIB
        raise OSError("unplugged")

    async with connect(server.address) as hub:
        with pytest.raises(OSError, match="unplugged"):
            await hub.put_artifact(breaks())
    if server.in_flight.count:
        await server.in_flight.empty.wait()
    # What was stored before the hub heard that the client has left is withdrawn: its bytes are the sweeper's.
    await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
    assert (server.kept.records.found, server.kept.files()) == ({}, [])


@pytest.mark.promise("artifact.resumed")
@pytest.mark.parametrize("kind", [bytes, Path])
async def test_broken_upload_goes_on_where_it_was(server: ArtifactServer, tmp_path: Path, kind: type) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(DATA)
    server.breaking.after = [1, 4, 1, 3, 2]
    async with connect(server.address) as hub:
        artifact = await hub.put_artifact(DATA if kind is bytes else file)
        assert await hub.get_artifact(artifact.artifact_id) == DATA
    assert server.breaking.after == []
    assert len(server.kept.records.found) == 1


async def test_upload_that_gets_nowhere_is_given_up(server: ArtifactServer) -> None:
    server.breaking.after = [1] * 4
    async with connect(server.address) as hub:
        with pytest.raises(HubUnavailable):
            await hub.put_artifact(DATA, attempts=3)
    assert server.breaking.after == []


async def test_artifacts_are_listed_found_by_content_and_deleted(server: ArtifactServer) -> None:
    async with connect(server.address) as hub:
        first, second = await hub.put_artifact(b"first"), await hub.put_artifact(b"second")
        assert {one.artifact_id async for one in hub.list_artifacts()} == {first.artifact_id, second.artifact_id}
        assert [one async for one in hub.list_artifacts(sha256=first.sha256)] == [first]
        await hub.delete_artifact(first.artifact_id)
        assert [one async for one in hub.list_artifacts()] == [second]
        with pytest.raises(NotFound):
            await hub.delete_artifact(first.artifact_id)


@pytest.mark.parametrize("end", [grpc.StatusCode.UNAVAILABLE, None])
async def test_broken_download_goes_on_where_it_was(end: grpc.StatusCode | None) -> None:
    servicer = BreakingArtifactServicer(end)
    server, address = await served(servicer)
    async with connect(address) as hub:
        assert await hub.get_artifact("art_1") == DATA
    await server.stop(0)
    assert servicer.offsets == [0, 600_000, 1_200_000, 1_800_000]


async def test_download_that_brings_nothing_any_more_is_given_up() -> None:
    server, address = await served(BreakingArtifactServicer(grpc.StatusCode.UNAVAILABLE, streams_max=2))
    async with connect(address) as hub:
        chunks = hub.read_artifact("art_1", attempts=3)
        given = [await anext(chunks) for _ in range(5)]
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(chunks)
    assert DATA.startswith(b"".join(given))
    await server.stop(0)


async def test_content_that_does_not_match_its_digest_is_never_given_whole() -> None:
    server, address = await served(BreakingArtifactServicer(None, lies=True))
    async with connect(address) as hub:
        chunks = hub.read_artifact("art_1")
        given = [await anext(chunks) for _ in range(10)]
        with pytest.raises(DigestMismatch):
            await anext(chunks)
    assert len(b"".join(given)) < len(DATA)
    await server.stop(0)


async def test_progress_is_reported_both_ways(server: ArtifactServer, tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(DATA)
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    async with connect(server.address) as hub:
        artifact = await hub.put_artifact(file, on_progress=lambda done, total: sent.append((done, total)))
        chunks = hub.read_artifact(artifact, on_progress=lambda done, total: received.append((done, total)))
        assert b"".join([chunk async for chunk in chunks]) == DATA
    for reports in (sent, received):
        assert [done for done, _ in reports] == sorted({done for done, _ in reports})
        assert reports[-1] == (len(DATA), len(DATA))


async def test_a_download_goes_on_after_what_the_file_holds(tmp_path: Path) -> None:
    servicer = BreakingArtifactServicer(grpc.StatusCode.UNAVAILABLE)
    server, address = await served(servicer)
    with (tmp_path / "part").open("w+b") as file:
        file.write(DATA[:700_000])
        async with connect(address) as hub:
            assert (await hub.download_artifact("art_1", file)).size_bytes == len(DATA)
        file.seek(0)
        assert file.read() == DATA
    await server.stop(0)
    assert servicer.offsets == [700_000, 1_300_000, 1_900_000]


@pytest.mark.parametrize("held", [b"not the beginning", b""])
async def test_a_download_that_does_not_match_its_digest_leaves_an_empty_file(held: bytes) -> None:
    server, address = await served(BreakingArtifactServicer(None, lies=True))
    file = io.BytesIO(held)
    async with connect(address) as hub:
        with pytest.raises(DigestMismatch):
            await hub.download_artifact("art_1", file)
    await server.stop(0)
    assert file.getvalue() == b""


async def test_a_file_that_holds_more_than_the_artifact_is_written_anew() -> None:
    servicer = BreakingArtifactServicer(None)
    server, address = await served(servicer)
    file = io.BytesIO(DATA + b"more")
    async with connect(address) as hub:
        await hub.download_artifact("art_1", file)
    await server.stop(0)
    assert file.getvalue() == DATA
    assert servicer.offsets[0] == 0


async def test_a_download_that_ends_before_its_end_is_given_up() -> None:
    class Short(BreakingArtifactServicer):
        async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
            self.offsets.append(request.offset_bytes)
            for _ in ():
                yield

    server, address = await served(Short(None))
    async with connect(address) as hub:
        with pytest.raises(CutShort):
            await hub.get_artifact("art_1")
    await server.stop(0)


class SilentArtifactServicer(BreakingArtifactServicer):
    """Takes and sends nothing."""

    async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        for _ in ():
            yield

    async def WriteArtifact(self, request: Any, context: Any) -> Any:  # type: ignore[override]
        await context.send_initial_metadata((("toolhub-accepted", "header"),))
        await asyncio.Event().wait()


async def test_a_transfer_that_does_not_move_is_given_up(tmp_path: Path) -> None:
    server, address = await served(SilentArtifactServicer(None))
    async with connect(address) as hub:
        with pytest.raises(Stalled):
            await hub.put_artifact(DATA, stall_s=0.01)
        with pytest.raises(Stalled):
            await hub.download_artifact("art_1", io.BytesIO(), stall_s=0.01)
    await server.stop(0)


async def test_a_stream_that_is_refused_on_its_way_is_refused_with_the_reason(server: ArtifactServer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    async with connect(server.address) as hub:
        with pytest.raises(Overloaded) as refused:
            await hub.put_artifact(endless())
    assert refused.value.reason


async def test_a_source_that_pauses_holds_up_nothing_else_without_asyncio(server: ArtifactServer) -> None:
    may_end = threading.Event()

    def paused() -> Iterator[bytes]:
        yield b"first "
        may_end.wait(60)
        yield b"second"

    def put_beside_another() -> tuple[bytes, bytes]:
        with connect_sync(server.address) as hub:
            slow: list[Any] = []
            sending = threading.Thread(target=lambda: slow.append(hub.put_artifact(paused(), stall_s=30.0)))
            sending.start()
            quick = hub.put_artifact(b"quick")
            may_end.set()
            sending.join()
            return hub.get_artifact(quick), hub.get_artifact(slow[0])

    assert await asyncio.to_thread(put_beside_another) == (b"quick", b"first second")


async def test_a_source_that_fails_fails_the_upload_without_asyncio(server: ArtifactServer) -> None:
    def failing() -> Iterator[bytes]:
        yield b"some"
        raise OSError("unplugged")

    def put() -> None:
        with connect_sync(server.address) as hub:
            hub.put_artifact(failing())

    with pytest.raises(OSError, match="unplugged"):
        await asyncio.to_thread(put)
