"""A hub over hostile servers, and what its reports of them must never contain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fakes.mcp_servers.hostile import HostileServer, hostile_http, stdio_command
from tests.hub import RunningHub, running_hub
from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import result_pb2, source_pb2, tool_pb2, tool_service_pb2
from toolhub_service.guards.foreign_text import is_hidden
from toolhub_service.registry.discovery.sources import Sources

POLICY = """
extends: none
grants: [{principals: ["*"], capabilities: ["*", "mcp:*"]}]
roles: [{principals: [local], roles: [agent, operator, approver, auditor]}]
"""
MESSAGE_MAX_CHARS = 5_000
DETAILS_MAX_CHARS = 100_000
"""Of the blocks and structured content of a failure that a tool reports."""
ANSWER_MAX_BYTES = 1_100_000
"""1 MiB of result, and what stands around it."""
SETTLED_S = 60.0
STAGE = "HOSTILE_STAGE"
"""In the environment of every program of a harness, and of what these start: its folder."""
READY, PARTIAL, DOWN = (source_pb2.SOURCE_STATE_READY, source_pb2.SOURCE_STATE_PARTIAL, source_pb2.SOURCE_STATE_DOWN)
ACTIVE, QUARANTINED = tool_pb2.TOOL_STATE_ACTIVE, tool_pb2.TOOL_STATE_QUARANTINED
UNAVAILABLE = tool_pb2.TOOL_STATE_UNAVAILABLE


class HostileHarness:
    """A hub and its sources; over HTTP the servers are at hand, over stdio what some say stands in a file."""

    def __init__(self, hub: RunningHub, servers: Mapping[str, HostileServer], folder: Path) -> None:
        self.hub = hub
        self.servers = servers
        self._folder = folder

    async def read(self, *names: str) -> list[source_pb2.SourceStatus]:
        """Read these anew."""
        answer = await self.hub.registry.RefreshSources(pb.RefreshSourcesRequest(sources=names), timeout=SETTLED_S)
        return [status for status in answer.sources if status.source in names or not names]

    async def become(self, name: str, *words: str) -> source_pb2.SourceStatus:
        """Have a server over stdio be another one from now on, and read it: how it fares then."""
        (self._folder / f"{name}.words").write_text(" ".join(words))
        (status,) = await self.read(name)
        return status

    async def status(self, name: str) -> source_pb2.SourceStatus:
        answer: pb.ListSourcesResponse = await self.hub.registry.ListSources(pb.ListSourcesRequest())
        (found,) = [status for status in answer.sources if status.source == name]
        return found

    async def tools(self, source: str) -> dict[str, tool_pb2.ToolSpec]:
        """By their own names, in any state: of this source alone, for others have thousands."""
        wanted = tool_pb2.ToolFilter(sources=[source], states=[ACTIVE, UNAVAILABLE, QUARANTINED])
        asked = tool_service_pb2.ListToolsRequest(filter=wanted, page_size=1_000, view=tool_pb2.TOOL_VIEW_BASIC)
        found: dict[str, tool_pb2.ToolSpec] = {}
        while True:
            page = await self.hub.stub.ListTools(asked)
            found |= {tool.name.partition("/")[2]: tool for tool in page.tools}
            if not page.next_page_token:
                return found
            asked.page_token = page.next_page_token

    async def pins(self, source: str, tool: str = "", **fields: Any) -> list[Any]:
        asked = pb.ListPinsRequest(source=source, tool=tool, view=tool_pb2.TOOL_VIEW_FULL, **fields)
        return list((await self.hub.registry.ListPins(asked)).pins)

    async def call(self, tool: str, args: Mapping[str, Any] | None = None, within_s: float = 20.0) -> Any:
        result = await self.hub.invoke(tool, args, budget={"timeout_s": within_s})
        assert_fit(result)
        return result


@asynccontextmanager
async def hostile_hub(
    folder: Path, sources: Mapping[str, Mapping[str, Any]], *, reading_timeout_s: float = 60.0, **settings: Any
) -> AsyncIterator[HostileHarness]:
    """`sources` as in sources.yaml; `{"hostile": (words), "over": "http" | "stdio", "generation": …}` stand for a
    server. Over stdio, `become` makes another one of it where it `may_become` one."""
    async with AsyncExitStack() as stack:
        servers: dict[str, HostileServer] = {}
        entries: dict[str, dict[str, Any]] = {}
        for name, asked in sources.items():
            entry = {"refresh_s": 3_600.0, "connect_timeout_s": 10.0} | dict(asked)
            words, over, generation = entry.pop("hostile", ()), entry.pop("over", ""), entry.pop("generation", "both")
            if over == "http":
                servers[name], entry["url"] = await stack.enter_async_context(
                    hostile_http(*words, generation=generation)
                )
            elif over == "stdio":
                control = folder / f"{name}.words"
                control.write_text(" ".join(words))
                control_file = str(control) if entry.pop("may_become", False) else ""
                entry["command"], *entry["args"] = stdio_command(*words, generation=generation, control=control_file)
                entry["env"] = {STAGE: str(folder)}
            entries[name] = entry
        (folder / "hub").mkdir()
        (folder / "hub" / "sources.yaml").write_text(json.dumps({"sources": entries}))
        terms = Sources.__init__.__kwdefaults__
        stack.enter_context(mock.patch.dict(terms, timeout_s=reading_timeout_s))
        budget = {"breaker_min_calls": 1_000}
        hub = await stack.enter_async_context(
            running_hub(folder, policy=POLICY, settings={"budget": budget} | settings)
        )
        assert await hub.hub.sourcing.sources.wait_until_tried(timeout_s=SETTLED_S)
        yield HostileHarness(hub, servers, folder)


def assert_fit(result: result_pb2.ToolResult) -> None:
    """Whatever a server does, the hub's own answer is bounded, typed, and shows what it says."""
    assert result.ByteSize() < ANSWER_MAX_BYTES
    if not result.ok:
        assert result.error.kind
        assert_shown(result.error.message, MESSAGE_MAX_CHARS)
        assert_shown(json.dumps(str(result.error.details), ensure_ascii=False), DETAILS_MAX_CHARS)
        assert result.error.ByteSize() < 2 * DETAILS_MAX_CHARS


def assert_shown(text: str, max_chars: int) -> None:
    """Bounded, and nothing in it is hidden from who reads it."""
    assert len(text) <= max_chars
    assert [char for char in text if is_hidden(char)] == [], text[:500]


def assert_status_fit(statuses: Iterable[source_pb2.SourceStatus]) -> None:
    for status in statuses:
        assert_shown(status.message, 500)
        assert_shown(status.server, 200)
        assert status.ByteSize() < 100_000
        assert bool(status.message) == (status.state != READY), status
