"""Two tenants at the MCP endpoint: what the one has is for the other what never was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from tests.mcp_server.mcp_hub import ERAS, WITH_KEYS, HeldTool, keys_of, mcp_hub
from tests.rpc.sample_tools import Echo
from toolhub_service.mcp_server.convert_calls import ARTIFACT_URI
from toolhub_service.runtime.artifacts.uploads import ArtifactHeader

POLICY = """
extends: none
tenants:
  - {name: acme, principals: ["acme-*"], sources: [custom]}
  - {name: globex, principals: ["globex-*"]}
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
roles: [{principals: [globex-boss], roles: [agent, operator, approver, auditor]}]
"""
NEVER = "job_" + "0" * 32


async def _bytes() -> AsyncIterator[bytes]:
    yield b"acme's"


async def words_of(client: Any, name: str, args: dict[str, Any]) -> str:
    """What a call is refused with."""
    result = await client.call_tool(name, args)
    assert result.is_error, name
    return str(result.content[0].text)


@pytest.mark.promise("tenants.apart")
@pytest.mark.parametrize("era", ERAS)
async def test_nothing_of_another_tenant_is_listed_found_read_or_called(tmp_path: Path, era: str) -> None:
    tools = [HeldTool(), Echo()]
    async with mcp_hub(tmp_path, policy=POLICY, settings=WITH_KEYS, tools=tools, shown="full") as hub:
        keys = keys_of(hub, "acme-bot", "globex-boss")
        async with hub.client(era, keys["acme-bot"]) as acme, hub.client(era, keys["globex-boss"]) as globex:
            own = {tool.name for tool in (await acme.list_tools()).tools}
            others = {tool.name for tool in (await globex.list_tools()).tools}
            assert own - others == {"test__text_echo", "held__work_on"}
            started = (await acme.call_tool("job_start", {"name": "held__work_on"})).structured_content
            job_id = str(started["job_id"])
            for name in ("job_status", "job_result", "job_cancel"):
                foreign = await words_of(globex, name, {"job_id": job_id})
                assert foreign.replace(job_id, NEVER) == await words_of(globex, name, {"job_id": NEVER}), name
            for name, args in (("test__text_echo", {"text": "a"}), ("describe_tool", {"name": "test__text_echo"})):
                assert "test__text_echo" not in (await words_of(globex, name, args)).partition("Did you mean")[2]
            found = (await globex.call_tool("search_tools", {"query": "return the text"})).structured_content
            assert not [each for each in found["tools"] if each["name"] in own - others]
            artifact = await hub.grpc.hub.mcp.engine.artifacts.write("acme-bot", ArtifactHeader(name="a"), _bytes())
            assert (await acme.read_resource(ARTIFACT_URI + artifact.artifact_id)).contents
            refusals = []
            for artifact_id in (artifact.artifact_id, "art_" + "0" * 32):
                with pytest.raises(MCPError) as refused:
                    await globex.read_resource(ARTIFACT_URI + artifact_id)
                refusals.append(str(refused.value))
            assert refusals[0] == refusals[1]
