"""Sources as operators and as agents see them, read anew when asked, and guarded against tools slipped in by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.fakes.sources import ScriptedSources, a_source
from tests.hub import RunningHub, running_hub
from tests.rpc.statuses import failed
from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import source_pb2
from toolhub.v1 import tool_service_pb2 as tools_pb
from toolhub_service.domain.source import SourceState


@pytest.fixture
async def desk() -> ScriptedSources:
    return ScriptedSources([a_source(), a_source("files", state=SourceState.DOWN, reason="exited with 1")])


@pytest.fixture
async def sourced(tmp_path: Path, desk: ScriptedSources) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path) as running:
        running.hub.server.registry.sources = desk
        running.hub.server.tools.discovery.sources = desk.statuses
        yield running


async def test_an_operator_sees_state_and_output_of_a_source(sourced: RunningHub) -> None:
    github, files = (await sourced.registry.ListSources(pb.ListSourcesRequest())).sources
    assert github.refresh_duration.ToMicroseconds() == 42_500
    assert github.breaker == source_pb2.BREAKER_STATE_HALF_OPEN
    assert github.trust == source_pb2.SOURCE_TRUST_APPROVAL
    assert (github.server, github.protocol) == ("code host 1.2", "2026-07-28")
    assert github.endpoint == "https://mcp.example.com/mcp"
    assert list(github.diagnostics) == ["stderr: starting", "stderr: careful \x1b[2J", "connections: 1 in 1 attempts"]
    assert (files.state, files.message) == (source_pb2.SOURCE_STATE_DOWN, "exited with 1")
    (snapshot,) = [await sourced.registry.GetSnapshot(pb.GetSnapshotRequest())]
    assert list(snapshot.sources) == [github, files]


@pytest.mark.promise("sources.down-is-reported")
async def test_an_agent_sees_that_a_source_is_down_and_nothing_of_its_address(sourced: RunningHub) -> None:
    listed = await sourced.stub.ListTools(tools_pb.ListToolsRequest())
    found = await sourced.stub.SearchTools(tools_pb.SearchToolsRequest(query="read"))
    for answer in (listed, found):
        (files,) = answer.sources
        assert (files.source, files.message) == ("files", "exited with 1")
        assert not files.endpoint
        assert not files.server
        assert not files.diagnostics


async def test_named_sources_are_read_anew(sourced: RunningHub, desk: ScriptedSources) -> None:
    desk.failing = {"github"}
    answer = await sourced.registry.RefreshSources(pb.RefreshSourcesRequest(sources=["github"]))
    (github,) = answer.sources
    assert (github.source, github.state) == ("github", source_pb2.SOURCE_STATE_DOWN)
    assert answer.revision == sourced.hub.toolbox.catalog.revision
    assert len((await sourced.registry.RefreshSources(pb.RefreshSourcesRequest())).sources) == 2


async def test_unknown_source_cannot_be_read(sourced: RunningHub, hub: RunningHub) -> None:
    for running in (sourced, hub):
        failure = await failed(running.registry.RefreshSources(pb.RefreshSourcesRequest(sources=["nowhere"])))
        assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "SOURCE_NOT_FOUND")


async def test_hub_without_remote_sources_has_nothing_to_read(hub: RunningHub) -> None:
    answer = await hub.registry.RefreshSources(pb.RefreshSourcesRequest())
    assert {status.source for status in answer.sources} <= {"core"}
    assert answer.revision
