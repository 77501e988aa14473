"""What a caller shows to the hub reaches no upstream: every entrance, every kind of upstream, all that went out."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.fakes import comfyui_templates
from tests.fakes.comfyui import fake_comfyui
from tests.fakes.http_server import always, response
from tests.fakes.http_server import serving as web_server
from tests.fakes.mcp_servers import scripted
from tests.fakes.n8n import fake_n8n
from tests.hub import RunningHub, request, running_hub, settings_of
from tests.mcp_server.mcp_hub import MODES
from tests.rpc.minting_issuer import minting_issuer
from tests.rpc.model_endpoint import answer_text, ask, model_endpoint
from tests.rpc.real_servers import write_sources
from tests.rpc.skill_runs import script_skill, source_of
from tests.unit.adapters.n8n.flows import FLOWS
from toolhub.v1 import tool_service_pb2
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.faces.table import FACE_HEADER

POLICY: Final = """
extends: none
grants:
  - principals: ["*"]
    capabilities: ["mcp:*", "n8n:*", "comfyui:*", "langchain:*", "skill:*", network, "read:fs", "write:fs",
      "execute:command", "spawn:agent"]
roles: [{principals: ["*"], roles: [agent]}]
egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8], methods: [GET, POST]}]
commands: [{name: env, path: /usr/bin/env}]
"""
SURROUNDINGS: Final = """
import json, os, sys
given = sys.stdin.read()
json.dump({"env": dict(os.environ), "argv": sys.argv, "given": given}, sys.stdout)
"""
PROGRAM: Final = """
await call("remote/echo", {"text": "x"})
(await call("core/http.fetchText", {"url": inputs["url"]}))["status"]
"""
FORWARDED: Final = "hash-of-the-caller-0123456789abcdef"
Metadata = tuple[tuple[str, str], ...]
Enter = Callable[["UpstreamsHarness", str, Mapping[str, Any], Metadata], Awaitable[Any]]


class RecordingProxy:
    """Stands before an upstream and keeps every byte that goes there."""

    def __init__(self, url: str) -> None:
        self.upstream = urlsplit(url)
        self.seen = bytearray()
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RecordingProxy]:
        server = await asyncio.start_server(self._one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = self.upstream._replace(netloc=f"127.0.0.1:{port}").geturl()
        async with server:
            yield self

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection(self.upstream.hostname, self.upstream.port)
        try:
            await asyncio.gather(self._pass(reader, out, keep=True), self._pass(there, writer, keep=False))
        except ConnectionError:
            pass
        finally:
            out.close()
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool) -> None:
        while data := await reader.read(65_536):
            if keep:
                self.seen += data
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@dataclass
class UpstreamsHarness:
    hub: RunningHub
    proxies: Mapping[str, RecordingProxy]
    shown: Mapping[str, Metadata]
    """What callers show, by its kind."""


def calls(web: str) -> Mapping[str, Mapping[str, Any]]:
    """One to each kind of upstream; `web`: URL of a server."""
    return {
        "local/echo": {"text": "x"},
        "remote/echo": {"text": "x"},
        "flows/echo": {"a": 1},
        "code/environment": {},
        "skill/surroundings": {},
        "core/http.fetchText": {"url": web},
        "core/http.request": {"url": web, "method": "POST", "body": {"a": 1}},
        "core/exec.run": {"argv": ["env"]},
        "core/program.run": {"code": PROGRAM, "inputs": {"url": web}},
    }


def faced(tool: str) -> str:
    """The name of a tool behind a face."""
    return tool.replace("/", "_").replace(".", "_")


async def invoke(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    return await at.hub.invoke(tool, args, metadata=who)


async def stream(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    asked = request(tool, args, message=tool_service_pb2.InvokeStreamRequest)
    return [each async for each in at.hub.stub.InvokeStream(asked, metadata=who, timeout=60)][-1].result


async def session(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    opened = at.hub.stub.InvokeSession(metadata=who, timeout=60)
    call = request(tool, args, message=tool_service_pb2.SessionCall)
    call.call_id = "mine"
    await opened.write(tool_service_pb2.InvokeSessionRequest(calls=[call]))
    await opened.done_writing()
    return [event async for message in opened for event in message.events][-1].result


async def job(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    submitted = await at.hub.submit(tool, args, metadata=who)
    return (await at.hub.watched(submitted.job_id, metadata=who))[-1].result


async def mcp(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    url = f"http://127.0.0.1:{at.hub.hub.mcp.listener.port}/mcp"
    async with (
        httpx2.AsyncClient(headers=dict(who), timeout=60.0) as http,
        Client(streamable_http_client(url, http_client=http), mode=MODES["2026-07-28"]) as client,
    ):
        answer = await client.call_tool(tool, dict(args))
    assert not answer.is_error, answer
    return answer


async def face(at: UpstreamsHarness, tool: str, args: Mapping[str, Any], who: Metadata) -> Any:
    return await at.hub.invoke(faced(tool), args, metadata=(*who, (FACE_HEADER, "countbot")))


ENTRANCES: Final[Mapping[str, Enter]] = {
    "Invoke": invoke,
    "InvokeStream": stream,
    "InvokeSession": session,
    "SubmitJob": job,
    "MCP": mcp,
    "a face": face,
}


@asynccontextmanager
async def upstreams_harness(home: Path) -> AsyncIterator[UpstreamsHarness]:
    async with AsyncExitStack() as stack:
        remote = await stack.enter_async_context(scripted.serving(scripted.Script()))
        n8n = await stack.enter_async_context(fake_n8n(workflows=FLOWS))
        comfy = await stack.enter_async_context(fake_comfyui("0.33.0"))
        model = await stack.enter_async_context(model_endpoint())
        web = await stack.enter_async_context(web_server(always(response(b"hello", content_type="text/plain"))))
        upstreams = {"remote": remote, "n8n": n8n.url, "comfy": comfy.url, "model": model.url, "web": web.url()}
        proxies = {name: await stack.enter_async_context(RecordingProxy(url).open()) for name, url in upstreams.items()}
        model.script(ask(("core__http_fetchText", {"url": proxies["web"].url})), answer_text("done"))
        script_skill(home / "skills", "surroundings", SURROUNDINGS)
        templates = comfyui_templates.write(home / "templates", comfyui_templates.BLUR)
        trusted = {"trust": "always"}
        sources: dict[str, dict[str, Any]] = {
            "local": {"kind": "mcp", "command": sys.executable, "args": [scripted.__file__, "modern"], **trusted},
            "remote": {"kind": "mcp", "url": proxies["remote"].url, **trusted},
            "flows": {"kind": "n8n", "url": proxies["n8n"].url, "workflows": {"echo": {"webhook": "echo"}}},
            "studio": {"kind": "comfyui", "url": proxies["comfy"].url, "templates": [str(templates)]},
            "code": {"kind": "langchain", "load": ["tests.fakes.langchain_tools:WORKER_TOOLS"], "processes": 1},
            "skill": source_of(home / "skills"),
        }
        write_sources(home, sources)
        issuer = stack.enter_context(minting_issuer("corp"))
        settings: dict[str, Any] = {
            "auth": {"modes": ["api-key", "jwt"], "jwt": {"issuers": [issuer.settings()]}},
            "tools": {"trusted_namespaces": ["tests"]},
            "agents": [{"name": "helper", "url": proxies["model"].url, "model": "m-1"}],
            "server": {"mcp": {"listen": "127.0.0.1:0", "tools": "full"}},
            "logs": {"level": "debug", "calls": True},
        }
        key = Paths(settings_of(home, settings)).key_file().create("alice")
        settings["faces"] = {"enabled": ["countbot"], "countbot_tools": [f"{faced(tool)}={tool}" for tool in calls("")]}
        client = f"By=spiffe://example.org/envoy;Hash={FORWARDED};URI=spiffe://example.org/a"
        proxy = (("x-forwarded-client-cert", client),)
        shown = {
            "API key": (("authorization", f"Bearer {key}"), *proxy),
            "API key, by its own header": (("x-api-key", key), *proxy),
            "token": (*issuer.bearer("ann"), *proxy),
        }
        policy = POLICY % urlsplit(proxies["web"].url).port
        hub = await stack.enter_async_context(running_hub(home, policy=policy, settings=settings))
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield UpstreamsHarness(hub, proxies, shown)


def processes() -> dict[str, bytes]:
    """Arguments and environment of all that this process has started, and what those have."""
    found: dict[str, bytes] = {}
    waiting = _children(os.getpid())
    while waiting:
        pid = waiting.pop()
        waiting += _children(pid)
        folder = Path(f"/proc/{pid}")
        with suppress(OSError):  # it may have ended
            found[f"process {pid}"] = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.promise("credentials.own")
async def test_a_callers_credential_reaches_no_upstream_and_is_stored_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places: dict[str, bytes] = {}
    async with upstreams_harness(tmp_path) as at:
        secrets = {FORWARDED, *(value.removeprefix("Bearer ") for who in at.shown.values() for _, value in who[:1])}
        secrets = {part for secret in secrets for part in (secret, secret.rpartition("_")[2], *secret.split(".")[1:])}
        kinds = itertools.cycle(at.shown.items())  # each of three is shown at each entrance and for each upstream
        for entrance, enter in ENTRANCES.items():
            next(kinds)
            for tool, args in calls(at.proxies["web"].url).items():
                kind, who = next(kinds)
                result = await enter(at, tool, args, who)
                place = f"{tool} by {entrance} with {kind}"
                assert entrance == "MCP" or result.ok, f"{place}: {result.error.message}"
                places[place] = str(result).encode()
        for kind, who in at.shown.items():
            for tool, long in (("studio/blur", {"color": len(kind)}), ("core/agent.spawn", {"task": "Do it."})):
                ended = await job(at, tool, long, who)
                assert ended.ok, f"{tool}: {ended.error.message}"
                places[f"{tool} with {kind}"] = str(ended).encode()
        places |= processes()
        assert len([place for place in places if place.startswith("process ")]) >= 2, "a server and a worker run"
        places["audit"] = str(list(await at.hub.events())).encode()
        for name, tap in at.proxies.items():
            assert tap.seen, f"{name} was not asked"
            places[f"bytes to {name}"] = bytes(tap.seen)
    for file in (tmp_path / "hub").rglob("*"):
        if file.is_file():
            places[f"file {file.name}"] = file.read_bytes()
    places["printed"] = "".join(capfd.readouterr()).encode()
    assert "x-idempotency-key" in places["bytes to n8n"].decode("latin-1").lower(), "headers are in what is searched"
    sought = [secret.encode() for secret in secrets if len(secret) > 20]
    assert len(sought) >= 4
    found = [place for place, data in places.items() if any(secret in data for secret in sought)]
    assert not found, found
