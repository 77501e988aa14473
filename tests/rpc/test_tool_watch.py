"""WatchTools: the revision at once, then each change; a slow watcher gets fewer messages, never more than it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, running_hub
from tests.rpc.statuses import failed, failed_stream
from tests.rpc.test_registry import a_tool
from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import tool_pb2
from toolhub.v1.tool_service_pb2 import ToolServiceWatchToolsResponse
from toolhub_client import connect
from toolhub_service.domain.call import Principal
from toolhub_service.domain.tool import ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.transport.convert.tool import to_spec
from toolhub_service.transport.tool_watches import CHANGES_MAX, ToolWatches

OPERATOR = Principal("boss")
ADDED, CHANGED, REMOVED = pb.TOOL_CHANGE_TYPE_ADDED, pb.TOOL_CHANGE_TYPE_CHANGED, pb.TOOL_CHANGE_TYPE_REMOVED


@asynccontextmanager
async def watching(hub: RunningHub, **fields: Any) -> AsyncIterator[Any]:
    watch = hub.registry.WatchTools(pb.WatchToolsRequest(**fields), timeout=CALL_TIMEOUT_S)
    try:
        yield watch
    finally:
        watch.cancel()


def changes_of(message: pb.WatchToolsResponse | ToolServiceWatchToolsResponse) -> list[tuple[int, str]]:
    return [(change.type, change.name) for change in message.changes]


async def register(hub: RunningHub, *names: str, **fields: Any) -> None:
    tools = [to_spec(a_tool(name, **fields)) for name in names]
    assert not hub.hub.toolbox.catalog.register_all(tools, replace=True)


async def test_the_first_message_has_the_revision_and_whether_the_callers_is_current(hub: RunningHub) -> None:
    revision = (await hub.registry.GetSnapshot(pb.GetSnapshotRequest())).revision
    for known, reset in (("", True), ("older", True), (revision, False)):
        async with watching(hub, known_revision=known) as watch:
            first = await watch.read()
            assert (first.revision, changes_of(first), first.reset) == (revision, [], reset)


async def test_every_change_is_reported_with_the_tool_as_it_now_stands(hub: RunningHub) -> None:
    async with watching(hub) as watch:
        await watch.read()
        await register(hub, "acme/b", "acme/a")
        added = await watch.read()
        assert changes_of(added) == [(ADDED, "acme/a"), (ADDED, "acme/b")], "ordered by name"
        assert added.changes[0].tool.description
        assert not added.changes[0].tool.input_schema_json, "BASIC unless asked for otherwise"
        hub.hub.toolbox.catalog.set_state("acme/a", ToolState.QUARANTINED, "drifted")
        changed = await watch.read()
        assert changes_of(changed) == [(CHANGED, "acme/a")]
        assert changed.changes[0].tool.state == tool_pb2.TOOL_STATE_QUARANTINED
        answer = await hub.registry.UnregisterTool(pb.UnregisterToolRequest(name="acme/b"))
        removed = await watch.read()
        assert changes_of(removed) == [(REMOVED, "acme/b")]
        assert not removed.changes[0].HasField("tool")
        assert removed.revision == answer.revision


async def test_full_view_has_schemas(hub: RunningHub) -> None:
    async with watching(hub, view=tool_pb2.TOOL_VIEW_FULL) as watch:
        await watch.read()
        await register(hub, "acme/a")
        assert (await watch.read()).changes[0].tool.input_schema_json


async def test_watch_counts_as_a_watch_and_leaves_room_when_it_ends(tmp_path: Path) -> None:
    settings = {"server": {"max_watches": 1, "max_in_flight": 1}}
    async with running_hub(tmp_path, settings=settings) as hub, watching(hub) as watch:
        await watch.read()
        second = hub.registry.WatchTools(pb.WatchToolsRequest(), timeout=CALL_TIMEOUT_S)
        failure = await failed_stream(second)
        assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        await hub.registry.ListSources(pb.ListSourcesRequest())  # the room of calls is another
        assert hub.hub.server.registry.news.watchers == 1


async def test_watch_ends_with_a_time_to_come_again_when_the_hub_leaves(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        watch = hub.registry.WatchTools(pb.WatchToolsRequest(), timeout=CALL_TIMEOUT_S)
        messages = aiter(watch)
        await anext(messages)
        leaving = asyncio.ensure_future(hub.hub.server.drain(0, 5))
        failure = await failed(anext(messages))
        assert (failure.code, failure.reason, failure.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.5)
        assert failure.retry_after_s
        await leaving


MINE = """
extends: none
grants:
  - {principals: [local], capabilities: [%s]}
roles:
  - {principals: [local], roles: [agent]}
"""


@pytest.mark.promise("watch.tools")
async def test_an_agent_watches_its_visible_tools_and_resumes_from_a_token(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=MINE % '"read:fs", "mcp:acme"') as hub, connect(hub.address) as client:
        messages = client.watch_tools(names=["acme/*"])
        first = await anext(messages)
        assert (first.reset, changes_of(first)) == (True, [])
        await register(hub, "acme/a", capabilities=["mcp:acme"])
        added = await anext(messages)
        assert (changes_of(added), added.reset) == ([(ADDED, "acme/a")], False)
        hub.hub.toolbox.catalog.set_state("acme/a", ToolState.QUARANTINED, "drifted")
        assert changes_of(await anext(messages)) == [(REMOVED, "acme/a")], (
            "what waits for an operator is shown to nobody else"
        )
        await register(hub, "acme/secret", capabilities=["mcp:other"])
        hub.hub.toolbox.catalog.set_state("acme/a", ToolState.ACTIVE)
        last = await anext(messages)
        assert changes_of(last) == [(ADDED, "acme/a")], "and nothing of what policy would never allow"
        resumed = client.watch_tools(names=["acme/*"], resume_token=last.resume_token)
        assert not (await anext(resumed)).reset
        assert hub.hub.policy.replace(MINE % '"read:fs"').applied
        assert (await anext(messages)).reset, "under another policy other tools may be seen"
        assert (await anext(client.watch_tools(resume_token=last.resume_token))).reset


class TestSlowWatcher:
    """Without a network between, so that nothing is buffered there."""

    @pytest.fixture
    def catalog(self) -> ToolCatalog:
        return ToolCatalog(check_schema=lambda _: None)

    async def test_a_watch_gets_several_changes_of_a_tool_as_one(self, catalog: ToolCatalog) -> None:
        catalog.register_all([to_spec(a_tool("acme/old")), to_spec(a_tool("acme/gone"))])
        messages = ToolWatches(catalog).messages(pb.WatchToolsRequest(), OPERATOR, full=False)
        await anext(messages)
        catalog.register(to_spec(a_tool("acme/new")))
        catalog.set_state("acme/new", ToolState.UNAVAILABLE, "down")
        catalog.register(to_spec(a_tool("acme/came-and-went")))
        catalog.unregister("acme/came-and-went")
        catalog.unregister("acme/gone")
        catalog.unregister("acme/old")
        catalog.register(to_spec(a_tool("acme/old")))
        message = await anext(messages)
        assert changes_of(message) == [(REMOVED, "acme/gone"), (ADDED, "acme/new"), (CHANGED, "acme/old")]
        assert message.changes[1].tool.state == tool_pb2.TOOL_STATE_UNAVAILABLE
        assert message.revision == catalog.revision
        await messages.aclose()

    @pytest.mark.promise("catalog.watch-bounded")
    async def test_a_watch_asks_for_a_new_list_when_it_lags_too_far_behind(self, catalog: ToolCatalog) -> None:
        news = ToolWatches(catalog)
        messages = news.messages(pb.WatchToolsRequest(), OPERATOR, full=False)
        await anext(messages)
        catalog.register_all(to_spec(a_tool(f"acme/t{number}")) for number in range(CHANGES_MAX + 1))
        message = await anext(messages)
        assert (message.reset, changes_of(message), message.revision) == (True, [], catalog.revision)
        catalog.unregister("acme/t0")
        assert changes_of(await anext(messages)) == [(REMOVED, "acme/t0")], "from there on it goes on"
        await messages.aclose()
        assert news.watchers == 0

    async def test_a_watch_asks_for_a_new_list_when_a_message_would_be_too_large(self, catalog: ToolCatalog) -> None:
        messages = ToolWatches(catalog).messages(pb.WatchToolsRequest(), OPERATOR, full=False)
        await anext(messages)
        large = a_tool("acme/large")
        large.description = "long " * 600_000
        catalog.register(to_spec(large))
        assert (await anext(messages)).reset
        await messages.aclose()
