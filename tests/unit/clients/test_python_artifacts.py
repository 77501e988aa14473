"""The Python client's artifacts against a real ArtifactService, and against one that breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.fakes.breaking_artifacts import DATA, BreakingArtifactServicer, served
from tests.rpc.artifact_server import MIB, ArtifactServer, artifact_server, sha256
from toolhub_client import Context, DigestMismatch, HubUnavailable, NotFound, connect
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
