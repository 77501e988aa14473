"""ArtifactService over the wire: both ways in bounded memory, exact statuses, and nothing kept by halves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.artifacts import MAX_BYTES, TTL_S
from tests.fakes.file_calls import descriptors
from tests.hub import channel_to
from tests.rpc.artifact_server import MIB, TIMEOUT_S, ArtifactServer, artifact_server, messages, sha256
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub

DATA = bytes(range(256)) * 3_000
"""768,000 bytes: three chunks."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ArtifactServer]:
    async with artifact_server(tmp_path / "blobs") as running:
        yield running


async def test_an_upload_is_kept_whole_with_its_headers_fields(server: ArtifactServer) -> None:
    written = await server.write(
        DATA[:5], b"", DATA[5:], media_type="text/csv", name="rows.csv", task_id="task-1", size_bytes=len(DATA)
    )
    assert (written.sha256, written.size_bytes) == (sha256(DATA), len(DATA))
    assert (written.media_type, written.name, written.task_id) == ("text/csv", "rows.csv", "task-1")
    assert (written.principal, written.call_id) == ("agent-a", "")
    assert written.expires_at.ToMilliseconds() - written.created_at.ToMilliseconds() == int(TTL_S * 1_000)
    assert await server.get(written.artifact_id) == written
    assert await server.read(written.artifact_id) == DATA


async def test_empty_artifact_goes_both_ways(server: ArtifactServer) -> None:
    written = await server.write(sha256=sha256(b""))
    assert await server.read(written.artifact_id) == b""


@pytest.mark.parametrize(
    ("offset", "limit"), [(0, 1), (262_143, 2), (500_000, 0), (len(DATA) - 1, 100), (len(DATA), 0), (len(DATA), 7)]
)
async def test_a_part_is_read_by_offset_and_limit(server: ArtifactServer, offset: int, limit: int) -> None:
    written = await server.write(DATA)
    assert await server.read(written.artifact_id, offset, limit) == DATA[offset : offset + limit if limit else None]


async def test_offset_past_the_end_is_out_of_range(server: ArtifactServer) -> None:
    written = await server.write(DATA)
    refusal = await failed_stream(server.reading(written.artifact_id, len(DATA) + 1))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_PAST_END")
    assert refusal.metadata == {"size_bytes": str(len(DATA))}


@pytest.mark.promise("artifact.owned")
async def test_foreign_unknown_and_expired_are_not_found_and_reported_alike(server: ArtifactServer) -> None:
    written = await server.write(DATA)
    art = written.artifact_id
    refusals = [
        await failed(server.get(art, who="agent-b")),
        await failed_stream(server.reading(art, who="agent-b")),
        await failed(server.get("art_" + "0" * 32)),
    ]
    server.kept.clock.advance(TTL_S)
    refusals += [await failed(server.get(art)), await failed_stream(server.reading(art))]
    assert (refusals[0].code, refusals[0].reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert all(one == refusals[0] for one in refusals)


async def test_auditor_reads_what_others_own(server: ArtifactServer) -> None:
    written = await server.write(DATA)
    assert await server.get(written.artifact_id, who="carol", role="auditor") == written


@pytest.mark.parametrize(
    ("header", "code", "reason"),
    [
        ({"size_bytes": len(DATA) + 1}, grpc.StatusCode.INVALID_ARGUMENT, "SIZE_MISMATCH"),
        ({"size_bytes": len(DATA) - 1}, grpc.StatusCode.INVALID_ARGUMENT, "SIZE_MISMATCH"),
        ({"sha256": "0" * 64}, grpc.StatusCode.INVALID_ARGUMENT, "DIGEST_MISMATCH"),
        ({"sha256": "ABC"}, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
        ({"size_bytes": -1}, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
        ({"size_bytes": MAX_BYTES + 1}, grpc.StatusCode.RESOURCE_EXHAUSTED, "ARTIFACT_TOO_LARGE"),
        ({"media_type": "nonsense"}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_MEDIA_TYPE"),
        *(
            ({"name": name}, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
            for name in ("../x", "/etc/passwd", "a\\b", "a\x00b", "a\nb", "\x1b[2J", "gnp.\u202eexe", "x" * 256)
        ),
        *(({"name": name}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_NAME") for name in (".", "..")),
        ({"task_id": "../x"}, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"),
    ],
)
@pytest.mark.promise("artifact.verified")
async def test_upload_that_is_not_as_declared_or_misdeclared_keeps_nothing(
    server: ArtifactServer, header: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    refusal = await failed(server.write(DATA, **header))
    assert (refusal.code, refusal.reason) == (code, reason)
    assert (server.kept.files(), server.kept.records.found) == ([], {})


HEADER = pb.WriteArtifactRequest(header=pb.ArtifactHeader())
CHUNK = pb.WriteArtifactRequest(chunk=b"x")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([], "HEADER_MISSING"),
        ([CHUNK], "HEADER_MISSING"),
        ([HEADER, HEADER], "CHUNK_MISSING"),
        ([HEADER, CHUNK, HEADER, CHUNK], "CHUNK_MISSING"),
        ([HEADER, CHUNK, pb.WriteArtifactRequest()], "MALFORMED_REQUEST"),
        ([HEADER, pb.WriteArtifactRequest(chunk=b"x" * (MIB + 1))], "MALFORMED_REQUEST"),
    ],
)
async def test_upload_that_breaks_the_protocol_keeps_nothing(
    server: ArtifactServer, sent: list[pb.WriteArtifactRequest], reason: str
) -> None:
    refusal = await failed(server.stub.WriteArtifact(iter(sent), timeout=TIMEOUT_S))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert (server.kept.files(), server.kept.records.found) == ([], {})


@pytest.mark.promise("artifact.bounded")
async def test_upload_beyond_the_cap_is_refused_while_it_comes(server: ArtifactServer) -> None:
    refusal = await failed(server.write(*[b"x" * MIB] * 20))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "ARTIFACT_TOO_LARGE")
    assert (server.kept.files(), server.kept.records.found) == ([], {})


async def test_upload_beyond_the_quota_is_refused(tmp_path: Path) -> None:
    async with artifact_server(tmp_path, quota_bytes=3 * MIB) as server:
        await server.write(b"a" * MIB, b"b" * MIB)
        refusal = await failed(server.write(b"c" * MIB))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        await server.write(b"c" * MIB, who="agent-b")


@pytest.mark.parametrize("declared", [0, 10 * MIB])
@pytest.mark.promise("artifact.verified")
async def test_upload_whose_client_leaves_keeps_nothing(server: ArtifactServer, declared: int) -> None:
    """A client that leaves and one that has sent all look much alike to a server that only reads messages."""
    for chunks in range(25):
        call = server.stub.WriteArtifact(timeout=TIMEOUT_S)
        await call.write(pb.WriteArtifactRequest(header=pb.ArtifactHeader(size_bytes=declared)))
        for _ in range(chunks % 4):
            await call.write(pb.WriteArtifactRequest(chunk=b"x" * (MIB // 2)))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    if server.in_flight.count:
        await server.in_flight.empty.wait()
    visible = [
        one for one in server.kept.records.found.values() if one.expires_at_unix_ms > server.kept.clock.unix_ms()
    ]
    assert visible == []
    await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
    assert (server.kept.files(), server.kept.records.found) == ([], {})


@pytest.mark.promise("artifact.verified")
async def test_upload_whose_connection_breaks_keeps_nothing(server: ArtifactServer) -> None:
    for _ in range(5):
        channel = channel_to(server.address)
        stub: Any = ArtifactServiceStub(channel)
        call = stub.WriteArtifact(timeout=TIMEOUT_S)
        await call.write(HEADER)
        await call.write(pb.WriteArtifactRequest(chunk=b"x" * MIB))
        await server.in_flight.entered.wait()
        await channel.close()
    if server.in_flight.count:
        await server.in_flight.empty.wait()
    assert [one for one in server.kept.records.found.values() if one.size_bytes] == []
    await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
    assert (server.kept.files(), server.kept.records.found) == ([], {})


async def test_reader_that_leaves_early_leaves_no_descriptor(server: ArtifactServer) -> None:
    written = await server.write(*[bytes([number]) * MIB for number in range(8)])
    before = descriptors()
    for _ in range(5):
        call = server.reading(written.artifact_id)
        await call.read()
        await call.read()
        call.cancel()
    if server.in_flight.count:
        await server.in_flight.empty.wait()
    assert descriptors() == before


async def test_equal_content_from_many_at_once_is_stored_once(server: ArtifactServer) -> None:
    written = await asyncio.gather(*[server.write(DATA, who=f"agent-{number}") for number in range(12)])
    assert server.kept.files() == [sha256(DATA)]
    assert len({one.artifact_id for one in written}) == 12
    assert {one.principal for one in written} == {f"agent-{number}" for number in range(12)}


@pytest.mark.promise("artifact.expires")
async def test_expired_artifact_is_swept_with_its_bytes(server: ArtifactServer) -> None:
    written = await server.write(DATA)
    server.kept.clock.advance(TTL_S)
    assert await server.kept.artifacts.sweep(server.kept.clock.unix_ms()) == 1
    assert (await failed(server.get(written.artifact_id))).code is grpc.StatusCode.NOT_FOUND
    assert server.kept.files() == []


async def test_stores_that_fail_are_reported_as_statuses(server: ArtifactServer) -> None:
    server.kept.records.is_broken = True
    refusal = await failed(server.write(DATA))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "TOOL_UNAVAILABLE")


@pytest.mark.promise("artifact.checked")
@pytest.mark.parametrize("damage", [b"\xff" + DATA[1:], DATA[:-1] + b"\x00", DATA[:-1]])
async def test_bytes_that_are_not_what_they_were_end_in_data_loss_before_the_last_chunk(
    server: ArtifactServer, damage: bytes
) -> None:
    written = await server.write(DATA)
    (path,) = [path for path in server.kept.folder.rglob("*") if path.name == sha256(DATA)[2:]]
    path.write_bytes(damage)
    received = []

    async def reading() -> AsyncIterator[None]:
        async for response in server.reading(written.artifact_id):
            received.append(len(response.chunk))
            yield

    failure = await failed_stream(reading())
    assert (failure.code, failure.reason) == (grpc.StatusCode.DATA_LOSS, "ARTIFACT_DAMAGED")
    assert sum(received) < len(DATA)


async def pages_of(server: ArtifactServer, **where: Any) -> list[str]:
    """Ids over all pages."""
    found, token = list[str](), ""
    while True:
        page = await server.list(page_token=token, **where)
        found += [artifact.artifact_id for artifact in page.artifacts]
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.promise("artifact.owned")
async def test_list_shows_what_is_ones_own_newest_first_and_an_auditor_all(server: ArtifactServer) -> None:
    own: list[str] = []
    for number in range(7):
        own.insert(0, (await server.write(b"%d" % number, task_id=f"t{number % 2}")).artifact_id)
        server.kept.clock.advance(1)
    other = (await server.write(b"0", who="agent-b")).artifact_id
    for page_size in (0, 1, 3, 7, 8):
        assert await pages_of(server, page_size=page_size) == own
        assert await pages_of(server, page_size=page_size, task_id="t1") == own[1::2]
    assert await pages_of(server, sha256=sha256(b"0")) == [own[-1]]
    assert await pages_of(server, sha256=sha256(b"nothing")) == []
    assert await pages_of(server, who="agent-b") == [other]
    assert await pages_of(server, role="auditor") == [other, *own]
    assert await pages_of(server, role="auditor", principal="agent-b") == [other]
    refused = await failed(server.list(principal="agent-b"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
    server.kept.clock.advance(TTL_S - 6.5)
    assert await pages_of(server) == own[:-1], "what has expired is not listed"
    assert (await failed(server.list(page_token="forged"))).reason == "PAGE_TOKEN_INVALID"


@pytest.mark.promise("artifact.deleted")
async def test_deleted_artifact_is_gone_at_once_frees_the_quota_and_is_recorded(server: ArtifactServer) -> None:
    written, same = await server.write(DATA), await server.write(DATA, who="agent-b")
    for who, role in (("agent-b", "agent"), ("carol", "auditor")):
        failure = await failed(server.delete(written.artifact_id, who, role))
        assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert server.audit.events == []
    await server.delete(written.artifact_id)
    for gone in (server.get(written.artifact_id), server.delete(written.artifact_id)):
        assert (await failed(gone)).code is grpc.StatusCode.NOT_FOUND
    assert await pages_of(server) == []
    assert await server.kept.records.usage("agent-a") == (0, 0)
    (event,) = server.audit.events
    assert (event.event.type.value, event.event.principal) == ("ARTIFACT_DELETED", "agent-a")
    assert event.event.attributes["artifact_id"] == written.artifact_id
    await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
    assert server.kept.files() == [sha256(DATA)], "another has the same bytes"
    await server.delete(same.artifact_id, "agent-b")
    await server.kept.artifacts.sweep(server.kept.clock.unix_ms())
    assert (server.kept.files(), server.kept.records.found) == ([], {})


async def test_artifact_whose_deletion_cannot_be_recorded_stays(server: ArtifactServer) -> None:
    written = await server.write(DATA)
    server.audit.broken = True
    assert (await failed(server.delete(written.artifact_id))).code is grpc.StatusCode.INTERNAL
    assert await server.read(written.artifact_id) == DATA


LARGE_MIB = 100
ROOM_MIB = 48
"""For both ends in one process, their sockets' buffers and what the allocator keeps."""


@pytest.mark.slow
@pytest.mark.promise("artifact.bounded")
async def test_a_hundred_mebibytes_go_both_ways_in_bounded_memory(tmp_path: Path) -> None:
    async with artifact_server(tmp_path, max_bytes=200 * MIB, quota_bytes=300 * MIB) as server:
        await server.read((await server.write(*[b"w" * MIB] * 4)).artifact_id)  # what is made once is made
        expected = hashlib.sha256()

        def chunks() -> Any:
            for number in range(LARGE_MIB):
                chunk = number.to_bytes(4, "big") * (MIB // 4)
                expected.update(chunk)
                yield chunk

        before = _forget_peak()
        call = server.stub.WriteArtifact(messages(chunks()), timeout=60)
        written = (await call).artifact
        assert (written.size_bytes, written.sha256) == (LARGE_MIB * MIB, expected.hexdigest())
        assert _peak_mib() - before < ROOM_MIB

        found, before = hashlib.sha256(), _forget_peak()
        async for response in server.reading(written.artifact_id):
            found.update(response.chunk)
        assert found.hexdigest() == expected.hexdigest()
        assert _peak_mib() - before < ROOM_MIB


def _forget_peak() -> float:
    """The peak begins anew at what is resident now (Linux, proc(5)), which is returned."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mib()


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
