"""Names by which an MCP client may call a tool: the listed one, those of other exports, and the hub's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.mcp_servers.scripted import Script, serving, tool
from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from tests.rpc import real_servers as real
from toolhub_service.registry.export.exported_names import EXPORTED_MAX_CHARS, MCP_MAX_CHARS, plain_name

LONG = "x" * 80
POLICY = OPEN_POLICY.replace("read:fs", '"mcp:*", read:fs')


@pytest.mark.promise("registry.exported-names-resolve")
@pytest.mark.parametrize("era", ERAS)
async def test_a_refusal_of_a_call_by_another_exports_name_says_what_is_wrong(tmp_path: Path, era: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with serving(Script(pages=[[tool(LONG, inputSchema=schema)]])) as url:
        file = real.write_sources(tmp_path, {"acme": {"url": url, "trust": "always"}})
        settings = {"sources": {"file": str(file)}}
        async with mcp_hub(tmp_path, policy=POLICY, settings=settings) as hub, hub.client(era) as client:
            assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
            names = [plain_name(f"acme/{LONG}", size) for size in (MCP_MAX_CHARS, EXPORTED_MAX_CHARS)]
            assert len(set(names)) == 2
            for name in (*names, f"_{names[1]}", f"acme/{LONG}"):
                refused = await client.call_tool(name, {"n": "one"})
                assert refused.meta is not None
                assert refused.meta["toolhub/error"]["kind"] == "INPUT_SCHEMA_INVALID", (name, refused.content)
