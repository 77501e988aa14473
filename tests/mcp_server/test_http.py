"""MCP over HTTP: lists, calls, errors, progress and cancellation, as the SDK's client of either protocol sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from mcp.client.client import Client

from tests.hub import running_hub
from tests.mcp_server.mcp_hub import ERAS, HeldTool, McpHub, mcp_hub
from tests.processes import served
from tests.security.mcp_attackers import connected, head, session
from toolhub_service.app.doctor.configuration import settings_checks
from toolhub_service.domain.event import EventType
from toolhub_service.mcp_server.http import listener

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs, execute:command]}
rules:
  - {id: no-times, tools: [core/util.time.now], effect: DENY, reason: "Not today."}
roles:
  - {principals: [local], roles: [agent]}
"""


@pytest.fixture
async def working() -> HeldTool:
    return HeldTool()


@pytest.fixture
async def hub(tmp_path: Path, working: HeldTool) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, policy=POLICY, tools=[working]) as opened:
        yield opened


async def test_lists_and_calls_are_the_same_in_both_eras_and_each_call_is_on_record(hub: McpHub) -> None:
    lists = []
    for era in ERAS:
        async with hub.client(era) as client:
            listed = await client.list_tools()
            lists.append([tool.model_dump(exclude={"execution"}) for tool in listed.tools])
            assert listed.ttl_ms == (60_000 if era == ERAS[1] else 0)
            written = await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": era})
            assert not written.is_error, written
            read = await client.call_tool("core__fs_readText", {"path": "a.txt"})
            assert read.structured_content is not None
            assert read.structured_content["text"] == era  # the next call works in the same folder
            wrong = await client.call_tool("core/fs.readText", {"pth": "a.txt"})
            assert wrong.is_error
            assert wrong.meta is not None
            assert wrong.meta["toolhub/error"]["kind"] == "INPUT_SCHEMA_INVALID"
            assert "`path`" in wrong.content[0].text  # type: ignore[union-attr]
    old, new = lists
    assert old == new
    names = [tool["name"] for tool in new]
    assert names[:4] == ["job_start", "job_status", "job_result", "job_cancel"]
    assert names[4:] == sorted(names[4:])
    assert all(len(name) <= 60 for name in names)
    assert "core__util_time_now" not in names
    events = [event.event for event in await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
    assert {(event.labels["entrance"], event.labels["mcp_era"]) for event in events} == {("mcp", era) for era in ERAS}
    assert all(event.labels["mcp_client"] for event in events)


@pytest.mark.promise("mcpserver.hidden-is-absent")
async def test_a_hidden_and_a_missing_tool_look_alike(hub: McpHub) -> None:
    async with hub.client(ERAS[1]) as client:
        hidden = await client.call_tool("core__util_time_now", {})
        absent = await client.call_tool("core__util_time_new", {})
    for result in (hidden, absent):
        assert result.meta is not None
        error = result.meta["toolhub/error"]
        assert error["kind"] == "TOOL_NOT_FOUND"
        assert set(error["details"]) == {"did_you_mean"}  # neither a rule nor a reason
        assert not {"core/util.time.now", "core__util_time_now"} & set(error["details"]["did_you_mean"])
        assert error["message"].startswith("There is no tool of this name. ")
        assert (
            "time" not in error["message"]
        )  # nor the name in the hub's own spelling, which it has of the hidden one alone
    denied = [event.event for event in await hub.grpc.events(types=frozenset({EventType.POLICY_DENIED}))]
    assert [(event.tool, event.rule_id) for event in denied] == [("core/util.time.now", "no-times")]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_reported_and_a_client_that_gives_up_ends_the_call(
    hub: McpHub, working: HeldTool, era: str
) -> None:
    updates: asyncio.Queue[tuple[float, float | None, str | None]] = asyncio.Queue()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        await updates.put((progress, total, message))

    async with hub.client(era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("held__work_on", {}, progress_callback=on_progress))
            assert await updates.get() == (3, 7, "three")
            tasks.cancel_scope.cancel()
        async with asyncio.timeout(60):
            await working.ended.wait()
        working.go_on.set()
        assert (await client.call_tool("held__work_on", {})).structured_content == {"done": True}
    events = [event.event for event in await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}))]
    assert [event.outcome for event in events] == ["CANCELLED", "ok"]


async def test_the_port_is_served_when_it_is_free_and_grpc_in_any_case(hub: McpHub, tmp_path: Path) -> None:
    taken = hub.url.removeprefix("http://").removesuffix("/mcp")
    with pytest.raises(AssertionError, match=f"not served on {taken}: Address already in use; set server.mcp.listen"):
        async with mcp_hub(tmp_path / "other", listen=taken):
            pass


async def test_a_first_run_prints_the_mcp_endpoint_and_the_client_configuration(tmp_path: Path) -> None:
    wanted = {"TOOLHUB_SERVER_MCP_ENABLED": "true", "TOOLHUB_SERVER_MCP_LISTEN": "127.0.0.1:0"}
    async with served(tmp_path, environment=wanted) as process:
        assert process.mcp_url.startswith("http://127.0.0.1:")
        async with Client(process.mcp_url) as client:
            assert not (await client.call_tool("core__util_time_now", {})).is_error
        assert await process.stop() == 0


async def test_without_the_extra_the_hub_serves_grpc_and_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "find_spec", lambda _: None)
    async with running_hub(tmp_path, settings={"server": {"mcp": {"listen": "127.0.0.1:0"}}}) as hub:
        assert hub.hub.mcp.problem == "not served: toolhub extras install mcp"
        assert (await hub.value("core/util.time.now"))["iso"]
        findings = {finding.name: finding for finding in await settings_checks(hub.hub.settings)}
        assert findings["mcp port"].text == "the MCP SDK is not installed: no MCP client can connect"


@pytest.mark.parametrize("named", ["5", "never-seen", "5, 6"])
async def test_a_stream_that_names_a_last_event_begins_anew(hub: McpHub, named: str) -> None:
    """Fails at 513ce725 with 500: the SDK resumes streams from a store that there is none of."""
    port = urlsplit(hub.url).port
    assert port is not None
    async with session(port, "") as lines, connected(port) as (reader, writer):
        writer.write(head("", "127.0.0.1", *lines, f"Last-Event-ID: {named}", verb="GET"))
        answered = await reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream" in answered
