"""Every tool of the reference servers and of LangChain's file toolkit: listed, called through a hub, answered right."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from tests.fakes import model_interfaces
from tests.fakes.http_server import RecordedRequest, response, serving
from tests.hub import RunningHub, request
from tests.rpc import real_servers as real
from toolhub.v1 import artifact_service_pb2 as artifacts_pb
from toolhub.v1 import error_pb2, result_pb2, tool_pb2
from toolhub.v1 import job_service_pb2 as jobs_pb
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.job_state_pb2 import JobState
from toolhub_service.domain.source import SourceState

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # LangChain's community package is not developed any more
]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NOISE = random.Random(7).randbytes(40_000)
"""Does not shrink, so that what is made of it is too large for a value."""

Fits = str | Callable[[Any], bool]
"""What is to be found in a result's value, or what it must be."""


@dataclass(frozen=True)
class Call:
    tool: str
    args: dict[str, Any]
    fits: Fits
    artifacts: tuple[bytes, ...] = ()
    """What the artifacts of the result hold."""


@dataclass
class RealServerHarness:
    hub: RunningHub
    home: Path
    url: str
    """Of a web server of this machine."""

    async def specs(self, source: str) -> dict[str, tool_pb2.ToolSpec]:
        """Each tool of a source that a caller is shown, by its full name."""
        listed = await self.hub.stub.ListTools(pb.ListToolsRequest(page_size=1_000))
        return {spec.name: spec for spec in listed.tools if spec.name.startswith(f"{source}/")}

    async def artifact(self, artifact_id: str) -> bytes:
        stub: Any = ArtifactServiceStub(self.hub.channel)
        parts = stub.ReadArtifact(artifacts_pb.ReadArtifactRequest(artifact_id=artifact_id), timeout=real.WITHIN_S)
        return b"".join([part.chunk async for part in parts])

    async def refused(self, tool: str, args: dict[str, Any]) -> error_pb2.ToolError:
        result = await self.hub.invoke(tool, args)
        assert not result.ok
        return result.error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealServerHarness]:
    home = tmp_path_factory.mktemp("real")
    for name in ("docs", "papers"):
        (home / name).mkdir()
    (home / "docs" / "dot.png").write_bytes(PNG)
    (home / "docs" / "noise.png").write_bytes(NOISE)
    sources = {
        "everything": real.everything(),
        "asking": real.everything(elicitation="defaults"),
        "files": real.files(home / "docs"),
        "memory": real.memory(home / "memory.jsonl"),
        "time": real.python_server("time"),
        "git": real.python_server("git", "--repository", str(real.repository(home / "repo"))),
        "fetch": real.fetch("--allow-private-ips"),
        "papers": real.papers(home / "papers", tools={"*": {"error_pattern": r"\AError: "}}),
    }
    async with serving(_pages) as web, real.sourced_hub(home, sources, settings=real.TRUSTED) as hub:
        yield RealServerHarness(hub, home, web.url(""))


async def _pages(asked: RecordedRequest, writer: Any) -> bool:
    pages = {
        "/robots.txt": (b"User-agent: *\nDisallow: /private\n", "text/plain"),
        "/page": (
            b"<html><body><article><h1>Tool hubs</h1><p>One governed door.</p></article></body></html>",
            "text/html",
        ),
    }
    body, media_type = pages.get(asked.target, (b"not here", "text/plain"))
    writer.write(response(body, status=200 if asked.target in pages else 404, content_type=media_type))
    return True


def everything_calls(_harness: RealServerHarness) -> list[Call]:
    zipped = {"data": f"data:application/octet-stream;base64,{base64.b64encode(NOISE).decode()}", "name": "noise.gz"}
    return [
        Call("echo", {"message": "hello"}, "Echo: hello"),
        Call("get-sum", {"a": 2, "b": 40}, "42"),
        Call("get-env", {}, "HOME"),
        Call("get-annotated-message", {"messageType": "success", "includeImage": True}, "image/png"),
        Call("get-resource-links", {"count": 2}, lambda value: _types(value) == ["resource_link", "resource_link"]),
        Call("get-resource-reference", {"resourceType": "Text"}, lambda value: _types(value) == ["resource"]),
        Call("get-resource-reference", {"resourceType": "Blob", "resourceId": 2}, "blob"),
        Call(
            "get-structured-content",
            {"location": "Chicago"},
            lambda value: value["conditions"] == "Light rain / drizzle",
        ),
        Call("get-tiny-image", {}, lambda value: _types(value) == ["image"]),
        Call("gzip-file-as-resource", {**zipped, "outputType": "resourceLink"}, "resource_link"),
        Call("gzip-file-as-resource", {**zipped, "outputType": "resource"}, "application/gzip", (NOISE,)),
        Call("toggle-simulated-logging", {}, "Started simulated"),
        Call("toggle-simulated-logging", {}, "Stopped simulated"),
        Call("toggle-subscriber-updates", {}, "Started"),
        Call("toggle-subscriber-updates", {}, "Stopped"),
        Call("trigger-long-running-operation", {"duration": 0.1, "steps": 2}, "Steps: 2"),
        Call("prompts.simple-prompt", {}, "simple prompt"),
        Call("prompts.args-prompt", {"city": "Paris"}, "Paris"),
        Call("prompts.completable-prompt", {"department": "Engineering", "name": "Alice"}, "Alice"),
        Call("prompts.resource-prompt", {"resourceType": "Text", "resourceId": "1"}, "demo://resource/dynamic/text/1"),
        Call("resources.list", {}, "demo://resource/dynamic/text/{resourceId}"),
        Call("resources.read", {"uri": "demo://resource/dynamic/text/1"}, "Resource 1"),
        Call("resources.subscribe", {"uri": "demo://resource/dynamic/text/1"}, lambda value: value["subscribed"]),
        Call(
            "completion.complete",
            {"prompt": "completable-prompt", "argument": "department", "value": "E"},
            lambda value: value["values"] == ["Engineering"],
        ),
    ]


def asking_calls(harness: RealServerHarness) -> list[Call]:
    """The same server offers more to a client that it may ask; what has no default is declined."""
    page = {"url": "https://example.com/", "message": "Open it", "elicitationId": "e-1"}
    return [
        *everything_calls(harness),
        Call("trigger-elicitation-request", {}, "declined"),
        Call("trigger-url-elicitation", page, "declined"),
    ]


def files_calls(harness: RealServerHarness) -> list[Call]:
    docs = harness.home / "docs"
    at = str(docs / "sub" / "a.txt")
    edits = [{"oldText": "two", "newText": "2"}]
    return [
        Call("list_allowed_directories", {}, str(docs)),
        Call("create_directory", {"path": str(docs / "sub")}, "created"),
        Call("write_file", {"path": at, "content": "one\ntwo\nthree\n"}, "wrote"),
        Call("read_text_file", {"path": at, "head": 1}, lambda value: value == {"content": "one"}),
        Call("read_file", {"path": at}, "three"),
        Call("read_multiple_files", {"paths": [at, str(docs / "none")]}, "three"),
        Call("edit_file", {"path": at, "edits": edits, "dryRun": True}, "-two"),
        Call("edit_file", {"path": at, "edits": edits}, "+2"),
        Call("get_file_info", {"path": at}, "size: 12"),
        Call("list_directory", {"path": str(docs)}, "[DIR] sub"),
        Call("list_directory_with_sizes", {"path": str(docs), "sortBy": "size"}, "noise.png"),
        Call("directory_tree", {"path": str(docs)}, "a.txt"),
        Call("search_files", {"path": str(docs), "pattern": "**/*.txt"}, "a.txt"),
        Call("move_file", {"source": at, "destination": str(docs / "b.txt")}, "moved"),
        Call("read_media_file", {"path": str(docs / "dot.png")}, base64.b64encode(PNG).decode(), (PNG,)),
        Call("read_media_file", {"path": str(docs / "noise.png")}, base64.b64encode(NOISE).decode(), (NOISE,)),
    ]


def memory_calls(_harness: RealServerHarness) -> list[Call]:
    ann = {"name": "Ann", "entityType": "person", "observations": ["reads"]}
    bob = {**ann, "name": "Bob", "observations": []}
    knows = {"from": "Ann", "to": "Bob", "relationType": "knows"}
    return [
        Call("create_entities", {"entities": [ann, bob]}, lambda value: value == {"entities": [ann, bob]}),
        Call("create_relations", {"relations": [knows]}, lambda value: value == {"relations": [knows]}),
        Call("add_observations", {"observations": [{"entityName": "Bob", "contents": ["writes"]}]}, "writes"),
        Call("read_graph", {}, lambda value: len(value["entities"]) == 2 and value["relations"] == [knows]),
        Call("search_nodes", {"query": "writes"}, lambda value: value["entities"][0]["name"] == "Bob"),
        Call("open_nodes", {"names": ["Ann"]}, lambda value: value["entities"] == [ann]),
        Call("delete_observations", {"deletions": [{"entityName": "Bob", "observations": ["writes"]}]}, "deleted"),
        Call("delete_relations", {"relations": [knows]}, "deleted"),
        Call("delete_entities", {"entityNames": ["Ann", "Bob"]}, "deleted"),
        Call("read_graph", {}, lambda value: value == {"entities": [], "relations": []}),
        Call("resources.list", {}, "memory://knowledge-graph"),
        Call("resources.read", {"uri": "memory://knowledge-graph"}, "entities"),
        Call("resources.subscribe", {"uri": "memory://knowledge-graph"}, lambda value: value["subscribed"]),
    ]


def time_calls(_harness: RealServerHarness) -> list[Call]:
    tokyo = {"source_timezone": "Etc/UTC", "time": "03:30", "target_timezone": "Asia/Tokyo"}
    return [
        Call("get_current_time", {"timezone": "UTC"}, lambda value: value["timezone"] == "UTC"),
        Call("convert_time", tokyo, lambda value: "T12:30" in value["target"]["datetime"]),
    ]


def git_calls(harness: RealServerHarness) -> list[Call]:
    def repo(**more: Any) -> dict[str, Any]:
        return {"repo_path": str(harness.home / "repo"), **more}

    (harness.home / "repo" / "a.txt").write_text("second\n")
    return [
        Call("git_status", repo(), "a.txt"),
        Call("git_diff_unstaged", repo(), "+second"),
        Call("git_add", repo(files=["a.txt"]), "staged successfully"),
        Call("git_diff_staged", repo(context_lines=1), "+second"),
        Call("git_reset", repo(), "reset"),
        Call("git_add", repo(files=["a.txt"]), "staged successfully"),
        Call("git_commit", repo(message="Go on"), "committed"),
        Call("git_log", repo(max_count=2), "Go on"),
        Call("git_show", repo(revision="HEAD"), "+second"),
        Call("git_create_branch", repo(branch_name="aside"), "aside"),
        Call("git_checkout", repo(branch_name="aside"), "Switched"),
        Call("git_branch", repo(branch_type="local"), "aside"),
        Call("git_diff", repo(target="HEAD~1"), "-first"),
    ]


def fetch_calls(harness: RealServerHarness) -> list[Call]:
    page = f"{harness.url}/page"
    return [
        Call("fetch", {"url": page}, "One governed door."),
        Call("fetch", {"url": page, "raw": True, "max_length": 20}, "<html>"),
        Call("prompts.fetch", {"url": page}, "One governed door."),
    ]


def papers_calls(_harness: RealServerHarness) -> list[Call]:
    return [
        Call("write_file", {"file_path": "a.txt", "text": "attention"}, "successfully"),
        Call("read_file", {"file_path": "a.txt"}, lambda value: value == {"text": "attention"}),
        Call("copy_file", {"source_path": "a.txt", "destination_path": "b.txt"}, "success"),
        Call("move_file", {"source_path": "b.txt", "destination_path": "c.txt"}, "success"),
        Call("file_search", {"pattern": "*.txt"}, "c.txt"),
        Call("list_directory", {}, "a.txt"),
        Call("file_delete", {"file_path": "c.txt"}, "success"),
    ]


@dataclass(frozen=True)
class Source:
    name: str
    server: str
    protocol: str
    calls: Callable[[RealServerHarness], list[Call]]
    elsewhere: frozenset[str] = field(default=frozenset())
    """Tools that a test of their own calls."""


SOURCES = [
    Source(
        "everything",
        "mcp-servers/everything",
        "2025-11-25",
        everything_calls,
        frozenset({"everything/simulate-research-query"}),
    ),
    Source(
        "asking",
        "mcp-servers/everything",
        "2025-11-25",
        asking_calls,
        frozenset({"asking/simulate-research-query"}),
    ),
    Source("files", "secure-filesystem-server", "2025-11-25", files_calls),
    Source("memory", "memory-server", "2025-11-25", memory_calls),
    Source("time", "mcp-time", "2026-07-28", time_calls),
    Source("git", "mcp-git", "2026-07-28", git_calls),
    Source("fetch", "mcp-fetch", "2026-07-28", fetch_calls),
    Source("papers", "langchain-core", "", papers_calls),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
async def test_every_tool_of_a_real_source_is_listed_and_works(harness: RealServerHarness, source: Source) -> None:
    specs = await harness.specs(source.name)
    assert all(spec.state == tool_pb2.TOOL_STATE_ACTIVE for spec in specs.values())
    called = set()
    for call in source.calls(harness):
        called.add(name := f"{source.name}/{call.tool}")
        result = await harness.hub.invoke(name, call.args)
        assert result.ok, (name, result.error.message)
        await _check(harness, call, result, specs[name])
        assert name in result.evidence[0].summary
    assert called | source.elsewhere == set(specs)
    status = next(each for each in harness.hub.hub.sourcing.sources.statuses() if each.name == source.name)
    assert (status.state, status.protocol, status.tool_count) == (SourceState.READY, source.protocol, len(specs))
    assert status.server.startswith(source.server)


async def _check(
    harness: RealServerHarness, call: Call, result: result_pb2.ToolResult, spec: tool_pb2.ToolSpec
) -> None:
    value = json.loads(result.result_json)
    fits = call.fits in real.shown(value) if isinstance(call.fits, str) else call.fits(value)
    assert fits, (call.tool, value)
    if spec.output_schema_json:
        jsonschema.validate(value, json.loads(spec.output_schema_json))
    kept = [await harness.artifact(artifact.artifact_id) for artifact in result.artifacts]
    assert [_unzipped(data) for data in kept] == list(call.artifacts)
    for artifact, data in zip(result.artifacts, kept, strict=True):
        assert artifact.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("form", ["OPENAI", "OPENAI_STRICT", "ANTHROPIC", "GEMINI"])
async def test_each_models_interface_accepts_the_export_of_every_real_tool(
    harness: RealServerHarness, form: str
) -> None:
    export = await harness.hub.stub.ExportTools(
        pb.ExportToolsRequest(format=pb.ExportFormat.Value(f"EXPORT_FORMAT_{form}"))
    )
    accepts = getattr(model_interfaces, form.lower())
    definitions = json.loads(export.tools_json)
    assert len(definitions) == export.total_size > 40
    assert [(each, complaints) for each in definitions if (complaints := accepts(each))] == []


async def test_an_error_that_a_tool_reports_is_reported_as_an_error(harness: RealServerHarness) -> None:
    outside = await harness.refused("files/read_text_file", {"path": "/etc/passwd"})
    missing = await harness.refused("git/git_show", {"repo_path": str(harness.home / "repo"), "revision": "nowhere"})
    nowhere = await harness.refused("time/get_current_time", {"timezone": "Mars/Olympus"})
    private = await harness.refused("fetch/fetch", {"url": f"{harness.url}/private"})
    escaped = await harness.refused("papers/read_file", {"file_path": "../memory.jsonl"})
    assert {error.kind for error in (outside, missing, nowhere, private)} == {error_pb2.ERROR_KIND_UPSTREAM_ERROR}
    assert escaped.kind == error_pb2.ERROR_KIND_EXECUTION_ERROR
    for error, words in (
        (outside, "Access denied"),
        (nowhere, "Mars"),
        (private, "robots"),
        (escaped, "Access denied"),
    ):
        assert words in error.message, error.message


async def test_arguments_are_checked_before_a_server_sees_them(harness: RealServerHarness) -> None:
    for tool, args in (
        ("everything/get-sum", {"a": "one", "b": 2}),
        ("everything/get-structured-content", {"location": "Paris"}),
        ("files/write_file", {"path": "x"}),
        ("papers/read_file", {"file_path": "a.txt", "root_dir": "/"}),
    ):
        assert (await harness.refused(tool, args)).kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID


async def test_progress_is_seen_on_a_stream(harness: RealServerHarness) -> None:
    asked = request(
        "everything/trigger-long-running-operation", {"duration": 0.4, "steps": 4}, message=pb.InvokeStreamRequest
    )
    messages = [message async for message in harness.hub.stub.InvokeStream(asked, timeout=real.WITHIN_S)]
    assert [message.WhichOneof("event") for message in messages[-1:]] == ["result"]
    assert messages[-1].result.ok
    steps = [(each.progress.step, each.progress.total) for each in messages if each.WhichOneof("event") == "progress"]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


async def test_progress_is_seen_on_a_job(harness: RealServerHarness) -> None:
    job = await harness.hub.submit("everything/trigger-long-running-operation", {"duration": 1.0, "steps": 2})
    statuses = await harness.hub.watched(job.job_id)
    assert JobState.Name(statuses[-1].state) == "JOB_STATE_SUCCEEDED"
    assert statuses[-1].result.ok
    assert {1, 2} & {status.progress.step for status in statuses}


async def test_task_of_a_server_is_a_job(harness: RealServerHarness) -> None:
    """And the job of another task is cancelled: its server is notified."""
    answer = await harness.hub.invoke("everything/simulate-research-query", {"topic": "tool hubs"})
    other = await harness.hub.invoke("everything/simulate-research-query", {"topic": "nothing"})
    assert answer.job.job_id
    watching = asyncio.create_task(harness.hub.watched(answer.job.job_id))
    await _until(harness, other.job.job_id, "Gathering")
    await harness.hub.jobs.CancelJob(jobs_pb.CancelJobRequest(job_id=other.job.job_id))
    last = (await harness.hub.watched(other.job.job_id))[-1]
    assert JobState.Name(last.state) == "JOB_STATE_CANCELLED"
    statuses = await watching
    assert JobState.Name(statuses[-1].state) == "JOB_STATE_SUCCEEDED"
    assert "tool hubs" in statuses[-1].result.result_json.decode()
    stages = " ".join(status.progress.message for status in statuses)
    assert "Gathering sources" in stages
    assert "Synthesizing findings" in stages


async def _until(harness: RealServerHarness, job_id: str, words: str) -> None:
    async for answer in harness.hub.jobs.WatchJob(jobs_pb.WatchJobRequest(job_id=job_id), timeout=real.WITHIN_S):
        if words in answer.status.progress.message:
            return
    raise AssertionError(f"it ended before it said {words}")


def _types(value: Any) -> list[str]:
    """Kinds of the blocks that are no plain text, in their order."""
    return [block["type"] for block in value["content"] if block["type"] != "text"]


def _unzipped(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
