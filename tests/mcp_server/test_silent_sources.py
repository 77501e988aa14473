"""A source that is down, as MCP clients learn of it: by the names that they have for tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import ERAS, McpHub, mcp_hub

SOURCES = """
sources:
  docs:
    url: http://127.0.0.1:1/mcp
  attic:
    command: no-such-program
    enabled: false
"""

# Who may not call tools of a source does not learn that it is down.
POLICY = OPEN_POLICY.replace("danger:destructive", "danger:destructive, mcp:docs")


@pytest.fixture
async def down(tmp_path: Path) -> AsyncIterator[McpHub]:
    file = tmp_path / "sources.yaml"
    file.write_text(SOURCES)
    async with mcp_hub(tmp_path, policy=POLICY, settings={"sources": {"file": str(file)}}) as hub:
        assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        yield hub


def told(result: Any) -> str:
    assert result.is_error
    (block,) = result.content
    return str(block.text)


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_of_a_source_that_is_down_is_unavailable_under_its_own_name(down: McpHub, era: str) -> None:
    async with down.client(era) as client:
        for name, arguments in (
            ("docs__list_dir", {}),
            ("call_tool", {"name": "docs__list_dir"}),
            ("describe_tool", {"name": "docs__list_dir"}),
        ):
            text = told(await client.call_tool(name, arguments))
            assert text.startswith("TOOL_UNAVAILABLE: docs__list_dir cannot be used now, because its source")
            assert "It refuses connections" in text
            assert "docs/list_dir" not in text


async def test_names_that_mean_nothing_lead_to_tools_of_this_entrance(down: McpHub) -> None:
    async with down.client(ERAS[1]) as client:
        for name in ("attic__anything", "zzz_qqq"):
            text = told(await client.call_tool(name, {}))
            assert text.startswith("TOOL_NOT_FOUND: There is no tool of this name.")
            assert "toolhub tools search" not in text
        assert "search_tools" in told(await client.call_tool("zzz_qqq", {}))


async def test_refusals_name_tools_as_the_client_does(down: McpHub) -> None:
    async with down.client(ERAS[1]) as client:
        text = told(await client.call_tool("core__fs_readText", {"path": "../../etc/passwd"}))
        assert "core/fs.readText" not in text


async def test_a_search_is_complete_without_sources_that_are_switched_off(down: McpHub) -> None:
    async with down.client(ERAS[1]) as client:
        found = (await client.call_tool("search_tools", {"query": "list a folder"})).structured_content
        assert found["sourcesNotRead"] == ["docs"]
