"""What calls were for makes their tools easier to find, over the wire, and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import tool_service_pb2 as pb

TOOL = "core/util.hash.sha256Text"
PURPOSE = "fingerprint the quarterly ledger of the archive"


async def search(hub: RunningHub, query: str) -> Any:
    return await hub.stub.SearchTools(pb.SearchToolsRequest(query=query, page_size=5))


async def taken_in(hub: RunningHub) -> None:
    """What was heard so far is learnt and stored."""
    learning = hub.hub.searching.learning
    assert learning is not None
    await learning.flush()


@pytest.mark.promise("search.learns")
async def test_a_tool_is_found_by_what_it_was_called_for_and_still_after_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert not (await search(hub, "ledger")).hits
        await hub.value(TOOL, {"text": "x"}, purpose=PURPOSE)
        await taken_in(hub)
        answer = await search(hub, "ledger")
        assert [hit.tool.name for hit in answer.hits] == [TOOL]
        assert [(reason.part, reason.word) for reason in answer.hits[0].reasons] == [("usage", "ledger")]
        assert list(answer.ranked_by) == ["words", "usage"]
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        await taken_in(hub)
        assert [hit.tool.name for hit in (await search(hub, "ledger")).hits] == [TOOL]


async def test_calls_that_failed_or_were_only_planned_teach_nothing(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY) as hub:
        assert not (await hub.invoke(TOOL, {"nothing": 1}, purpose=PURPOSE)).ok
        await hub.plan(TOOL, {"text": "x"}, purpose=PURPOSE)
        await taken_in(hub)
        assert not (await search(hub, "ledger")).hits


async def test_a_hub_that_is_not_to_learn_does_not(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"search": {"learn": False}}) as hub:
        await hub.value(TOOL, {"text": "x"}, purpose=PURPOSE)
        assert hub.hub.searching.learning is None
        assert list((await search(hub, "ledger hash")).ranked_by) == ["words"]


async def test_an_embedder_of_the_configuration_finds_by_meaning(tmp_path: Path) -> None:
    settings = {
        "search": {"embedder": "tests.unit.search.test_embedding:FakeEmbedder"},
        "tools": {"trusted_namespaces": ["tests.unit.search"]},
    }
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings) as hub:
        meanings = hub.hub.searching.meanings
        assert meanings is not None
        await meanings.complete()
        answer = await search(hub, "file text")
        assert list(answer.ranked_by) == ["words", "meaning"]
        assert any(reason.rank for hit in answer.hits for reason in hit.reasons)
