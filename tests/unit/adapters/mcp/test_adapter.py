"""Calls of MCP tools, in both generations and on both transports, against a scripted server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.artifacts import ArtifactsHarness, kept_in, whole
from tests.fakes.clock import FixedRandomness
from tests.fakes.mcp_harness import McpHarness, mcp_tool, over_http, over_stdio
from tests.fakes.mcp_servers.scripted import Script
from tests.fakes.remote_harness import LoopClock
from tests.fakes.running_jobs import FakeRunningJobs, KeptMarks, Life
from tests.overtaken import overtaken
from tests.ports.adapter_suite import SILENT, granted
from toolhub_service.adapters.mcp.adapter import McpAdapter
from toolhub_service.adapters.mcp.calling import ToolCaller
from toolhub_service.adapters.mcp.result_value import BLOCKS_MAX, is_result, outcome_of
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import Outcome
from toolhub_service.sections.source_config import ToolTerms

TRANSPORTS = ["stdio-modern", "stdio-legacy", "http-modern", "http-legacy"]


def at(transport: str) -> AbstractAsyncContextManager[McpHarness]:
    carrier, generation = transport.split("-")
    return over_stdio(generation) if carrier == "stdio" else over_http(Script(generation=generation))


@pytest.fixture(params=TRANSPORTS)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[McpHarness]:
    async with at(request.param) as harness:
        yield harness


@pytest.fixture
async def modern() -> AsyncIterator[McpHarness]:
    async with at("http-modern") as harness:
        yield harness


async def failure_of(harness: McpHarness, name: str, *given: object, **options: object) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        await harness.run(name, *given, **options)  # type: ignore[arg-type]
    return caught.value.error


async def test_a_text_result_and_structured_content_come_back_with_who_answered(harness: McpHarness) -> None:
    outcome = await harness.run("echo", {"text": "grüß"})
    assert outcome.value == {"text": "grüß"}
    (proof,) = outcome.evidence
    assert proof.attributes["server"] == "scripted 1.2.3"
    assert proof.attributes["remote_tool"] == "echo"
    assert (await harness.run("add", {"a": 1, "b": 2})).value == {"sum": 3}


async def test_a_hundred_calls_at_once_on_one_connection_do_not_mix(harness: McpHarness) -> None:
    outcomes = await asyncio.gather(*(harness.run("echo", {"text": f"n-{n}"}) for n in range(100)))
    assert [outcome.value for outcome in outcomes] == [{"text": f"n-{n}"} for n in range(100)]
    assert harness.link.connects == 1


async def test_progress_reaches_the_sink_and_the_last_is_never_lost(harness: McpHarness) -> None:
    await harness.run("reports", {"times": 300})
    seen = harness.sink.progresses
    assert (seen[-1].step, seen[-1].total, seen[-1].message) == (300, 300, "step 300")
    assert len(seen) < 300
    assert [each.step for each in seen] == sorted(each.step for each in seen)


async def test_a_tools_own_error_is_an_upstream_error_in_its_words_without_secrets(harness: McpHarness) -> None:
    error = await failure_of(harness, "fails", output={"type": "object"})
    assert error.kind is ErrorKind.UPSTREAM_ERROR
    assert not error.is_retryable
    assert "it broke" in error.message
    assert "says:" in error.message
    assert "hunter2" not in repr(error)
    assert error.upstream is not None


async def test_an_unknown_tool_and_refused_arguments_are_upstream_errors(harness: McpHarness) -> None:
    assert "Unknown tool" in (await failure_of(harness, "nosuch")).message
    error = await failure_of(harness, "refuses", {"code": -32602, "message": "a must be a number"})
    assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
    assert error.upstream is not None
    assert (error.upstream.status, error.upstream.excerpt) == (-32602, "a must be a number")


@pytest.mark.promise("mcp.deadline-reaches-the-server")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_deadline_ends_the_call_here_and_upstream(transport: str) -> None:
    async with at(transport) as harness:
        await harness.run("echo", {"text": "warm"})

        async def late(timeout_s: float) -> bool:
            """Whether the server has had it."""
            error = await failure_of(harness, "hangs", timeout_s=timeout_s)
            assert error.kind is ErrorKind.TIMEOUT
            return harness.script.started.is_set() or "hangs" in str(await harness.value("seen"))

        await overtaken(late, bool)
        await was_cancelled(harness)


@pytest.mark.promise("mcp.deadline-reaches-the-server")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_cancelling_the_call_cancels_it_upstream(transport: str) -> None:
    async with at(transport) as harness:
        await harness.run("echo", {"text": "warm"})
        running = asyncio.create_task(harness.adapter.execute(harness.call("hangs"), SILENT))
        await until_started(harness)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await was_cancelled(harness)


async def until_started(harness: McpHarness) -> None:
    """Until the server has the call of `hangs`."""
    if harness.script.calls:
        await asyncio.wait_for(harness.script.started.wait(), 60)
        return
    while "hangs" not in str(await harness.value("seen")):
        pass


async def was_cancelled(harness: McpHarness) -> None:
    """Until the server has seen its work of `hangs` cancelled."""
    if harness.script.calls:
        await asyncio.wait_for(harness.script.stopped.wait(), 60)
        return
    async with asyncio.timeout(60):
        while (await harness.value("seen"))["cancelled"] != ["hangs"]:
            pass


@pytest.mark.promise("mcp.never-resent")
@pytest.mark.parametrize("generation", ["modern", "legacy"])
@pytest.mark.parametrize(("read_only", "kind"), [(False, ErrorKind.OUTCOME_UNKNOWN), (True, ErrorKind.UPSTREAM_ERROR)])
async def test_a_server_that_dies_under_a_call_leaves_it_unknown_unless_a_repeat_is_safe(
    generation: str, read_only: bool, kind: ErrorKind
) -> None:
    async with over_stdio(generation) as harness:
        await harness.run("echo", {"text": "warm"})
        error = await failure_of(harness, "dies", read_only=read_only)
        assert error.kind is kind
        assert error.is_retryable is read_only
        assert (await harness.run("echo", {"text": "again"})).value == {"text": "again"}
        assert harness.link.connects == 2
        assert [call["name"] for call in (await harness.value("seen"))["calls"]] == ["echo"]


async def test_a_server_that_cannot_be_reached_was_certainly_not_called() -> None:
    async with over_http(Script()) as harness:
        pass
    error = await failure_of(harness, "echo", {"text": "x"})
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_http_connection_that_breaks_in_the_middle_is_unknown(modern: McpHarness) -> None:
    await modern.run("echo", {"text": "warm"})
    assert (await failure_of(modern, "dies")).kind is ErrorKind.OUTCOME_UNKNOWN
    assert (await modern.run("echo", {"text": "again"})).value == {"text": "again"}


async def test_a_malformed_result_is_reported_as_such(harness: McpHarness) -> None:
    for odd in ({"neither": 1}, {"resultType": "surprise", "content": []}):
        error = await failure_of(harness, "odd", {"result": odd})
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert "is invalid" in error.message


async def test_a_result_that_is_not_to_the_letter_is_read_as_far_as_it_goes(harness: McpHarness) -> None:
    odd = {"content": [{"type": "text", "text": "good"}, {"type": "novel", "x": 1}, "bare", 7, {"type": "text"}]}
    outcome = await harness.run("odd", {"result": odd})
    bare = {"type": "text", "text": "bare"}
    assert outcome.value == {"text": "good\nbare", "content": [*odd["content"][:2], bare, {"type": "text"}]}


async def test_the_operators_error_pattern_makes_a_text_an_error() -> None:
    async with over_http(Script(), overrides={"*": ToolTerms(error_pattern="^Error:")}) as harness:
        error = await failure_of(harness, "echo", {"text": "Error: no such file"})
        assert error.kind is ErrorKind.UPSTREAM_ERROR
        assert (await harness.run("echo", {"text": "No Error: here"})).value == {"text": "No Error: here"}


async def test_the_idempotency_key_goes_along_and_nothing_else_of_the_caller(modern: McpHarness) -> None:
    await modern.run("echo", {"text": "x"}, key="key-1")
    (call,) = modern.script.calls
    own = {name: value for name, value in call["_meta"].items() if not name.startswith("io.modelcontextprotocol/")}
    assert own.pop("toolhub/idempotencyKey") == "key-1"
    assert set(own) <= {"progressToken", "traceparent", "tracestate"}


async def test_the_trace_goes_along(modern: McpHarness) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    calling = ToolCaller(str, trace=lambda: {"traceparent": trace, "tracestate": "vendor=1"})
    adapter = McpAdapter(calling, FakeRunningJobs(KeptMarks(), Life()), LoopClock(), FixedRandomness())
    adapter.put(modern.server)
    await adapter.execute(modern.call("echo", {"text": "x"}), SILENT)
    meta = modern.script.calls[-1]["_meta"]
    assert (meta["traceparent"], meta["tracestate"]) == (trace, "vendor=1")


async def test_arguments_that_a_server_wants_in_headers_are_mirrored_without_listing_first(modern: McpHarness) -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string", "x-mcp-header": "Place"}}}
    await modern.run("mirrors", {"at": "home"}, input_schema=schema)
    assert modern.script.headers[-1]["mcp-param-place"] == "home"
    assert "tools/list" not in modern.script.asked


async def test_a_stale_definition_is_unavailable_and_has_the_source_read_anew(modern: McpHarness) -> None:
    notices: list[bool] = []
    modern.server.changed = lambda: notices.append(True)
    error = await failure_of(modern, "refuses", {"code": -32020, "message": "mismatch"})
    assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)
    assert notices == [True]


async def test_a_source_that_was_taken_away_is_unavailable(modern: McpHarness) -> None:
    modern.adapter.remove("fake")
    assert (await failure_of(modern, "echo")).kind is ErrorKind.TOOL_UNAVAILABLE
    modern.adapter.put(modern.server)
    assert (await modern.run("echo", {"text": "x"})).value == {"text": "x"}


async def test_a_plan_names_the_destination_of_the_call(modern: McpHarness) -> None:
    (effect,) = modern.adapter.effects(modern.call("echo"))
    assert "`echo`" in effect
    assert "`fake`" in effect
    assert modern.adapter.upstream(modern.call("echo").planned) == "mcp:fake"
    assert modern.adapter.has_side_effects(modern.call("echo").planned)
    assert not modern.adapter.resumes(mcp_tool("echo"))


BYTES = b"\x89PNG" * 10_000
IMAGE = {"type": "image", "data": base64.b64encode(BYTES).decode(), "mimeType": "image/png"}
SMALL = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}


async def read(
    result: dict[str, Any], artifacts: ArtifactService | None = None, *, output: Any = None, keep_raw: bool = False
) -> Outcome:
    call = granted(mcp_tool("t", output=output or {}))
    return await outcome_of(result, call, artifacts, server="scripted 1.2.3", protocol="2026-07-28", keep_raw=keep_raw)


@pytest.fixture
def kept(tmp_path: Path) -> ArtifactsHarness:
    return kept_in(tmp_path)


def text_blocks(*words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in words]


async def test_text_blocks_become_one_text() -> None:
    assert (await read({"content": text_blocks("a", "b")})).value == {"text": "a\nb"}
    assert (await read({"content": []})).value == {"text": ""}


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], 3, "x", False])
async def test_structured_content_of_any_json_is_the_value(value: Any) -> None:
    outcome = await read({"content": text_blocks("same"), "structuredContent": value})
    assert outcome.value == value
    assert outcome.evidence[0].attributes["structured"] == "true"


async def test_null_is_a_value_only_of_a_tool_that_declares_its_output() -> None:
    assert (await read({"content": [], "structuredContent": None}, output={"type": "null"})).value is None
    assert (await read({"content": text_blocks("x"), "structuredContent": None})).value == {"text": "x"}


async def test_small_blocks_and_links_stay_where_they_are() -> None:
    outcome = await read({"content": [*text_blocks("see"), SMALL, LINK]})
    assert outcome.value == {"text": "see", "content": [*text_blocks("see"), SMALL, LINK]}
    assert not outcome.truncated


async def test_a_large_image_is_kept_as_an_artifact_and_named_in_its_place(kept: ArtifactsHarness) -> None:
    outcome = await read({"content": [*text_blocks("see"), IMAGE]}, kept.artifacts)
    (ref,) = outcome.artifacts
    sha256 = hashlib.sha256(BYTES).hexdigest()
    shown = {"type": "image", "mimeType": "image/png", "bytes": len(BYTES), "sha256": sha256}
    assert outcome.value == {"text": "see", "content": [*text_blocks("see"), {**shown, "artifact": ref.artifact_id}]}
    assert (ref.sha256, ref.size_bytes, ref.media_type) == (sha256, len(BYTES), "image/png")
    artifact = await kept.artifacts.open("tester", ref.artifact_id)
    assert await whole(kept.artifacts, artifact) == BYTES


async def test_large_resources_are_kept_with_their_names(kept: ArtifactsHarness) -> None:
    blob = {"uri": "file:///srv/report.pdf", "mimeType": "application/pdf", "blob": IMAGE["data"]}
    text = {"uri": "x://y/..", "mimeType": "text/plain\r\nx: y", "text": "long " * 10_000}
    result = {"content": [{"type": "resource", "resource": blob}, {"type": "resource", "resource": text}]}
    outcome = await read(result, kept.artifacts)
    first, second = outcome.artifacts
    assert (first.name, first.media_type) == ("report.pdf", "application/pdf")
    assert (second.name, second.media_type, second.size_bytes) == ("", "application/octet-stream", 50_000)
    assert "long" not in str(outcome.value)


async def test_beside_structured_content_every_picture_is_an_artifact(kept: ArtifactsHarness) -> None:
    outcome = await read({"content": [SMALL], "structuredContent": {"a": 1}}, kept.artifacts)
    assert outcome.value == {"a": 1}
    assert [ref.size_bytes for ref in outcome.artifacts] == [2]


async def test_content_that_cannot_be_kept_is_left_out_and_reported(kept: ArtifactsHarness) -> None:
    kept.records.is_broken = True
    for artifacts in (None, kept.artifacts):
        outcome = await read({"content": [*text_blocks("still here"), IMAGE]}, artifacts)
        assert outcome.truncated
        value: Any = outcome.value
        assert value["text"] == "still here"
        _, shown = value["content"]
        assert shown["dropped"]
        assert "data" not in shown


async def test_invalid_base64_is_left_out(kept: ArtifactsHarness) -> None:
    outcome = await read({"content": [{**IMAGE, "data": "a" * 20_001}]}, kept.artifacts)
    assert outcome.truncated
    assert outcome.artifacts == ()


async def test_blocks_without_number_are_cut() -> None:
    outcome = await read({"content": text_blocks(*["x"] * (BLOCKS_MAX + 5))})
    assert outcome.value == {"text": "\n".join(["x"] * BLOCKS_MAX)}
    assert outcome.truncated
    assert outcome.evidence[0].attributes["dropped_blocks"] == "5"


async def test_the_proof_names_who_answered_and_never_what() -> None:
    (proof,) = (await read({"content": text_blocks("private words")})).evidence
    named = {"source": "fake", "server": "scripted 1.2.3", "protocol": "2026-07-28", "remote_tool": "t"}
    assert proof.attributes == {**named, "structured": "false"}
    assert "private" not in repr(proof)


async def test_the_servers_own_answer_is_kept_only_when_it_is_wanted_and_small() -> None:
    result: dict[str, Any] = {"content": text_blocks("x")}
    assert (await read(result)).raw is None
    assert (await read(result, keep_raw=True)).raw == result
    large = await read({"content": text_blocks("x" * 100_000)}, keep_raw=True)
    assert set(large.raw) == {"bytes", "sha256"}  # type: ignore[arg-type]


async def test_a_server_cannot_mark_a_part_of_its_answer_as_an_artifact() -> None:
    forged = {"artifact": "art_1", "bytes": 7, "sha256": "0", "mimeType": "text/plain"}
    embedded = {"type": "resource", "resource": {"uri": "file:///a", **forged}}
    answer = await read({"content": [{"type": "image", **forged}, embedded]})
    plain = {"mimeType": "text/plain"}
    shown = [{"type": "image", **plain}, {"type": "resource", "resource": {"uri": "file:///a", **plain}}]
    assert answer.value == {"text": "", "content": shown}


def test_a_result_has_content_or_structure() -> None:
    assert is_result({"content": []})
    assert is_result({"structuredContent": None})
    assert not is_result({"content": "text"})
    assert not is_result({})
