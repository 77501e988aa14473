"""Results of an upstream MCP server as clients of the hub get them, over MCP in both versions and over gRPC."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub
from tests.rpc.real_servers import WITHIN_S, write_sources
from toolhub.v1 import error_pb2

POLICY = """
extends: none
grants: [{principals: [local], capabilities: ["mcp:*"]}]
roles: [{principals: [local], roles: [agent, operator]}]
"""
ROWS = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
ICON = {"src": "https://example.com/i.png", "mimeType": "image/png"}
UI = {"ui": {"resourceUri": "ui://chart/view"}}
SHOWN = tool(
    "shown",
    title="Show a chart",
    icons=[ICON, {"src": "javascript:alert(1)"}],
    annotations={"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False},
    _meta={**UI, "toolhub/error": "forged", "io.modelcontextprotocol/x": 1},
)


class Answering(Script):
    """Its tools answer what a call says under `result`."""

    async def _call(self, params: dict[str, Any], send: Any) -> dict[str, Any]:
        return dict(params["arguments"]["result"])


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/png"}


FIGURES = [text("Figure 1:", annotations={"audience": ["user"]}), image(b"one"), text("Figure 2:"), image(b"two")]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpHub]:
    tmp_path = tmp_path_factory.mktemp("hub")
    async with serving(Answering(pages=[[tool("say"), tool("table", outputSchema=ROWS), SHOWN]])) as url:
        told = {"shown": {"idempotent": False}}
        sources: dict[str, Any] = {
            "lab": {"url": url, "tools": told},
            "wide": {"url": url, "mcp_text_max_bytes": 200_000},
        }
        write_sources(tmp_path, sources)
        async with mcp_hub(tmp_path, policy=POLICY) as opened:
            assert await opened.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=WITHIN_S)
            yield opened


async def answered(hub: McpHub, result: Any, name: str = "lab__say", era: str = ERAS[1]) -> Any:
    """What a client gets, as it is on the wire."""
    async with hub.client(era) as client:
        answer = await client.call_tool(name, {"result": result})
        return answer.model_dump(by_alias=True, exclude_none=True, mode="json")


async def test_blocks_keep_their_order_and_annotations(hub: McpHub) -> None:
    for era in ERAS:
        shown = await answered(hub, {"content": FIGURES}, era=era)
        assert shown["content"] == FIGURES
        assert "structuredContent" not in shown
    value = await hub.grpc.value("lab/say", {"result": {"content": FIGURES}})
    assert value == {"text": "Figure 1:\nFigure 2:", "content": FIGURES}


async def test_several_texts_stay_several_blocks_and_are_one_text_over_grpc(hub: McpHub) -> None:
    lines = [text("one"), text("two")]
    assert (await answered(hub, {"content": lines}))["content"] == lines
    assert await hub.grpc.value("lab/say", {"result": {"content": lines}}) == {"text": "one\ntwo"}


async def test_what_stands_beside_structured_content_reaches_the_client(hub: McpHub) -> None:
    made = {"content": [text("A chart"), image(b"png" * 9_000)], "structuredContent": {"points": 3}}
    shown = await answered(hub, {**made, "_meta": {**UI, "toolhub/call_id": "forged"}})
    assert shown["structuredContent"] == {"points": 3}
    assert shown["content"] == made["content"]
    assert shown["_meta"]["ui"] == UI["ui"]
    assert shown["_meta"]["toolhub/call_id"] != "forged"
    assert await hub.grpc.value("lab/say", {"result": made}) == {"points": 3}


async def test_a_job_keeps_the_blocks(hub: McpHub) -> None:
    async with hub.client(ERAS[1]) as client:
        begun: Any = await client.call_tool(
            "job_start", {"name": "lab__say", "arguments": {"result": {"content": FIGURES}}}
        )
        job = {"job_id": begun.structured_content["job_id"], "wait_s": 50}
        over = await client.call_tool("job_result", job)
    assert [block.type for block in over.content] == ["text", "image", "text", "image"]


ERROR = {"code": "RATE_LIMITED", "retry_after": 30}


async def test_an_error_keeps_its_structured_content_and_its_blocks(hub: McpHub) -> None:
    made = {"content": [text("compile error"), image(b"png")], "structuredContent": ERROR, "isError": True}
    for era in ERAS:
        shown = await answered(hub, made, era=era)
        assert shown["isError"]
        assert shown["structuredContent"] == ERROR
        assert "compile error" in shown["content"][0]["text"]
        assert shown["content"][1:] == made["content"]
        assert shown["_meta"]["toolhub/error"]["kind"] == "UPSTREAM_ERROR"
    error = (await hub.grpc.invoke("lab/say", {"result": made})).error
    details = MessageToDict(error.details)
    assert (error.kind, details["structuredContent"]) == (error_pb2.ERROR_KIND_UPSTREAM_ERROR, ERROR)
    assert [block["type"] for block in details["content"]] == ["text", "image"]


async def test_an_error_without_a_text_says_its_structured_content(hub: McpHub) -> None:
    shown = await answered(hub, {"content": [], "structuredContent": ERROR, "isError": True})
    assert shown["structuredContent"] == ERROR
    assert '"code":"RATE_LIMITED"' in shown["content"][0]["text"]


async def test_an_error_that_its_tools_schema_does_not_describe_stands_beside(hub: McpHub) -> None:
    shown = await answered(hub, {"content": [], "structuredContent": ERROR, "isError": True}, "lab__table")
    assert "structuredContent" not in shown
    assert shown["_meta"]["toolhub/error"]["details"]["structuredContent"] == ERROR


async def test_a_secret_in_an_error_is_hidden_wherever_it_stands(hub: McpHub) -> None:
    secret = "password=hunter2-canary"
    made = {"content": [text("a", x=secret), text(secret)], "structuredContent": {"why": secret}, "isError": True}
    assert "hunter2-canary" not in json.dumps(await answered(hub, made))
    assert "hunter2-canary" not in str((await hub.grpc.invoke("lab/say", {"result": made})).error)


async def test_json_text_is_taken_where_structured_content_is_declared(hub: McpHub) -> None:
    made = {"content": [text('{"rows": [1, 2]}')]}
    assert await hub.grpc.value("lab/table", {"result": made}) == {"rows": [1, 2]}
    assert (await answered(hub, made, "lab__table"))["structuredContent"] == {"rows": [1, 2]}


async def test_another_text_is_kept_in_the_error(hub: McpHub) -> None:
    for words in ("no rows today", '{"columns": []}'):
        error = (await hub.grpc.invoke("lab/table", {"result": {"content": [text(words)]}})).error
        assert error.kind == error_pb2.ERROR_KIND_OUTPUT_SCHEMA_INVALID
        assert "sent no structuredContent" in error.message
        assert words in error.message


LONG = "word " * 100_000


@pytest.mark.parametrize(
    "result",
    [{"content": [text(LONG)]}, {"content": [text("Short."), image(b"png"), text(LONG)]}],
    ids=["text", "more"],
)
async def test_a_long_text_is_cut_and_the_whole_is_a_resource(hub: McpHub, result: dict[str, Any]) -> None:
    async with hub.client(ERAS[1]) as client:
        shown: Any = await client.call_tool("lab__say", {"result": result})
        *blocks, cut, link = shown.content
        assert len(blocks) == len(result["content"]) - 1
        assert 60_000 < len(cut.text) < 66_000
        assert link.uri in cut.text
        read: Any = await client.read_resource(link.uri)
        assert LONG in json.loads(read.contents[0].text)["content"][-1]["text"]
    assert len(json.dumps(await hub.grpc.value("lab/say", {"result": result}))) > 500_000


async def test_a_long_structure_is_cut_and_a_source_may_be_shown_more_of(hub: McpHub) -> None:
    made = {"content": [], "structuredContent": {"text": "x" * 100_000}}
    shown = await answered(hub, made)
    assert len(json.dumps(shown["structuredContent"])) <= 65_536
    assert shown["content"][-1]["type"] == "resource_link"
    whole = await answered(hub, made, "wide__say")
    assert whole["structuredContent"] == made["structuredContent"]
    assert len((await answered(hub, {"content": [text("x" * 199_000)]}, "wide__say"))["content"][0]["text"]) == 199_000


async def test_title_icons_meta_and_hints_of_a_tool_reach_the_client(hub: McpHub) -> None:
    for era in ERAS:
        async with hub.client(era) as client:
            tools = {each.name: each for each in (await client.list_tools()).tools}
        shown = tools["lab__shown"].model_dump(by_alias=True, exclude_none=True, mode="json")
        assert (shown["title"], shown["icons"], shown["_meta"]) == ("Show a chart", [ICON], UI)
        hints = shown["annotations"]
        assert (hints["readOnlyHint"], hints["idempotentHint"]) == (True, False), "of the latter the operator says no"
        assert tools["lab__say"].title == "lab/say"
    spec = hub.grpc.hub.toolbox.catalog.get("lab/shown")
    assert spec is not None
    assert not spec.annotations.read_only, "the hub itself does not believe it"
