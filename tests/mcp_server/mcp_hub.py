"""A hub that serves MCP over HTTP, and the SDK's own client of it, by either protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub_service.app.config_files.key_file import KeyFile
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.approval import ApprovalState
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.result import Progress
from toolhub_service.domain.tool import Annotations, CostHints, ToolLimits
from toolhub_service.mcp_server.http.admission import AdmissionTerms
from toolhub_service.mcp_server.http.serving import HttpTerms, serve
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

ERAS = ("2025-11-25", "2026-07-28")
ASKING = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs]}
rules:
  - {id: copies-need-a-person, tools: [core/fs.copy], effect: REQUIRE_APPROVAL, reason: "Copies are seen by a person."}
roles:
  - {principals: [local, alice, bob], roles: [agent]}
"""
WITH_KEYS = {"auth": {"modes": ["insecure-local", "api-key"]}}
BOSS = Principal("boss", frozenset({Role.APPROVER}))
PICK = "held__work_pick"
COPY = {"source": "a.txt", "destination": "b.txt"}
MODES: Mapping[str, Any] = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


@dataclass(slots=True)
class McpHub:
    grpc: RunningHub
    url: str

    @asynccontextmanager
    async def client(self, era: str, key: str = "", **options: Any) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=60.0) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=MODES[era], **options) as opened:
                yield opened


@asynccontextmanager
async def mcp_hub(
    home: Path,
    *,
    policy: str = OPEN_POLICY,
    settings: Mapping[str, Any] | None = None,
    tools: Any = (),
    shown: str = "auto",
    **mcp: Any,
) -> AsyncIterator[McpHub]:
    chosen = {**(settings or {}), "server": {"mcp": {"listen": "127.0.0.1:0", "tools": shown, **mcp}}}
    async with running_hub(home, policy=policy, settings=chosen, tools=tools) as hub:
        assert not hub.hub.mcp.problem, hub.hub.mcp.problem
        yield McpHub(hub, f"http://127.0.0.1:{hub.hub.mcp.listener.port}/mcp")


@asynccontextmanager
async def entered_as(hub: McpHub, who: list[Principal]) -> AsyncIterator[McpHub]:
    """A further endpoint of the hub, whose caller is at each request the last of `who`."""
    bound = socket.create_server(("127.0.0.1", 0))

    async def last(*_: Any) -> Principal:
        return who[-1]

    server = await serve(hub.grpc.hub.mcp.engine, last, HttpTerms(AdmissionTerms(is_local=True)), bound)
    try:
        yield McpHub(hub.grpc, f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
    finally:
        await server.close(1.0)


class HeldTool(Tool["HeldTool.In", "HeldTool.Out"]):
    """Reports its progress, then works until it is cancelled or released."""

    name = "held/work.on"
    description = "Work until told to go on."
    annotations = Annotations(read_only=True)
    limits = ToolLimits(timeout_s=120.0)

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        done: bool

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, args: In, context: ToolContext) -> Out:
        context.sink.progress(Progress(step=3, total=7, unit="rows", message="three"))
        self.begun.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended.set()
        return self.Out(done=True)


class HeldJob(HeldTool):
    """Always a job."""

    name = "held/work.pick"
    cost = CostHints(is_async=True)


def keys_of(hub: McpHub, *names: str) -> dict[str, str]:
    """New API keys, in force at once."""
    file: KeyFile = Paths(hub.grpc.hub.settings).key_file()
    keys = {name: file.create(name) for name in names or ("alice", "bob")}
    reload_keys(hub.grpc.hub, file)
    return keys


async def decide(hub: McpHub, approval_id: str, state: Any = ApprovalState.APPROVED) -> None:
    """As an approver who has not asked for it."""
    await hub.grpc.hub.long_work.approvals.decide(BOSS, approval_id, state)
