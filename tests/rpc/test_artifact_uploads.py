"""Uploads that go on after their connection broke: where they stood, once, and for their owner alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import channel_to
from tests.rpc.artifact_server import MIB, TIMEOUT_S, ArtifactServer, artifact_server, sha256
from tests.rpc.statuses import failed
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.runtime.artifacts.uploads import HELD_MAX_EACH, HELD_S

DATA = bytes(range(256)) * 4 * 1024 * 3
"""Three MiB."""
UPLOAD = "upload-of-a-test"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ArtifactServer]:
    async with artifact_server(tmp_path / "blobs") as running:
        yield running


async def break_off(server: ArtifactServer, *chunks: bytes, upload_id: str = UPLOAD, **header: Any) -> None:
    """Send these chunks, and lose the connection once the hub has them."""
    before = header.get("offset_bytes", 0)
    if "sha256" not in header:
        header.setdefault("size_bytes", len(DATA))
    async with channel_to(server.address) as channel:
        stub: Any = ArtifactServiceStub(channel)
        call = stub.WriteArtifact(timeout=TIMEOUT_S)
        declared = pb.ArtifactHeader(upload_id=upload_id, **header)
        await call.write(pb.WriteArtifactRequest(header=declared))
        await call.initial_metadata()
        for chunk in chunks:
            await call.write(pb.WriteArtifactRequest(chunk=chunk))
        while (await server.upload(upload_id)).received_bytes < before + sum(map(len, chunks)):
            pass  # each answer is one turn of the hub
    if server.in_flight.count:
        await server.in_flight.empty.wait()


def from_on(start: int) -> list[bytes]:
    """The rest, in chunks."""
    return [DATA[at : at + MIB] for at in range(start, len(DATA), MIB)]


WHOLE: dict[str, Any] = {"size_bytes": len(DATA), "sha256": sha256(DATA), "name": "data.bin", "task_id": "t1"}


@pytest.mark.promise("artifact.resumed")
@pytest.mark.parametrize("declared", [WHOLE, {"size_bytes": len(DATA)}, {"sha256": sha256(DATA)}])
async def test_broken_upload_goes_on_where_it_stood_and_is_stored_once(
    server: ArtifactServer, declared: dict[str, Any]
) -> None:
    await break_off(server, DATA[:MIB], **declared)
    assert await server.upload(UPLOAD) == pb.GetUploadResponse(received_bytes=MIB)
    await break_off(server, DATA[MIB : MIB + 7], offset_bytes=MIB, **declared)
    at = (await server.upload(UPLOAD)).received_bytes
    assert at == MIB + 7
    written = await server.write(*from_on(at), upload_id=UPLOAD, offset_bytes=at, **declared)
    assert (written.sha256, written.size_bytes) == (sha256(DATA), len(DATA))
    assert (written.name, written.task_id) == (declared.get("name", ""), declared.get("task_id", ""))
    assert await server.read(written.artifact_id) == DATA
    assert list(server.kept.records.found) == [written.artifact_id]
    upload = await server.upload(UPLOAD)
    assert (upload.received_bytes, upload.artifact) == (len(DATA), written), "whoever lost the answer finds it"


async def test_upload_goes_on_only_at_its_end_with_its_own_header(server: ArtifactServer) -> None:
    await break_off(server, DATA[:MIB], **WHOLE)
    for header, code, reason in (
        ({**WHOLE, "offset_bytes": 5}, grpc.StatusCode.FAILED_PRECONDITION, "UPLOAD_OFFSET_WRONG"),
        ({**WHOLE, "offset_bytes": MIB + 1}, grpc.StatusCode.FAILED_PRECONDITION, "UPLOAD_OFFSET_WRONG"),
        ({**WHOLE, "offset_bytes": MIB, "name": "b"}, grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_HEADER_INVALID"),
    ):
        failure = await failed(server.write(*from_on(MIB), upload_id=UPLOAD, **header))
        assert (failure.code, failure.reason) == (code, reason)
    for header in ({"offset_bytes": MIB}, {"upload_id": UPLOAD}):
        failure = await failed(server.write(*from_on(MIB), **header))
        assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_HEADER_INVALID")
    assert (await server.upload(UPLOAD)).received_bytes == MIB, "a refusal loses nothing"


@pytest.mark.promise("artifact.owned")
async def test_an_upload_of_another_principal_or_of_none_is_not_found(server: ArtifactServer) -> None:
    await break_off(server, DATA[:MIB])
    failures = [
        await failed(server.upload(UPLOAD, "agent-b")),
        await failed(server.upload("no-such-upload")),
        await failed(server.write(*from_on(MIB), who="agent-b", upload_id=UPLOAD, offset_bytes=MIB, **WHOLE)),
    ]
    assert (failures[0].code, failures[0].reason) == (grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND")
    assert all(one == failures[0] for one in failures)


async def test_stream_that_another_has_taken_the_upload_from_is_aborted(server: ArtifactServer) -> None:
    """As when a client comes back before the hub has noticed that its first connection is dead."""
    first = server.stub.WriteArtifact(timeout=TIMEOUT_S)
    await first.write(pb.WriteArtifactRequest(header=pb.ArtifactHeader(upload_id=UPLOAD, **WHOLE)))
    await first.write(pb.WriteArtifactRequest(chunk=DATA[:MIB]))
    await first.initial_metadata()
    while (await server.upload(UPLOAD)).received_bytes < MIB:
        pass
    written = await server.write(*from_on(MIB), upload_id=UPLOAD, offset_bytes=MIB, **WHOLE)
    assert written.sha256 == sha256(DATA)
    await first.write(pb.WriteArtifactRequest(chunk=DATA[MIB : 2 * MIB]))
    failure = await failed(first)
    assert (failure.code, failure.reason) == (grpc.StatusCode.ABORTED, "UPLOAD_TAKEN_OVER")
    assert await server.read(written.artifact_id) == DATA


async def test_upload_that_begins_anew_leaves_nothing_of_what_came_before(server: ArtifactServer) -> None:
    await break_off(server, b"something else")
    written = await server.write(*from_on(0), upload_id=UPLOAD, **WHOLE)
    assert await server.read(written.artifact_id) == DATA
    assert server.kept.files() == [sha256(DATA)]


@pytest.mark.parametrize("header", [{"sha256": "0" * 64, "size_bytes": len(DATA)}, {"size_bytes": MIB + 1}])
async def test_resumed_upload_that_is_not_as_declared_keeps_nothing(
    server: ArtifactServer, header: dict[str, Any]
) -> None:
    await break_off(server, DATA[:MIB], **header)
    failure = await failed(server.write(*from_on(MIB), upload_id=UPLOAD, offset_bytes=MIB, **header))
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await failed(server.upload(UPLOAD))).reason == "UPLOAD_NOT_FOUND"
    assert (server.kept.files(), server.kept.records.found) == ([], {})


@pytest.mark.promise("artifact.bounded")
async def test_held_uploads_count_for_the_quota_and_expire(tmp_path: Path) -> None:
    async with artifact_server(tmp_path, quota_bytes=3 * MIB) as server:
        await break_off(server, *from_on(MIB))
        failure = await failed(server.write(*from_on(MIB)))
        assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        server.kept.clock.advance(HELD_S)
        assert (await failed(server.upload(UPLOAD))).reason == "UPLOAD_NOT_FOUND"
        await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
        assert server.kept.files() == []
        await server.write(*from_on(MIB))


async def test_one_client_holds_a_bounded_number_of_uploads(server: ArtifactServer) -> None:
    names = [f"upload-{number:03}" for number in range(HELD_MAX_EACH + 2)]
    for name in names:
        await break_off(server, b"x", upload_id=name)
        server.kept.clock.advance(1)
    held = await asyncio.gather(*(server.upload(name) for name in names), return_exceptions=True)
    assert [isinstance(one, Exception) for one in held] == [True, True] + [False] * HELD_MAX_EACH
