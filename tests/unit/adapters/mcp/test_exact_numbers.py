"""No digit of an integer is lost between a caller and an MCP server, whichever way it goes."""

from __future__ import annotations

import sys

import pytest

from tests.fakes.mcp_servers.hostile import hostile_http, stdio_command
from tests.unit.adapters.mcp.stage import at, linked, soon
from toolhub_service.adapters.mcp.kind import McpTerms, StdioTerms

LARGE = 2**90 + 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_large_integers_arrive_and_come_back_exact(era: str, over: str) -> None:
    async with hostile_http(era=era) as (_, url):
        words = stdio_command(era=era)
        pipe = McpTerms("stage", StdioTerms(sys.executable, tuple(words[1:])))
        async with linked(at(url) if over == "http" else pipe) as link:
            session = await link.session(soon())
            params = {"name": "add", "arguments": {"a": LARGE, "b": 1}}
            result = await session.requests.send("tools/call", params)
            assert result["structuredContent"] == {"sum": LARGE + 1}
