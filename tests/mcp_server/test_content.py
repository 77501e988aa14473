"""What an upstream MCP server answers, as clients get it: names, blocks, images too large for a value."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceLink
from structlog.testing import capture_logs

from tests.conformance.everything import served
from tests.mcp_server.mcp_hub import ERAS, McpHub, entered_as, mcp_hub
from tests.rpc.real_servers import WITHIN_S, write_sources
from toolhub_service.domain.call import Principal, Role

POLICY = """
extends: none
grants: [{principals: [local], capabilities: ["mcp:*"]}]
roles: [{principals: [local], roles: [agent]}]
"""
SCREEN, FILM = b"s" * 100_000, b"f" * 600_000
MORE = {
    "screen": [
        {"type": "text", "text": "Two views:"},
        {"type": "image", "data": base64.b64encode(SCREEN).decode(), "mimeType": "image/png"},
        {"type": "image", "data": base64.b64encode(FILM).decode(), "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
    ],
    "search_tools": [{"type": "text", "text": "not the hub's own"}],
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpHub]:
    tmp_path = tmp_path_factory.mktemp("hub")
    async with served(MORE) as first, served() as second:
        write_sources(tmp_path, {"one": {"url": first}, "two": {"url": second}, "three": {"url": second}})
        chosen = {"logs": {"level": "warning"}}
        wanted: dict[str, Any] = {"unprefixed_sources": ["one", "two"], "full_max_tokens": 100_000}
        async with mcp_hub(tmp_path, policy=POLICY, settings=chosen, **wanted) as opened:
            assert await opened.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=WITHIN_S)
            yield opened


async def test_names_without_a_prefix_are_those_that_one_source_alone_has(hub: McpHub) -> None:
    with capture_logs() as logs:
        async with hub.client(ERAS[1]) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert not (await client.call_tool("one__test_simple_text", {})).is_error
            assert (await client.call_tool("test_simple_text", {})).is_error
    assert {"screen", "one__search_tools", "one__test_simple_text", "two__test_simple_text"} <= names
    assert "three__test_simple_text" in names
    assert "test_simple_text" not in names
    (clash,) = [entry for entry in logs if entry["event"] == "mcp_names_clash"]
    assert "one/search_tools" in clash["tools"]


async def test_blocks_reach_the_client_as_the_server_sent_them_and_what_is_too_large_as_a_link(hub: McpHub) -> None:
    for era in ERAS:
        async with hub.client(era) as client:
            result = await client.call_tool("screen", {})
            assert result.structured_content is None
            text, screen, link, kept = [block.model_dump(exclude_none=True) for block in result.content]
            assert (text["type"], text["text"]) == ("text", "Two views:")
            assert (screen["type"], base64.b64decode(screen["data"])) == ("image", SCREEN)
            assert (link["type"], link["uri"]) == ("resource_link", "file:///a")
            assert (kept["type"], kept["size"]) == ("resource_link", len(FILM))


async def test_an_operator_who_looks_at_a_job_gets_nothing_out_of_its_callers_artifacts(hub: McpHub) -> None:
    who = [Principal("local")]
    async with entered_as(hub, who) as entered, entered.client(ERAS[1]) as client:
        begun = await client.call_tool("job_start", {"name": "screen"})
        job = {"job_id": begun.structured_content["job_id"], "wait_s": 50}
        kinds = ["text", "image", "resource_link", "resource_link"]
        assert [block.type for block in (await client.call_tool("job_result", job)).content] == kinds
        who.append(Principal("boss", frozenset({Role.AGENT, Role.OPERATOR})))
        seen = (await client.call_tool("job_result", job)).content
        assert [block.type for block in seen] == ["text", "resource_link", "resource_link", "resource_link"]
        links = [block for block in seen if isinstance(block, ResourceLink) and block.uri != "file:///a"]
        assert len(links) == 2
        for link in links:
            with pytest.raises(MCPError):
                await client.read_resource(link.uri)
