"""`toolhub mcp`: MCP on standard input and output, by a running hub and by one of its own; and clients' files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from click.testing import CliRunner
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from tests.fakes.mcp_servers.offering import Offering
from tests.fakes.mcp_servers.scripted import tool
from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import ERAS, MODES, HeldTool, McpHub, mcp_hub
from tests.mcp_server.test_admission import INITIALIZE, keyed_hub
from tests.mcp_server.test_prompts import sourced
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.cli.mcp.bridge import Bridge
from toolhub_service.cli.root import toolhub
from toolhub_service.domain.event import EventType
from toolhub_service.settings.document import Settings


def started(home: Path, era: str, *words: str, **environment: str) -> Client:
    """A client that starts `toolhub mcp`, as Claude Desktop does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    arguments = ["-m", "toolhub_service", "mcp", "--data-dir", str(home / "hub"), *words]
    env = {**clean, "HOME": str(home), "TOOLHUB_LOGS_LEVEL": "error", **environment}
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=env)), mode=MODES[era])


@pytest.mark.parametrize("era", ERAS)
async def test_the_bridge_connects_a_client_to_the_running_hub_under_the_clients_own_key(
    tmp_path: Path, era: str
) -> None:
    async with keyed_hub(tmp_path) as (hub, keys):
        async with started(tmp_path, era, TOOLHUB_MCP_URL=hub.url, TOOLHUB_API_KEY=keys["alice"]) as client:
            assert "core__util_time_now" in {tool.name for tool in (await client.list_tools()).tools}
            assert not (await client.call_tool("core__util_time_now", {})).is_error
        events = [event.event for event in await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
        assert [(event.principal, event.labels["mcp_era"]) for event in events] == [("alice", era)]


async def test_without_a_hub_it_opens_one_on_the_same_data_folder(tmp_path: Path) -> None:
    nowhere = {"TOOLHUB_SERVER_MCP_LISTEN": "127.0.0.1:1"}
    async with started(tmp_path, ERAS[1], **nowhere) as client:
        written = await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "by stdio"})
        assert not written.is_error, written
        read = await client.call_tool("core__fs_readText", {"path": "a.txt"})
        assert read.structured_content is not None
        assert read.structured_content["text"] == "by stdio"
    assert Paths(Settings(data_dir=str(tmp_path / "hub"))).audit.exists()
    keyed = {**nowhere, "TOOLHUB_AUTH_MODES": "api-key", "TOOLHUB_API_KEY": "thk_00000000_nothing"}
    with pytest.raises(BaseException) as refused:  # noqa: PT011 - a group, as anyio raises it
        async with started(tmp_path, ERAS[0], **keyed):
            pass
    assert "The API key is unknown" in "".join(_messages(refused.value))


async def test_the_bridge_passes_progress_and_cancellation_and_opens_an_ended_session_again(tmp_path: Path) -> None:
    working = HeldTool()
    async with mcp_hub(tmp_path, policy=OPEN_POLICY, tools=[working]) as hub:
        for era in ERAS:
            working.begun.clear()
            working.ended.clear()
            async with Bridged(hub, era) as client:
                held = {"name": "held__work_on", "arguments": {}, "_meta": {"progressToken": "p"}}
                client.ask(7, "tools/call", held)
                progress = await client.message_that(lambda message: message.get("method") == "notifications/progress")
                assert progress["params"]["progress"] == 3
                client.send({"method": "notifications/cancelled", "params": {"requestId": 7}})
                async with asyncio.timeout(60):
                    await working.ended.wait()
                if era == ERAS[0]:
                    await client.forget_session()
                client.ask(8, "tools/call", {"name": "core__util_time_now"})
                answer = await client.message_that(lambda message: message.get("id") == 8)
                assert answer["result"]["structuredContent"]["iso"]


async def test_the_bridge_copies_arguments_into_the_headers_that_a_tools_schema_names(tmp_path: Path) -> None:
    place = {"type": "string", "x-mcp-header": "Place"}
    inner = {"type": "object", "properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}}
    schema = {"type": "object", "properties": {"at": place, "n": {"type": "integer"}, "with": inner}}
    server = Offering(pages=[[tool("mirrors", inputSchema=schema)]])
    calls = [{"at": "Zürich", "n": 7, "with": {"on": True}}, {"at": "home", "with": {}}, {"n": 1}]
    wanted = [{"mcp-param-place": "=?base64?WsO8cmljaA==?=", "mcp-param-on": "true"}, {"mcp-param-place": "home"}, {}]
    async with sourced(tmp_path, {"acme": server}) as hub:
        for is_listed in (True, False):
            async with Bridged(hub, ERAS[1]) as client:
                if is_listed:
                    client.ask(1, "tools/list", {})
                    await client.message_that(lambda message: message.get("id") == 1)
                for number, arguments in enumerate(calls):
                    client.ask(f"call {number}", "tools/call", {"name": "acme__mirrors", "arguments": arguments})
                    answer = await client.message_that(lambda message: message.get("id") == f"call {number}")  # noqa: B023
                    assert not answer["result"]["isError"], answer
                sent = [headers for headers in client.sent_headers if headers["mcp-method"] == "tools/call"]
                if not is_listed:  # the first was refused, and the bridge has looked at the tool
                    assert [headers["mcp-name"] for headers in sent[:3]] == [
                        "acme__mirrors",
                        "describe_tool",
                        "acme__mirrors",
                    ]
                    assert sent.pop(0).keys().isdisjoint(wanted[0])
                    sent.pop(0)
                assert [
                    {name: value for name, value in headers.items() if "-param-" in name} for headers in sent
                ] == wanted
    called = [params["arguments"] for method, params in server.requests if method == "tools/call"]
    assert called == calls * 2


class Bridged:
    """The bridge in this process, and the lines that go through it."""

    def __init__(self, hub: McpHub, era: str) -> None:
        self._era = era
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._messages: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._bridge = Bridge(hub.url, "", self._on_line)
        self.sent_headers: list[dict[str, str]] = []
        self._bridge._http.event_hooks = {"request": [self._note]}
        self._hub = hub

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._bridge.run(self._lines()))
        if self._era == ERAS[0]:
            self.send(INITIALIZE)
            await self.message_that(lambda message: message.get("id") == 1)
            self.send({"method": "notifications/initialized"})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sent.put_nowait(None)
        await self._running

    async def _note(self, request: httpx.Request) -> None:
        self.sent_headers.append(dict(request.headers))

    def send(self, message: dict[str, Any]) -> None:
        self._sent.put_nowait(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        meta = dict(params.get("_meta", {}))
        if self._era == ERAS[1]:
            meta |= {
                "io.modelcontextprotocol/protocolVersion": self._era,
                "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        self.send({"id": request_id, "method": method, "params": {**params, "_meta": meta}})

    async def message_that(self, fits: Any) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while not (found := [message for message in self._messages if fits(message)]):
                self._news.clear()
                await self._news.wait()
        return found[0]

    async def forget_session(self) -> None:
        """As a restart of the hub does."""
        await self._bridge._http.delete(self._hub.url, headers=self._bridge._session)

    def _on_line(self, line: bytes) -> None:
        self._messages.append(json.loads(line))
        self._news.set()

    async def _lines(self) -> AsyncIterator[bytes]:
        while (line := await self._sent.get()) is not None:
            yield line


def _messages(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [message for each in error.exceptions for message in _messages(each)]
    return [str(error), error.message if isinstance(error, MCPError) else ""]


FILES = {
    "claude": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
}
MEMBERS = {"vscode": "servers", "codex": "mcp_servers"}


@pytest.mark.skipif(sys.platform == "darwin", reason="expects the configuration paths of Linux: run it on Linux")
def test_clients_files_are_merged_with_a_copy_of_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for client, name in FILES.items():
        file, member = tmp_path / name, MEMBERS.get(client, "mcpServers")
        file.parent.mkdir(parents=True, exist_ok=True)
        before = '[mcp_servers.other]\ncommand = "x"\n' if client == "codex" else json.dumps({member: {"other": {}}})
        file.write_text(before)
        file.chmod(0o640)
        shown = CliRunner().invoke(toolhub, ["mcp", "config", client])
        assert shown.exit_code == 0, shown.output
        assert file.read_text() == before
        for _ in range(2):
            written = CliRunner().invoke(toolhub, ["mcp", "config", client, "--write"])
            assert written.exit_code == 0, written.output
        servers = _read(file)[member]
        assert set(servers) == {"other", "tool-hub"}
        assert Path(servers["tool-hub"]["command"]).name == "toolhub"
        assert servers["tool-hub"]["args"] == ["mcp"]
        assert file.with_name(f"{file.name}.before-tool-hub").read_text() == before
        assert file.stat().st_mode & 0o777 == 0o640
        over_http = ["mcp", "config", client, "--http", "--name", "far", "--write"]
        assert CliRunner().invoke(toolhub, over_http).exit_code == 0
        entry = _read(file)[member]["far"]
        assert "http://127.0.0.1:50052/mcp" in entry.values()
    broken = tmp_path / FILES["cursor"]
    broken.write_text("// mine\n{}")
    refused = CliRunner().invoke(toolhub, ["mcp", "config", "cursor", "--write"])
    assert refused.exit_code == 1
    assert "Nothing was changed" in refused.output
    assert broken.read_text() == "// mine\n{}"
    assert CliRunner().invoke(toolhub, ["mcp", "config", "inspector"]).exit_code == 0
    assert CliRunner().invoke(toolhub, ["mcp", "config", "inspector", "--write"]).exit_code == 1


def test_claude_code_gets_the_hub_for_one_project_and_reads_the_key_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "toolhub.yaml"
    config.write_text("auth: {modes: [api-key]}\n")
    project = tmp_path / ".mcp.json"
    command = ["mcp", "config", "claude-code", "--config", str(config), "--file", str(project), "--write"]
    for words, name in (([], "tool-hub"), (["--http", "--name", "far"], "far")):
        written = CliRunner().invoke(toolhub, [*command, *words])
        assert written.exit_code == 0, written.output
        entry = _read(project)["mcpServers"][name]
        assert "${TOOLHUB_API_KEY}" in json.dumps(entry)
        assert entry.get("type") == ("http" if words else None)


def _read(file: Path) -> Any:
    return tomllib.loads(file.read_text()) if file.suffix == ".toml" else json.loads(file.read_text())
