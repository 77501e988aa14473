"""The Inspector's command line against the MCP endpoint; `make acceptance-clients` installs it (110 MB of npm)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.e2e.terminal import ROOT
from tests.mcp_server.client_programs import ClientsHub, clients_hub, stdio
from tests.mcp_server.mcp_hub import ERAS
from tests.processes import WITHIN_S
from tests.servers import node
from toolhub_service.domain.event import EventType

PROGRAM = ROOT / ".venv/examples/inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


async def ask(home: Path, entry: dict[str, Any], method: str, *words: str) -> tuple[int, Any, str]:
    """Exit status, answer and diagnostics of one request of it."""
    config = home / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"tool-hub": entry}}))
    process = await asyncio.create_subprocess_exec(
        *(node(), str(PROGRAM), "--cli", "--config", str(config), "--server", "tool-hub", "--method", method, *words),
        env={"HOME": str(home), "PATH": os.environ["PATH"], "MCP_INSPECTOR_SECRET_STORE": "memory"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WITHIN_S):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output or "null"), errors.decode()


def entries(hub: ClientsHub) -> list[dict[str, Any]]:
    started = stdio(hub.entry(), "", hub.home)["entry"]
    return [hub.entry("--http"), started]


async def test_inspector_finds_no_fault_in_the_tools_and_calls_them_in_both_eras(tmp_path: Path) -> None:
    async with clients_hub(tmp_path) as hub:
        for entry in entries(hub):
            status, listed, printed = await ask(tmp_path, entry, "tools/list", "--strict")
            assert (status, "0 errors" in printed) == (0, True), printed
            assert "core__fs_readText" in {tool["name"] for tool in listed["tools"]}
        for era in ("legacy", "modern"):
            keep = ("--tool-name", "held__thing_keep", "--tool-arg", f"text={era}", "--protocol-era", era)
            status, kept, printed = await ask(tmp_path, entries(hub)[0], "tools/call", *keep)
            assert status == 0, printed
            assert kept["structuredContent"] == {"size": len(era)}
            uri = kept["content"][1]["uri"]
            status, read, printed = await ask(tmp_path, entries(hub)[0], "resources/read", "--uri", uri)
            assert (status, read["contents"][0]["text"]) == (0, era), printed
        wrong = ("--tool-name", "core__fs_readText", "--tool-arg", "pth=a.txt")
        status, refused, _ = await ask(tmp_path, entries(hub)[0], "tools/call", *wrong)
        assert (status, refused["isError"]) == (5, True)
        assert "Did you mean `path`?" in refused["content"][0]["text"]
        results = [event.event for event in await hub.hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
        assert {event.labels["mcp_era"] for event in results} == set(ERAS)
