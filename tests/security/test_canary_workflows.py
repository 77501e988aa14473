"""Canaries stand wherever a source of workflows may hold a secret, its server repeats them wherever it can speak, and
nothing that leaves the hub holds one: not even results, for a workflow hands its request on as a matter of course.

Doors: n8n's api_key, headers and URL, ComfyUI's headers and URL, by reference and plain. Mouths: lists of workflows,
answers, failures, executions, descriptions of nodes, refusals, histories, texts, pictures. Exits: logs, spans, metrics,
audit files, every file of the data folder, statuses, snapshots, lists, searches, exports, pins, jobs, and what
`sources show`, `workflows check` and `doctor` print.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.fakes.http_server import RecordedRequest, response, serving
from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.security.test_canary_sources import canary, named
from tests.security.test_canary_wire import HubOutput, hub_output
from toolhub.v1 import artifact_service_pb2, job_service_pb2, registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.cli.root import toolhub

__all__ = ["hub_output"]
POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["*", "n8n:*", "comfyui:*"]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
_SETTINGS = {
    "logs": {"level": "debug", "calls": True},
    "tracing": {"otlp_endpoint": "http://127.0.0.1:9"},
    "results": {"show_raw": True},
    "stores": {"kind": "sqlite"},
}
Respond = Callable[[str, RecordedRequest, str], Any]
"""(method and path below the base, request, all that it was sent) to status and value."""


@asynccontextmanager
async def repeating(respond: Respond, *more: str) -> AsyncIterator[str]:
    """A server that knows what it was sent, and `more`; its URL."""

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        headers = [value for name, value in asked.headers.items() if name not in ("host", "content-length")]
        answer = respond(f"{asked.method} {asked.target}", asked, " ".join([*headers, *more]))
        if isinstance(answer, bytes):
            writer.write(response(answer))
        else:
            status, value = answer
            writer.write(response(json.dumps(value).encode(), status=status))
        await writer.drain()
        return False

    async with serving(answer) as raw:
        yield raw.url("").rstrip("/")


def n8n_response(place: str, asked: RecordedRequest, echoed: str) -> Any:
    if found := re.search(r"/api/v1/workflows(?:/(\w+))?(?:$|\?)", place):
        rows = [_row(name, echoed) for name in ("say", "boom", "late")]
        return 200, next((row for row in rows if row["id"] == found[1]), {"data": rows, "nextCursor": None})
    if "/api/v1/executions/" in place:
        trouble = {"message": f"it knows {echoed}", "stack": echoed, "node": {"name": f"at {echoed}"}}
        data = {"resultData": {"error": trouble, "lastNodeExecuted": echoed, "runData": {echoed: []}}}
        return 200, {"id": "7", "status": "error", "workflowId": "late", "waitTill": echoed, "data": data}
    if "/api/" in place:
        return 500, {"message": echoed, "hint": echoed}
    if place.endswith("/boom"):
        return 500, {"message": f"boom {echoed}", "stacktrace": echoed}
    return 200, {"executionId": "7", "said": echoed, echoed: [echoed]} if place.endswith("/late") else {"said": echoed}


def _row(name: str, echoed: str) -> dict[str, Any]:
    mode = "responseNode" if name == "late" else "lastNode"
    webhook = {"httpMethod": "POST", "path": name, "responseMode": mode, "authentication": echoed}
    respond = {"responseBody": "={{ $execution.id }}"}
    nodes = [
        {"type": "n8n-nodes-base.webhook", "name": "Webhook", "parameters": webhook, "notes": echoed},
        {"type": "n8n-nodes-base.respondToWebhook", "name": "Respond", "parameters": respond},
    ]
    wires = {"Respond": {"main": [[{"node": "Later"}]]}}
    more = {"description": f"Says {echoed}", "tags": [{"name": echoed}], "connections": wires}
    return {"id": name, "name": name, "active": True, "nodes": nodes, **more}


def comfy_response(place: str, asked: RecordedRequest, echoed: str) -> Any:
    if "/system_stats" in place:
        return 200, {"system": {"comfyui_version": echoed}, "devices": [{"name": echoed}]}
    if found := re.search(r"/object_info/(\w+)", place):
        terms = {"required": {"text": ["STRING", {"tooltip": echoed}]}}
        return 200, {found[1]: {"input": terms, "output": [], "output_node": True, "description": echoed}}
    if place.startswith("POST") and place.endswith("/prompt"):
        return _submitted(json.loads(asked.body), echoed)
    if found := re.search(r"/history/([\w-]+)", place):
        return 200, {found[1]: _ended(_SUBMITTED.get(found[1], ""), found[1], echoed)}
    if "/view" in place:
        return _picture(echoed)
    return 404, {"error": echoed}


_SUBMITTED: dict[str, str] = {}


def _submitted(body: Mapping[str, Any], echoed: str) -> Any:
    kind, prompt_id = body["prompt"]["1"]["class_type"], body["prompt_id"]
    _SUBMITTED[prompt_id] = kind
    fault = {"type": echoed, "message": echoed, "details": echoed, "extra_info": {"input_name": echoed}}
    errors = {echoed: {"class_type": echoed, "errors": [fault]}, "1": {"class_type": kind, "errors": [fault]}}
    if kind == "Refuse":
        return 400, {"error": {"type": echoed, "message": echoed}, "node_errors": errors}
    return 200, {"prompt_id": prompt_id, "number": 1, "node_errors": errors if kind == "Half" else {}}


def _ended(kind: str, prompt_id: str, echoed: str) -> Any:
    fault = {"node_id": echoed, "node_type": echoed, "exception_type": echoed, "exception_message": echoed}
    messages: list[Any] = [["execution_cached", {"nodes": [echoed]}]]
    if kind in ("Fail", "Half"):
        status: Any = {"status_str": "error", "messages": [*messages, ["execution_error", fault]]}
        return {"status": status, "outputs": {}, "prompt": [1, prompt_id, {}, {}, []]}
    outputs: dict[str, Any] = {
        "text": [f"it was sent {echoed}"],
        "images": [{"filename": "a.png", "subfolder": "", "type": "output"}],
    }
    status = {"status_str": "success", "messages": messages}
    return {"status": status, "outputs": {"1": outputs}, "prompt": [1, prompt_id, {}, {}, []]}


def _picture(echoed: str) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    shape = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0"))
    return b"\x89PNG\r\n\x1a\n" + shape + chunk(b"tEXt", f"prompt\0{echoed}".encode()) + pixels + chunk(b"IEND", b"")


def write_templates(folder: Path) -> str:
    folder.mkdir()
    for kind in ("Say", "Draw", "Fail", "Refuse", "Half"):
        graph = {"1": {"class_type": kind, "inputs": {"text": "x"}}}
        output = {"name": "out", "node": "1", **({} if kind == "Draw" else {"key": "text", "type": "text"})}
        schema = {"type": "object", "additionalProperties": False, "properties": {"text": {"type": "string"}}}
        sidecar: dict[str, Any] = {
            "tool": kind.lower(),
            "description": f"{kind}.",
            "workflow": {"file": f"{kind}.graph.json"},
        }
        binding = {"from": "/text", "to": "/1/inputs/text", "expect_class": kind}
        sidecar |= {"input_schema": schema, "bindings": [binding], "outputs": [output]}
        (folder / f"{kind}.graph.json").write_text(json.dumps(graph))
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(sidecar))
    return str(folder)


@asynccontextmanager
async def hub_with(tmp_path: Path, **sources: Any) -> AsyncIterator[RunningHub]:
    (tmp_path / "hub").mkdir()
    (tmp_path / "sources.yaml").write_text(json.dumps({"sources": sources}))
    settings = {**_SETTINGS, "sources": {"file": str(tmp_path / "sources.yaml")}}
    async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield hub


async def prowl(hub: RunningHub, hub_output: HubOutput, source: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Call every tool of the source and look through every window; the results by own name."""
    full, results = tool_pb2.TOOL_VIEW_FULL, {}
    where = tool_pb2.ToolFilter(sources=[source])
    for tool in (await hub.stub.ListTools(pb.ListToolsRequest(view=full, page_size=200, filter=where))).tools:
        hub_output.keep(tool.name, await hub.invoke(tool.name, args))
        job = await hub.submit(tool.name, args)
        watch = hub.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job.job_id), timeout=CALL_TIMEOUT_S)
        async for answer in watch:
            hub_output.keep(f"status {tool.name}", answer.status)
            results[tool.name.partition("/")[2]] = answer.status.result
        hub_output.keep(tool.name, (await hub.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job.job_id))).job)
    for asked in (
        hub.stub.SearchTools(pb.SearchToolsRequest(query="say", view=full, page_size=50)),
        hub.stub.ExportTools(pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_MCP)),
        hub.registry.ListSources(registry_service_pb2.ListSourcesRequest()),
        hub.registry.RefreshSources(registry_service_pb2.RefreshSourcesRequest(sources=[source])),
        hub.registry.ListPins(registry_service_pb2.ListPinsRequest(view=full, page_size=100)),
    ):
        hub_output.keep("window", await asked)
    return results


async def keep_commands_and_files(tmp_path: Path, hub: RunningHub, hub_output: HubOutput, source: str) -> None:
    """What a terminal shows, and every file that the hub keeps, are ways out too."""
    at = ["--data-dir", str(tmp_path / "hub"), "--config", str(_config(tmp_path))]
    for words in (
        ["sources", "show", source, "--address", hub.address],
        ["sources", "show", source, "--json", "--address", hub.address],
        ["workflows", "check", "--json", *at],
        ["workflows", "check", *at],
        ["doctor", "--json", "--live", "--address", hub.address, *at],
    ):
        output = (await asyncio.to_thread(CliRunner().invoke, toolhub, words)).output
        assert source in output, words
        hub_output.answers.append((" ".join(words[:2]), output.encode()))
    for file in filter(Path.is_file, (tmp_path / "hub").rglob("*")):
        hub_output.answers.append((str(file), file.read_bytes()))


def _config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"sources": {"file": str(tmp_path / "sources.yaml")}}))
    return file


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_given_to_an_n8n_come_out_nowhere(
    tmp_path: Path, hub_output: HubOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token, basic, own, path = secrets = tuple(map(canary, ("key", "token", "basic", "own", "path")))
    monkeypatch.setenv("INNOCENT", token)
    (tmp_path / "key").write_text(f"{key}\n")
    async with repeating(n8n_response, *secrets) as url:
        (tmp_path / "url").write_text(f"{url}/{path}\n")
        headers = {
            "X-Hub": {"env": "INNOCENT", "prefix": "Token "},
            "Authorization": f"Basic {base64.b64encode(f'me:{basic}'.encode()).decode()}",
        }
        workflow = {"webhook": "say", "headers": {"X-Secret-Token": own}, "description": "Say it again."}
        source = {
            "kind": "n8n",
            "url": {"file": str(tmp_path / "url")},
            "api_key": {"file": str(tmp_path / "key")},
            "headers": headers,
            "workflows": {"mine": workflow, "fails": {**workflow, "webhook": "boom"}},
            "discover": {},
            "trust": "always",
        }
        async with hub_with(tmp_path, flows=source) as hub:
            results = await prowl(hub, hub_output, "flows", {"a": 1})
            assert {name: result.ok for name, result in results.items()} == {
                "mine": True,
                "fails": False,
                "late": False,
            }
            await keep_commands_and_files(tmp_path, hub, hub_output, "flows")
            assert await hub_output.leaks(hub, *secrets) == []


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_given_to_a_comfyui_come_out_nowhere(
    tmp_path: Path, hub_output: HubOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, key, password, path = secrets = tuple(map(canary, ("token", "key", "pass", "path")))
    monkeypatch.setenv("INNOCENT", token)
    async with repeating(comfy_response, *secrets) as url:
        (tmp_path / "url").write_text(f"{named(url, password)}/{path}\n")
        source = {
            "kind": "comfyui",
            "backends": {
                "gpu": {
                    "url": {"file": str(tmp_path / "url")},
                    "headers": {"X-Hub": {"env": "INNOCENT"}, "X-Api-Key": key},
                }
            },
            "templates": [write_templates(tmp_path / "templates")],
            "lost_after_s": 0.2,
        }
        async with hub_with(tmp_path, studio=source) as hub:
            results = await prowl(hub, hub_output, "studio", {"text": "x"})
            assert {name for name, result in results.items() if result.ok} == {"say", "draw"}
            assert len(results) == 5
            (artifact,) = results["draw"].artifacts
            asked = artifact_service_pb2.ReadArtifactRequest(artifact_id=artifact.artifact_id)
            stub: Any = ArtifactServiceStub(hub.channel)
            parts = [part.chunk async for part in stub.ReadArtifact(asked, timeout=CALL_TIMEOUT_S)]
            hub_output.answers.append(("picture", b"".join(parts)))
            await keep_commands_and_files(tmp_path, hub, hub_output, "studio")
            assert await hub_output.leaks(hub, *secrets) == []
