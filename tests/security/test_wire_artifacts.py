"""Artifacts, attacked over the wire: other people's, references, hashes, names, quotas, what is on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.principals import BY_KEY, Client, Principals
from tests.rpc.sample_tools import Echo
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import artifact_pb2, error_pb2, result_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.app.config_files.paths import Paths

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
roles:
  - {principals: [ops], roles: [operator]}
  - {principals: [auditor], roles: [auditor]}
  - {principals: [judge], roles: [approver]}
"""
ECHO = "test/text.echo"
NAMES = ("alice", "bob", "ops", "auditor", "judge")
KIB = 1024
LIMITS = {"quota_bytes": 64 * KIB, "max_bytes": 32 * KIB, "argument_max_bytes": 16 * KIB}


class ArtifactsHarness:
    def __init__(self, running: RunningHub) -> None:
        self.running, self.people = running, Principals(running, names=NAMES)

    def by(self, name: str) -> Client:
        return self.people.at(self.running, name)

    @property
    def stub(self) -> Any:
        return ArtifactServiceStub(self.running.channel)

    def sending(self, name: str, parts: Iterable[pb.WriteArtifactRequest]) -> Any:
        return self.stub.WriteArtifact(iter(parts), metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)

    async def write(self, who: str, data: bytes, **header: Any) -> artifact_pb2.Artifact:
        parts = [pb.WriteArtifactRequest(header=pb.ArtifactHeader(**header)), pb.WriteArtifactRequest(chunk=data)]
        return (await self.sending(who, parts)).artifact  # type: ignore[no-any-return]

    def get(self, name: str, artifact_id: str) -> Any:
        asked = pb.GetArtifactRequest(artifact_id=artifact_id)
        return self.stub.GetArtifact(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)

    def read(self, name: str, artifact_id: str, **part: int) -> Any:
        asked = pb.ReadArtifactRequest(artifact_id=artifact_id, **part)
        return self.stub.ReadArtifact(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)

    async def echo(self, name: str, text: Any, tool: str = ECHO, **args: Any) -> result_pb2.ToolResult:
        asked = request(tool, {"text": text, **args}, request_id="r")
        answer = await self.running.stub.Invoke(asked, metadata=self.by(name).metadata, timeout=CALL_TIMEOUT_S)
        return answer.result  # type: ignore[no-any-return]

    @property
    def blobs(self) -> list[Path]:
        folder = Paths(self.running.hub.settings).artifacts
        return [path for path in folder.rglob("*") if path.is_file() and len(path.name) == 62]


def kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


def refer(artifact: artifact_pb2.Artifact | str) -> dict[str, str]:
    return {"$artifact": artifact if isinstance(artifact, str) else artifact.artifact_id}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ArtifactsHarness]:
    settings = {**BY_KEY, "artifacts": LIMITS}
    async with running_hub(tmp_path, policy=POLICY, settings=settings, tools=[Echo()]) as running:
        yield ArtifactsHarness(running)


# Other people's


@pytest.mark.promise("artifact.owned")
async def test_another_s_artifact_is_answered_like_one_that_never_was(harness: ArtifactsHarness) -> None:
    art = (await harness.write("alice", b"c4nary")).artifact_id
    unknown = "art_" + "0" * 32
    asks: tuple[Callable[[str], Any], ...] = (
        lambda one: failed(harness.get("bob", one)),
        lambda one: failed_stream(harness.read("bob", one)),
        lambda one: failed_stream(harness.read("bob", one, offset_bytes=2**63 - 1)),
    )
    for ask in asks:
        foreign = await ask(art)
        assert foreign == await ask(unknown)
        assert foreign.code is grpc.StatusCode.NOT_FOUND
    in_args = await harness.echo("bob", refer(art)), await harness.echo("bob", refer(unknown))
    assert kind(in_args[0]) == kind(in_args[1]) == "NOT_FOUND"
    assert in_args[0].error == in_args[1].error
    assert b"c4nary" not in in_args[0].SerializeToString()


@pytest.mark.parametrize(("name", "reads"), [("auditor", True), ("ops", False), ("judge", False)])
async def test_auditors_read_and_nobody_without_the_role_does_anything(
    harness: ArtifactsHarness, name: str, reads: bool
) -> None:
    art = (await harness.write("alice", b"bytes")).artifact_id
    if reads:
        assert (await harness.get(name, art)).artifact.principal == "alice"
        assert b"".join([part.chunk async for part in harness.read(name, art)]) == b"bytes"
    else:
        assert (await failed(harness.get(name, art))).code is grpc.StatusCode.PERMISSION_DENIED
        assert (await failed_stream(harness.read(name, art))).code is grpc.StatusCode.PERMISSION_DENIED
    assert (await failed(harness.write(name, b"x"))).code is grpc.StatusCode.PERMISSION_DENIED


async def test_reading_rights_of_an_auditor_do_not_reach_into_arguments(tmp_path: Path) -> None:
    policy = POLICY.replace("roles: [auditor]", "roles: [agent, auditor]")
    async with running_hub(tmp_path, policy=policy, settings=BY_KEY, tools=[Echo()]) as running:
        harness = ArtifactsHarness(running)
        art = await harness.write("alice", b"c4nary")
        assert (await harness.get("auditor", art.artifact_id)).artifact.size_bytes == 6
        assert kind(await harness.echo("auditor", refer(art))) == "NOT_FOUND"


async def test_artifact_of_a_job_is_its_owner_s(harness: ArtifactsHarness) -> None:
    whole = await harness.echo("alice", "a" * 100)
    assert whole.ok
    job = await harness.by("alice").submit(ECHO, {"text": refer(await harness.write("alice", b"c4nary"))})
    assert b"c4nary" in (await harness.by("alice").ended(job.job_id))[-1].result.result_json
    stolen = await harness.by("bob").submit(ECHO, {"text": refer(await harness.write("alice", b"c4nary"))})
    last = (await harness.by("bob").ended(stolen.job_id))[-1]
    assert b"c4nary" not in last.SerializeToString()
    assert last.error.kind == error_pb2.ERROR_KIND_NOT_FOUND


async def test_a_hash_does_not_disclose_whether_content_exists(harness: ArtifactsHarness) -> None:
    data = b"only alice has this"
    digest = hashlib.sha256(data).hexdigest()
    await harness.write("alice", data)
    for sha256 in (digest, hashlib.sha256(b"nobody has this").hexdigest()):
        header = pb.WriteArtifactRequest(header=pb.ArtifactHeader(sha256=sha256, size_bytes=len(data)))
        for parts in ([header], [header, pb.WriteArtifactRequest(chunk=b"x" * len(data))]):
            refused = await failed(harness.sending("bob", parts))
            assert (refused.code, refused.reason in ("SIZE_MISMATCH", "DIGEST_MISMATCH")) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                True,
            )
    for guess in (digest, f"art_{digest[:32]}", f"sha256:{digest}"):
        assert (await failed(harness.get("bob", guess))).code is grpc.StatusCode.NOT_FOUND
    mine, theirs = await harness.write("bob", data), await harness.write("alice", data)
    assert len({mine.artifact_id, theirs.artifact_id}) == 2
    assert len(harness.blobs) == 1, "one file for equal bytes; each owner has a record"
    assert (await harness.get("bob", mine.artifact_id)).artifact.principal == "bob"


# References


async def test_references_multiply_no_further_than_the_bound(harness: ArtifactsHarness) -> None:
    art = await harness.write("alice", b"x" * KIB)
    bomb: Any = refer(art)
    for _ in range(10):
        bomb = [bomb, bomb]
    for args in (bomb, [refer(art)] * 17, {str(at): refer(art) for at in range(10_000)}):
        result = await harness.echo("alice", args)
        assert kind(result) == "INVALID_INPUT", result.error.message
        assert "bytes" in result.error.message
    missing = [refer(f"art_{number:032x}") for number in range(101)]
    assert "name 101 artifacts" in (await harness.echo("alice", missing)).error.message


async def test_text_of_an_artifact_is_text_and_names_no_further_artifact(harness: ArtifactsHarness) -> None:
    inner = await harness.write("alice", b"c4nary")
    outer = await harness.write("alice", json.dumps(refer(inner)).encode())
    result = await harness.echo("alice", refer(outer))
    assert json.loads(result.result_json)["text"] == json.dumps(refer(inner))
    assert b"c4nary" not in result.SerializeToString()


SPELLINGS = [
    b'{"text":{"\\u0024artifact":"%s"}}',
    b'{"text":{"$artif\\u0061ct":"%s"}}',
    b'{"text":{"\\u0024\\u0061rtifact":"%s"}}',
]


async def test_no_spelling_of_a_reference_passes_unseen_and_none_gets_at_another_s(harness: ArtifactsHarness) -> None:
    for raw in SPELLINGS:
        theirs = (await harness.write("alice", b"c4nary")).artifact_id
        asked = request(ECHO, args_json=raw % theirs.encode(), request_id="r")
        answer = await harness.running.stub.Invoke(asked, metadata=harness.by("bob").metadata, timeout=CALL_TIMEOUT_S)
        assert not answer.result.ok
        assert kind(answer.result) in ("NOT_FOUND", "INVALID_INPUT", "INPUT_SCHEMA_INVALID")
        assert b"c4nary" not in answer.SerializeToString()


HOSTILE_NAMES = [
    "../../audit.key",
    "..",
    "/etc/passwd",
    "a\0b",
    "",
    "*",
    "art_*",
    "x" * 10_000,
    {"$artifact": "x"},
    7,
    [],
]


async def test_hostile_names_in_references_are_refused_with_a_message(harness: ArtifactsHarness) -> None:
    for hostile in HOSTILE_NAMES:
        result = await harness.echo("alice", {"$artifact": hostile})
        assert kind(result) in ("NOT_FOUND", "INVALID_INPUT")
        assert str(harness.running.hub.settings.data_dir) not in str(result)
        assert len(result.error.message) < 2_000


@pytest.mark.promise("artifact.arguments-checked")
async def test_policy_checks_the_text_that_a_reference_brings_in(tmp_path: Path) -> None:
    rule = "rules:\n  - {id: no-evil, effect: DENY, tools: [test/text.echo], when: 'args.text.contains(\"evil\")'}\n"
    async with running_hub(tmp_path, policy=POLICY + rule, settings=BY_KEY, tools=[Echo()]) as running:
        harness = ArtifactsHarness(running)
        art = await harness.write("alice", b"an evil text")
        assert kind(await harness.echo("alice", refer(art))) == "POLICY_DENIED"
        job = await harness.by("alice").submit(ECHO, {"text": refer(art)})
        assert job.status.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED


# Headers and streams


HOSTILE_HEADERS: list[dict[str, Any]] = [
    {"media_type": "text/html\r\nset-cookie: a=b"},
    {"media_type": "text/plain;\x00"},
    {"media_type": "text/plain; a=\x1b[2J"},
    {"media_type": "ｔext/plain"},
    {"name": "a\r\nb"},
    {"name": "\u202egpj.exe"},
    {"name": "a\u200b.txt"},
    {"name": "con\x7f"},
    {"name": ".."},
    {"task_id": "a\nb"},
    {"sha256": "../../../../etc/passwd"},
    {"size_bytes": 2**63 - 1},
]


async def test_hostile_headers_are_refused_and_keep_nothing(harness: ArtifactsHarness) -> None:
    for header in HOSTILE_HEADERS:
        refused = await failed(harness.write("alice", b"x", **header))
        assert refused.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), refused
        assert harness.blobs == []


OUTSIDE: list[dict[str, int]] = [
    {"offset_bytes": -1},
    {"limit_bytes": -1},
    {"offset_bytes": 2**63 - 1},
    {"offset_bytes": 6},
]


async def test_reads_outside_of_an_artifact_are_refused(harness: ArtifactsHarness) -> None:
    for part in OUTSIDE:
        art = (await harness.write("alice", b"bytes")).artifact_id
        failure = await failed_stream(harness.read("alice", art, **part))
        assert failure.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
        huge = [piece.chunk async for piece in harness.read("alice", art, offset_bytes=1, limit_bytes=2**63 - 1)]
        assert b"".join(huge) == b"ytes"


async def test_uploads_that_never_end_hold_nothing_and_leave_nothing(harness: ArtifactsHarness) -> None:
    never = asyncio.Event()

    async def drip(first: pb.WriteArtifactRequest) -> AsyncIterator[pb.WriteArtifactRequest]:
        yield first
        yield pb.WriteArtifactRequest(chunk=b"x" * KIB)
        await never.wait()

    header = pb.WriteArtifactRequest(header=pb.ArtifactHeader())
    calls = [
        harness.stub.WriteArtifact(drip(header), metadata=harness.by("bob").metadata, timeout=CALL_TIMEOUT_S)
        for _ in range(30)
    ]
    for call in calls:
        await call.initial_metadata()
    art = await harness.write("alice", b"meanwhile")
    assert (await harness.get("alice", art.artifact_id)).artifact.size_bytes == 9
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    never.set()


# Quota


@pytest.mark.promise("artifact.bounded")
async def test_quota_holds_against_uploads_at_once_and_against_tiny_ones(harness: ArtifactsHarness) -> None:
    async def upload(size_bytes: int) -> int:
        try:
            await harness.write("bob", b"x" * size_bytes)
        except grpc.aio.AioRpcError as refused:
            return 0 if refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else 10**9
        return size_bytes + KIB

    assert sum(await asyncio.gather(*(upload(16 * KIB) for _ in range(20)))) <= LIMITS["quota_bytes"]
    assert sum(await asyncio.gather(*(upload(0) for _ in range(100)))) <= LIMITS["quota_bytes"]
    assert (await harness.write("alice", b"x")).size_bytes == 1, "a full quota is its owner's alone"


# On disk


async def test_links_and_devices_in_the_place_of_bytes_are_not_followed(
    harness: ArtifactsHarness, tmp_path: Path
) -> None:
    (outside := tmp_path / "outside").write_bytes(b"c4nary")
    art = await harness.write("alice", b"bytes!")
    (blob,) = harness.blobs
    blob.unlink()
    plants: tuple[Callable[[], Any], ...] = (
        lambda: blob.symlink_to(outside),
        blob.mkdir,
        lambda: blob.symlink_to("/dev/zero"),
    )
    for plant in plants:
        plant()
        failure = await failed_stream(harness.read("alice", art.artifact_id))
        assert str(tmp_path) not in failure.message
        assert b"c4nary" not in (await harness.echo("alice", refer(art))).SerializeToString()
        blob.rmdir() if blob.is_dir() and not blob.is_symlink() else blob.unlink()
    shard = blob.parent
    shard.rmdir()
    shard.symlink_to(tmp_path)
    assert (await failed_stream(harness.read("alice", art.artifact_id))).code is not grpc.StatusCode.OK
    assert (await failed(harness.write("alice", b"bytes!"))).code is not grpc.StatusCode.OK
    assert outside.read_bytes() == b"c4nary"


async def test_bytes_that_were_changed_on_disk_are_no_argument(harness: ArtifactsHarness) -> None:
    art = await harness.write("alice", b"bytes!")
    (blob,) = harness.blobs
    blob.write_bytes(b"c4nary")
    result = await harness.echo("alice", refer(art))
    assert kind(result) == "IO_ERROR"
    assert b"c4nary" not in result.SerializeToString()


async def test_folders_are_0700_and_files_0600(harness: ArtifactsHarness) -> None:
    await harness.write("alice", b"bytes")
    folder = Paths(harness.running.hub.settings).artifacts
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path
