"""Programs over MCP: a search that answers functions, and run_program, in either mode that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from tests.mcp_server.test_own_tools import structured
from toolhub_service.domain.event import EventType

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: [read:fs, write:fs]}]
rules:
  - {id: no-copies, tools: [core/fs.copy], effect: DENY, reason: "No copies here."}
  - {id: no-programs, principals: [bob], tools: [core/program.run], effect: DENY, reason: "Not for bob."}
roles: [{principals: [local, bob], roles: [agent]}]
"""
MANY = """
import asyncio, core
for name in inputs["names"]:
    await core.fs_writeText(path=name, text=name * 3)
texts = await asyncio.gather(*[call("core__fs_readText", {"path": name}) for name in inputs["names"]])
[len(each["text"]) for each in texts]
"""
REFUSED = """
try:
    await call("core__fs_copy", {"source": "a", "destination": "b"})
except RuntimeError as error:
    found = error_of(error)
[found["kind"], found["tool"]]
"""


def text_of(result: Any) -> str:
    assert not result.is_error, result
    (content,) = result.content
    return str(content.text)


@pytest.mark.promise("mcpserver.programs")
async def test_a_client_finds_functions_and_runs_a_program_that_calls_them_in_the_nine_steps(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path, policy=POLICY, shown="program") as hub, hub.client(ERAS[1]) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed)[:2] == ["search_tools", "run_program"]
        assert not {"describe_tool", "call_tool"} & set(listed)
        assert listed["run_program"].input_schema["required"] == ["code"]
        stubs = text_of(await client.call_tool("search_tools", {"query": "write a text file", "limit": 3}))
        assert stubs.startswith("# import core\n")
        assert "async def fs_writeText(*, " in stubs
        assert " more fit less well." in stubs
        every = text_of(await client.call_tool("search_tools", {"query": "", "limit": 50}))
        assert "These are all." in every
        assert "fs_copy" not in every  # hidden is absent
        assert "program_run" not in every  # no program runs programs
        ran = structured(await client.call_tool("run_program", {"code": MANY, "inputs": {"names": ["a", "bcd"]}}))
        assert ran["value"] == [3, 9]
        assert [call["tool"] for call in ran["calls"]] == ["core/fs.writeText"] * 2 + ["core/fs.readText"] * 2
        chained = [each.event for each in await hub.grpc.events()]
        events = [event for event in chained if event.type is EventType.TOOL_RESULT]
        (outer,) = [event for event in events if event.tool == "core/program.run"]
        assert {event.tool for event in events} == {"core/program.run", "core/fs.writeText", "core/fs.readText"}
        assert outer.labels["entrance"] == "mcp"
        refused = structured(await client.call_tool("run_program", {"code": REFUSED, "tools": ["*"]}))
        assert refused["value"][0] in {"POLICY_DENIED", "TOOL_NOT_FOUND"}
        few = {"code": 'await call("core__fs_list", {"path": "."})', "tools": ["core__fs_readText"]}
        narrowed = await client.call_tool("run_program", few)
        assert narrowed.is_error
        job = structured(await client.call_tool("job_start", {"name": "run_program", "arguments": {"code": "6 * 7"}}))
        ended = structured(await client.call_tool("job_result", {"job_id": job["job_id"]}))
        assert ended["value"] == 42


async def test_search_mode_has_programs_too_and_who_may_run_none_is_shown_none(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path, policy=POLICY, shown="search") as hub, hub.client(ERAS[0]) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[:4] == ["search_tools", "describe_tool", "call_tool", "run_program"]
        described = structured(await client.call_tool("describe_tool", {"name": "run_program"}))
        assert described["name"] == "run_program"
        assert "tools" in structured(await client.call_tool("search_tools", {"query": "copy"}))
        assert "async def" in text_of(await client.call_tool("search_tools", {"query": "read", "stubs": True}))
        program = {"name": "run_program", "arguments": {"code": "inputs['n'] + 1", "inputs": {"n": 2}}}
        assert structured(await client.call_tool("call_tool", program))["value"] == 3
    denied = POLICY.replace("[bob]", "[local]")
    async with mcp_hub(tmp_path / "b", policy=denied, shown="program") as hub, hub.client(ERAS[1]) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[:3] == ["search_tools", "describe_tool", "call_tool"]
        assert "run_program" not in names
        refused = await client.call_tool("run_program", {"code": "1"})
        assert refused.is_error
        assert refused.meta is not None
        assert refused.meta["toolhub/error"]["kind"] == "TOOL_NOT_FOUND"
