"""Public reports of what strangers send to gateways, clients and servers, each tried with a small input.

The ids are repository and number of the report. docs/acceptance.md says what the hub does with each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.fakes.http_server import RecordedRequest, response
from tests.fakes.http_server import serving as serving_bytes
from tests.fakes.mcp_servers import reported
from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub
from tests.mcp_server.wire import wire
from tests.rpc.real_servers import WITHIN_S, write_sources
from tests.unit.adapters.skill.skill_folders import SKILL_MD, write_skill
from toolhub.v1 import error_pb2, source_pb2
from toolhub.v1 import registry_service_pb2 as registry_pb

POLICY = """
extends: none
grants: [{principals: [local], capabilities: ["mcp:*", "skill:*"]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
READY, PARTIAL, DOWN = source_pb2.SOURCE_STATE_READY, source_pb2.SOURCE_STATE_PARTIAL, source_pb2.SOURCE_STATE_DOWN
ROWS = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
SAY = tool("say")
LONG = "a_tool_with_a_very_long_name_" * 3


class Answering(Script):
    """Its tools answer what a call says under `result`; its pages of tools are by cursor, the first by None."""

    lists: dict[str | None, dict[str, Any]]
    declared: dict[str, Any]

    async def _call(self, params: dict[str, Any], send: Any) -> dict[str, Any]:
        return dict(params["arguments"].get("result") or {"content": text("said")})

    def _page(self, params: dict[str, Any]) -> dict[str, Any]:
        return self.lists[params.get("cursor")]

    def _capabilities(self) -> dict[str, Any]:
        return self.declared


def listing(*tools: Any, declared: dict[str, Any] | None = None, **first: Any) -> Answering:
    script = Answering(generation="legacy")
    script.lists, script.declared = {None: {"tools": list(tools), **first}}, declared or {"tools": {}}
    return script


def paged(*pages: dict[str, Any], cursors: list[str | None]) -> Answering:
    script = listing()
    script.lists = dict(zip(cursors, pages, strict=True))
    return script


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def lists() -> dict[str, Answering]:
    """A server for each report about lists."""
    more, stuck = {"tools": [tool("more")]}, {"nextCursor": "same"}
    twice = {"tools": [SAY], "nextCursor": ""}
    listless = {"type": "object", "properties": [], "required": []}
    nulls = {"title": None, "annotations": None, "outputSchema": None, "_meta": None}
    return {
        "DeusData/codebase-memory-mcp#1247": paged(
            {"tools": [SAY], **stuck}, {**more, **stuck}, cursors=[None, "same"]
        ),
        "sparfenyuk/mcp-proxy#233": paged({"tools": [SAY], "nextCursor": "2"}, more, cursors=[None, "2"]),
        "gensecaihq/Wazuh-MCP-Server#75": listing(tool("say", **nulls), nextCursor=None),
        "modelcontextprotocol/java-sdk#575": paged(twice, twice, cursors=[None, ""]),
        "modelcontextprotocol/modelcontextprotocol#1846": paged(
            {"tools": [SAY], "nextCursor": ""}, more, cursors=[None, ""]
        ),
        "aaif-goose/goose#5755": listing(SAY, SAY, tool("more")),
        "charmbracelet/crush#1445": listing(SAY, declared={"logging": {}}),
        "opgginc/laravel-mcp-server#74": listing(tool("say", inputSchema=listless)),
        "simonkurtz-MSFT/drawio-mcp-server#13": listing(SAY, declared={"tools": {}, "prompts": {}, "resources": {}}),
        "anthropics/claude-code#19882": listing(SAY, tool(f"{LONG}a"), tool(f"{LONG}b")),
    }


LISTS = [
    ("DeusData/codebase-memory-mcp#1247", PARTIAL, 2, "form a loop"),
    ("sparfenyuk/mcp-proxy#233", READY, 2, ""),
    ("gensecaihq/Wazuh-MCP-Server#75", READY, 1, ""),
    ("modelcontextprotocol/java-sdk#575", READY, 1, ""),
    ("modelcontextprotocol/modelcontextprotocol#1846", READY, 2, ""),
    ("aaif-goose/goose#5755", READY, 2, ""),
    ("charmbracelet/crush#1445", READY, 1, ""),
    ("opgginc/laravel-mcp-server#74", READY, 1, ""),
    ("simonkurtz-MSFT/drawio-mcp-server#13", READY, 1, ""),
    ("anthropics/claude-code#19882", READY, 3, ""),
]
STDIO = {
    "microsoft/azure-devops-mcp#147": "banner",
    "Taxuspt/garmin_mcp#162": "crlf",
    "anthropics/claude-code#47765": "late-progress",
    "vercel/ai#15701": "pings",
}
HTTP = {
    "WordPress/mcp-adapter#125": "null-to-notifications",
    "modelcontextprotocol/rust-sdk#497": "no-content",
    "junjiem/dify-plugin-agent-mcp_sse#88": "json-charset",
    "ThinkInAIXYZ/go-mcp#200": "event-stream-charset",
    "modelcontextprotocol/python-sdk#1146": "empty-pings",
    "IBM/mcp-context-forge#689": "keepalive-events",
    "PhilflowIO/dav-mcp#31": "json-heartbeats",
}
REFUSED = [
    ("PrefectHQ/fastmcp#909", "accepted-with-body", "It answered the handshake with HTTP 202"),
    ("junjiem/dify-plugin-agent-mcp_sse#79", "no-content-type", "without a content type, not MCP"),
]


def source_of(report: str) -> str:
    return "s-" + "".join(each if each.isalnum() else "-" for each in report.lower())[-40:]


def over_http(name: str) -> Any:
    async def answer(asked: RecordedRequest, writer: Any) -> bool:
        writer.write(reported.over_http(name, asked.body) if asked.method == "POST" else response(status=405))
        await writer.drain()
        return False

    return answer


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpHub]:
    tmp_path = tmp_path_factory.mktemp("reports")
    write_skill(tmp_path / "skills", "bom", text="\ufeff" + SKILL_MD.format(name="bom", description="Has a mark."))
    crlf = SKILL_MD.format(name="crlf", description="Has other line ends.").replace("\n", "\r\n")
    write_skill(tmp_path / "skills", "crlf", text=crlf)
    sources: dict[str, Any] = {"skills": {"kind": "skill", "skills": [{"path": str(tmp_path / "skills")}]}}
    async with AsyncExitStack() as stack:
        for report, script in {**lists(), "lab": listing(SAY, tool("table", outputSchema=ROWS))}.items():
            sources[source_of(report)] = {"url": await stack.enter_async_context(serving(script))}
        for report, name in STDIO.items():
            sources[source_of(report)] = {"command": sys.executable, "args": ["-S", reported.__file__, name]}
        for report, name in [*HTTP.items(), *((report, name) for report, name, _ in REFUSED)]:
            server = await stack.enter_async_context(serving_bytes(over_http(name)))
            sources[source_of(report)] = {"url": server.url("/mcp")}
        write_sources(tmp_path, sources)
        opened = await stack.enter_async_context(mcp_hub(tmp_path, policy=POLICY, shown="full"))
        assert await opened.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=WITHIN_S)
        yield opened


async def status_of(hub: McpHub, name: str) -> source_pb2.SourceStatus:
    answer = await hub.grpc.registry.ListSources(registry_pb.ListSourcesRequest())
    (status,) = (each for each in answer.sources if each.source == name)
    return status  # type: ignore[no-any-return]


async def answered(hub: McpHub, result: Any, name: str = "say", era: str = ERAS[1]) -> Any:
    """What a client of MCP gets, as it is on the wire."""
    async with hub.client(era) as client:
        answer = await client.call_tool(f"s-lab__{name}", {"result": result})
        return answer.model_dump(by_alias=True, exclude_none=True, mode="json")


@pytest.mark.parametrize(("report", "state", "tools", "words"), LISTS, ids=[each[0] for each in LISTS])
async def test_a_list_as_it_was_reported_offers_its_tools(
    hub: McpHub, report: str, state: int, tools: int, words: str
) -> None:
    status = await status_of(hub, source_of(report))
    assert (status.state, status.tools) == (state, tools), status
    assert words in status.message
    assert await hub.grpc.value(f"{source_of(report)}/say") == {"text": "said"}


async def test_names_beyond_64_characters_are_short_and_lead_back(hub: McpHub) -> None:
    """anthropics/claude-code#19882"""
    async with hub.client(ERAS[1]) as client:
        page = await client.list_tools()
        names = {each.name for each in page.tools}
        while page.next_cursor:
            page = await client.list_tools(cursor=page.next_cursor)
            names |= {each.name for each in page.tools}
        long = {name for name in names if "claude-code-19882__a_tool" in name}
        assert len(long) == 2
        assert max(map(len, names)) <= 64
        for name in long:
            assert not (await client.call_tool(name, {})).is_error


@pytest.mark.parametrize("report", [*STDIO, *HTTP])
async def test_a_connection_as_it_was_reported_carries_calls(hub: McpHub, report: str) -> None:
    for _ in range(2):
        assert await hub.grpc.value(f"{source_of(report)}/say") == {"text": "said"}
    assert (await status_of(hub, source_of(report))).state == READY


@pytest.mark.parametrize(("report", "name", "words"), REFUSED, ids=[each[0] for each in REFUSED])
async def test_a_server_that_cannot_be_understood_says_so(hub: McpHub, report: str, name: str, words: str) -> None:
    status = await status_of(hub, source_of(report))
    assert status.state == DOWN
    assert words in status.message


AUDIO = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}
EMBEDDED = {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "b"}}
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
CONTENT = [
    ("smart-mcp-proxy/mcpproxy-go#368", [IMAGE], [IMAGE]),
    ("NousResearch/hermes-agent#64061", [AUDIO, LINK, EMBEDDED], [AUDIO, LINK, EMBEDDED]),
    ("radareorg/radare2-mcp#26", ["0x000366c0  entry0", "0x1"], [*text("0x000366c0  entry0"), *text("0x1")]),
    ("ElliotPadfield/unpaywall-mcp#4", [{"type": "json", "json": {"doi": "10.1/x"}}], None),
    ("openai/openai-agents-python#1142", [], text("")),
]


@pytest.mark.parametrize(("report", "sent", "shown"), CONTENT, ids=[each[0] for each in CONTENT])
@pytest.mark.parametrize("era", ERAS)
async def test_content_as_it_was_reported_reaches_a_client(
    hub: McpHub, era: str, report: str, sent: Any, shown: Any
) -> None:
    answer = await answered(hub, {"content": sent}, era=era)
    assert not answer["isError"]
    if shown is None:
        assert json.loads(answer["content"][0]["text"]) == sent[0]
    else:
        assert answer["content"] == shown


STRUCTURED = [
    ("ggml-org/llama.cpp#26410", {"accounts": [1, 2], "total": 36}),
    ("anthropics/claude-code#78762", {"id": 17_000_000_000_000_000_001, "other": 9_007_199_254_740_993}),
]


@pytest.mark.parametrize(("report", "value"), STRUCTURED, ids=[each[0] for each in STRUCTURED])
async def test_structure_beside_empty_content_is_exact_and_is_a_text_too(hub: McpHub, report: str, value: Any) -> None:
    made = {"content": [], "structuredContent": value}
    shown = await answered(hub, made)
    assert shown["structuredContent"] == value
    assert json.loads(shown["content"][0]["text"]) == value
    assert await hub.grpc.value("s-lab/say", {"result": made}) == value


ERRORS = [
    ("yamadashy/repomix#833", {"errorMessage": "no such folder"}),
    ("cyanheads/git-mcp-server#40", {"code": -32000, "message": "no such folder", "data": None}),
]


@pytest.mark.parametrize(("report", "structure"), ERRORS, ids=[each[0] for each in ERRORS])
async def test_the_structure_of_an_error_is_not_held_to_the_output_schema(
    hub: McpHub, report: str, structure: Any
) -> None:
    made = {"content": text("no such folder"), "structuredContent": structure, "isError": True}
    shown = await answered(hub, made, "table")
    assert shown["isError"]
    assert "no such folder" in shown["content"][0]["text"]
    assert "structuredContent" not in shown
    assert shown["_meta"]["toolhub/error"]["details"]["structuredContent"] == structure


async def test_a_result_without_content_is_an_error_that_says_so(hub: McpHub) -> None:
    """cloudflare/mcp-server-cloudflare#12"""
    made = {"toolResult": {"content": text("lost")}}
    error = (await hub.grpc.invoke("s-lab/say", {"result": made})).error
    assert error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
    assert "ran, but the response of its server is invalid" in error.message


@pytest.mark.parametrize(
    "name",
    [pytest.param("bom", id="crewAIInc/crewAI#7538"), pytest.param("crlf", id="mohitagw15856/pm-claude-skills#189")],
)
async def test_a_skill_written_on_windows_is_read(hub: McpHub, name: str) -> None:
    read = await hub.grpc.value(f"skills/{name}.read")
    assert read["instructions"].startswith(f"# {name}")


OPEN = {"protocolVersion": ERAS[0], "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
OPENING = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": OPEN}


async def test_a_charset_in_the_content_type_is_accepted(hub: McpHub) -> None:
    """grafana/mcp-grafana#215"""
    sent = {"accept": "application/json, text/event-stream", "content-type": "application/json; charset=utf-8"}
    async with httpx2.AsyncClient() as http:
        answer = await http.post(hub.url, content=json.dumps(OPENING), headers=sent)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("era", ERAS)
async def test_lists_that_clients_ask_for_unasked_are_answered(hub: McpHub, era: str) -> None:
    """upstash/context7#2527"""
    async with wire(hub.url, era) as client:
        for method in ("prompts/list", "resources/list", "resources/templates/list"):
            assert isinstance(await client.result(method), dict)


async def test_a_line_that_is_no_json_and_other_line_ends_do_not_end_the_bridge(hub: McpHub, tmp_path: Path) -> None:
    """jonnyzzz/mcp-steroid#461, stackql/stackql#668, modelcontextprotocol/python-sdk#1311"""
    ping = json.dumps({"jsonrpc": "2.0", "id": 6, "method": "ping"})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    environment = {**clean, "HOME": str(tmp_path), "TOOLHUB_LOGS_LEVEL": "error", "TOOLHUB_MCP_URL": hub.url}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolhub_service", "mcp", "--data-dir", str(tmp_path / "hub")),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(
        program.communicate(f"this is no JSON\r\n{ping}\r\n{json.dumps(OPENING)}\r\n".encode()), WITHIN_S
    )
    answers = {message.get("id"): message for message in map(json.loads, said.splitlines())}
    assert answers[None]["error"]["code"] == -32700
    assert answers[6]["result"] == {}, answers
    assert "protocolVersion" in answers[7]["result"]
