"""Artifacts of a whole hub: results over their limit, files that are cut, references in arguments, who sees what."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import grpc
import pytest
from msgspec import Meta

from tests.fakes.keyed_hub import KeyedHub, keyed_hub, kind
from tests.hub import CALL_TIMEOUT_S, OPEN_POLICY, RunningHub, running_hub
from tests.rpc.artifact_server import messages
from tests.rpc.statuses import failed, failed_stream
from toolhub.v1 import artifact_pb2, error_pb2, result_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.domain.tool import Annotations, ToolLimits
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

CAP = 2_000
CANARY = f"ghp_{secrets.token_hex(18)}"
"""Of a shape that every sink hides."""


class RepeatIn(ToolInput, frozen=True):
    text: str
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class RepeatOut(ToolOutput, frozen=True):
    text: str
    token: str = ""


class Repeat(Tool[RepeatIn, RepeatOut]):
    name = "test/text.repeat"
    description = "Return the text several times."
    annotations = Annotations(read_only=True)
    limits = ToolLimits(max_result_bytes=CAP)
    In, Out = RepeatIn, RepeatOut

    async def run(self, args: RepeatIn, context: ToolContext) -> RepeatOut:
        return RepeatOut(text=args.text * args.times, token=CANARY)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    settings = {"artifacts": {"max_bytes": 5_000_000, "quota_bytes": 12_000_000, "argument_max_bytes": 100_000}}
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings, tools=[Repeat()]) as running:
        yield running


async def uploaded(hub: RunningHub, *chunks: bytes, metadata: Any = (), **header: Any) -> artifact_pb2.Artifact:
    stub: Any = ArtifactServiceStub(hub.channel)
    call = stub.WriteArtifact(messages(chunks, **header), timeout=CALL_TIMEOUT_S, metadata=metadata)
    return (await call).artifact  # type: ignore[no-any-return]


async def read(hub: RunningHub, artifact_id: str, metadata: Any = ()) -> bytes:
    stub: Any = ArtifactServiceStub(hub.channel)
    request = pb.ReadArtifactRequest(artifact_id=artifact_id)
    reading = stub.ReadArtifact(request, timeout=CALL_TIMEOUT_S, metadata=metadata)
    return b"".join([response.chunk async for response in reading])


def error_kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")


@pytest.mark.promise("artifact.whole-kept")
async def test_result_over_its_limit_arrives_cut_and_marked_with_the_artifact_of_the_whole(hub: RunningHub) -> None:
    result = await hub.invoke("test/text.repeat", {"text": "ü", "times": 50_000}, task_id="task-1")
    (ref,) = result.artifacts
    assert result.ok
    assert result.truncated
    assert len(result.result_json) <= CAP
    assert "characters left out" in json.loads(result.result_json)["text"]
    whole = await read(hub, ref.artifact_id)
    assert json.loads(whole)["text"] == "ü" * 50_000
    assert (ref.size_bytes, ref.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (ref.media_type, ref.name) == ("application/json", "result.json")
    evidence = result.evidence[-1]
    assert (evidence.sha256, ref.artifact_id in evidence.summary) == (ref.sha256, True)


async def test_result_within_its_limit_makes_no_artifact(hub: RunningHub) -> None:
    result = await hub.invoke("test/text.repeat", {"text": "x"})
    assert (result.truncated, len(result.artifacts)) == (False, 0)


async def test_a_result_too_large_to_keep_is_cut_and_marked(hub: RunningHub) -> None:
    result = await hub.invoke("test/text.repeat", {"text": "xxxxxx", "times": 1_000_000})
    assert (result.ok, result.truncated, len(result.artifacts)) == (True, True, 0)
    assert result.evidence[-1].summary == "the whole result could not be kept as an artifact: FILE_TOO_LARGE"


async def test_file_beyond_max_bytes_is_cut_and_kept_whole(hub: RunningHub) -> None:
    text = "a line\n" * 100_000
    await hub.invoke("core/fs.writeText", {"path": "big.txt", "text": text}, request_id="r1")
    result = await hub.invoke("core/fs.readText", {"path": "big.txt", "maxBytes": 1024}, request_id="r1")
    (ref,) = result.artifacts
    assert ref.name == "big.txt"
    assert await read(hub, ref.artifact_id) == text.encode()


async def test_artifact_in_the_arguments_is_the_text_and_the_audit_log_has_its_digest(hub: RunningHub) -> None:
    text = "what was uploaded " * 1_000
    artifact = await uploaded(hub, text.encode())
    args = {"path": "a.txt", "text": {"$artifact": artifact.artifact_id}}
    written = await hub.invoke("core/fs.writeText", args, request_id="r1")
    assert written.ok, written.error.message
    assert (await hub.value("core/fs.readText", {"path": "a.txt"}, request_id="r1"))["text"] == text
    (asked,) = [event.event for event in await hub.events(call_id=written.call_id) if event.event.args_summary]
    shown = json.loads(asked.args_summary)
    assert shown["text"] == {
        "$artifact": artifact.artifact_id,
        "sha256": artifact.sha256,
        "size_bytes": artifact.size_bytes,
    }
    assert "what was uploaded" not in asked.args_summary


@pytest.mark.promise("artifact.arguments-checked")
async def test_same_text_inline_and_by_reference_is_the_same_call(hub: RunningHub) -> None:
    artifact = await uploaded(hub, b"the text")
    inline = await hub.invoke("test/text.repeat", {"text": "the text"})
    referred = await hub.invoke("test/text.repeat", {"text": {"$artifact": artifact.artifact_id}})
    assert inline.result_json == referred.result_json
    digests = {
        event.event.args_digest
        for result in (inline, referred)
        for event in await hub.events(call_id=result.call_id)
        if event.event.args_digest
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"$artifact": "art_" + "0" * 32}, "NOT_FOUND"),
        ({"$artifact": "art_1", "more": 1}, "INVALID_INPUT"),
        ({"$artifact": 7}, "INVALID_INPUT"),
        ({"\\u0024artifact": "art_1"}, "INPUT_SCHEMA_INVALID"),
    ],
)
@pytest.mark.promise("artifact.arguments-checked")
async def test_reference_that_cannot_be_resolved_is_refused_before_the_tool(
    hub: RunningHub, reference: Any, expected: str
) -> None:
    result = await hub.invoke("test/text.repeat", {"text": reference})
    assert error_kind(result) == expected
    assert result.attempts == 0


async def test_escaped_spelling_is_a_reference_anyway(hub: RunningHub) -> None:
    artifact = await uploaded(hub, b"spelt")
    raw = f'{{"text": {{"\\u0024artifact": "{artifact.artifact_id}"}}}}'.encode()
    assert (await hub.value("test/text.repeat", args_json=raw))["text"] == "spelt"
    as_struct = await hub.invoke("test/text.repeat", args_struct={"text": {"$artifact": artifact.artifact_id}})
    assert as_struct.result_struct["text"] == "spelt"


async def test_content_that_is_no_text_or_too_much_is_refused(hub: RunningHub) -> None:
    for data in (b"\xff\xfe", b"x" * 100_001):
        artifact = await uploaded(hub, data)
        result = await hub.invoke("test/text.repeat", {"text": {"$artifact": artifact.artifact_id}})
        assert error_kind(result) == "INVALID_INPUT"


async def test_secret_in_a_result_is_its_owners_alone_cut_or_whole(hub: RunningHub, tmp_path: Path) -> None:
    """The value of an answer is given as the tool gave it; whatever else leaves the hub never shows it."""
    result = await hub.invoke("test/text.repeat", {"text": "x", "times": 50_000})
    (ref,) = result.artifacts
    assert json.loads(await read(hub, ref.artifact_id))["token"] == CANARY
    result.ClearField("result_json")
    assert CANARY not in str(result)
    assert CANARY not in str(await hub.events())
    beneath = [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]
    with_canary = [path for path in beneath if CANARY.encode() in path.read_bytes()]
    assert [path.parent.name + path.name for path in with_canary] == [ref.sha256]
    assert with_canary[0].stat().st_mode & 0o077 == 0


async def test_artifacts_survive_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        artifact = await uploaded(hub, b"lasting", name="lasting.txt")
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert await read(hub, artifact.artifact_id) == b"lasting"


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedHub]:
    async with keyed_hub(tmp_path) as people:
        yield people


@pytest.mark.promise("artifact.owned")
async def test_foreign_artifact_is_not_found_by_any_way_and_an_auditor_reads_it(keyed: KeyedHub) -> None:
    bobs = await uploaded(keyed.hub, b"bob's", metadata=keyed.of("bob"))
    assert bobs.principal == "bob"
    alices = await uploaded(keyed.hub, b"alice's", metadata=keyed.of("alice"))
    assert await read(keyed.hub, bobs.artifact_id, keyed.of("alice")) == b"bob's"  # alice audits
    stub: Any = ArtifactServiceStub(keyed.hub.channel)
    get = pb.GetArtifactRequest(artifact_id=alices.artifact_id)
    failure = await failed(stub.GetArtifact(get, timeout=CALL_TIMEOUT_S, metadata=keyed.of("bob")))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    reading = stub.ReadArtifact(
        pb.ReadArtifactRequest(artifact_id=alices.artifact_id), timeout=CALL_TIMEOUT_S, metadata=keyed.of("bob")
    )
    assert (await failed_stream(reading)).code is grpc.StatusCode.NOT_FOUND
    args = {"text": {"$artifact": alices.artifact_id}}
    assert kind(await keyed.invoke("bob", "core/util.hash.sha256Text", args)) == "NOT_FOUND"


@pytest.mark.promise("artifact.owned")
async def test_auditor_reads_but_does_not_pass_off_what_others_own_as_an_argument(keyed: KeyedHub) -> None:
    bobs = await uploaded(keyed.hub, b"bob's", metadata=keyed.of("bob"))
    args = {"text": {"$artifact": bobs.artifact_id}}
    assert kind(await keyed.invoke("alice", "core/util.hash.sha256Text", args)) == "NOT_FOUND"


async def test_a_caller_without_the_role_is_refused_before_anything_is_looked_up(keyed: KeyedHub) -> None:
    stub: Any = ArtifactServiceStub(keyed.hub.channel)
    call = stub.GetArtifact(pb.GetArtifactRequest(artifact_id="art_1"), metadata=keyed.of("ops"))
    assert (await failed(call)).reason == "ROLE_MISSING"
