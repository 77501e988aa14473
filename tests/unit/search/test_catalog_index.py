"""The index of a catalog: what can be found while many tools come, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.ports.catalog_suite import tool
from toolhub_service.aio import cooperative
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.catalog_index import AT_ONCE, HOLES_MIN, CatalogIndex
from toolhub_service.search.fields import Field, fields_of
from toolhub_service.search.filters import ToolFilter
from toolhub_service.search.listing import PageRequest, search_tools
from toolhub_service.search.search import ToolSearch

MANY = 1_000


def specs(count: int, words: str = "same words") -> list[ToolSpec]:
    return [tool(f"a/x{number}", f"{words} n{number}") for number in range(count)]


class IndexHarness:
    """A catalog with a search that has been started."""

    def __init__(self) -> None:
        self.catalog = ToolCatalog(check_schema=lambda schema: None)
        self.search = ToolSearch(self.catalog)
        self.troubles: list[str] = []

    def found(self, query: str = "words") -> int:
        return self.search.search(query).total_size

    def put(self, tools: list[ToolSpec]) -> None:
        assert not self.catalog.register_all(tools, replace=True)


@pytest.fixture
async def harness() -> AsyncIterator[IndexHarness]:
    harness = IndexHarness()
    await harness.search.start(harness.troubles.append)
    yield harness
    await harness.search.close()
    assert harness.troubles == []


async def test_others_have_their_turn_while_many_tools_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "SLICE_S", 0.0)  # so that each tool is a slice, however fast the machine is
    catalog = ToolCatalog(check_schema=lambda schema: None)
    following = CatalogIndex(catalog)
    await following.start(pytest.fail)
    catalog.register_all(specs(MANY))
    assert following.behind == MANY
    seen = [MANY]
    while following.behind:
        await asyncio.sleep(0)
        seen.append(following.behind)
    assert len(set(seen)) > MANY / 2
    assert seen == sorted(seen, reverse=True)
    assert len(following.index) == MANY
    await following.close()


async def test_a_search_finds_what_is_there_while_many_tools_are_indexed(harness: IndexHarness) -> None:
    harness.put([tool("b/early", "early words")])
    harness.put(specs(MANY))
    assert harness.found() == harness.found("early") == 1


async def test_a_search_states_what_is_not_indexed_yet(harness: IndexHarness) -> None:
    harness.put(specs(MANY))
    assert harness.search.search("words").note == "1,000 of 1,000 tools cannot be found yet"
    await harness.search.complete(timeout_s=600)
    result = harness.search.search("words")
    assert (result.total_size, result.note) == (1_000, "")


async def test_a_search_does_not_wait_longer_than_it_may(harness: IndexHarness) -> None:
    harness.put(specs(MANY))
    await harness.search.complete(timeout_s=0)
    assert harness.found() < 1_000


async def test_as_many_as_a_source_changes_at_once_are_found_at_once(harness: IndexHarness) -> None:
    harness.put(specs(AT_ONCE))
    assert harness.found() == AT_ONCE


async def test_removed_or_changed_tools_are_not_found_from_then_on(harness: IndexHarness) -> None:
    tools = specs(MANY)
    harness.put(tools)
    await harness.search.complete(timeout_s=600)
    harness.catalog.register_all([replace(each, state=ToolState.QUARANTINED) for each in tools[:500]], replace=True)
    assert harness.found() == 500
    harness.catalog.register_all((), removing=[each.name for each in tools])
    assert harness.found() == 0
    await harness.search.complete(timeout_s=600)
    assert harness.search.search("words", ToolFilter(states=frozenset(ToolState))).total_size == 0


async def test_a_tool_that_changes_while_it_waits_is_found_as_it_is_now(harness: IndexHarness) -> None:
    harness.put(specs(MANY))
    harness.put([tool("a/x7", "something else"), tool("b/late", "something else")])
    harness.catalog.unregister("a/x8")
    assert (harness.found("n7"), harness.found("n8"), harness.found("else")) == (0, 0, 2)
    await harness.search.complete(timeout_s=600)
    assert (harness.found(), harness.found("n7"), harness.found("n8"), harness.found("else")) == (MANY - 2, 0, 0, 2)


async def test_a_page_of_a_search_is_refused_when_more_can_be_found_since(harness: IndexHarness) -> None:
    harness.put(specs(300))
    await harness.search.complete(timeout_s=600)
    harness.put([tool(f"b/y{number}", "other words") for number in range(1_000)])
    first = search_tools(harness.search, "words", page=PageRequest(size=100))
    assert first.next_token
    assert first.note
    await harness.search.complete(timeout_s=600)
    with pytest.raises(HubFailure) as refused:
        search_tools(harness.search, "words", page=PageRequest(size=100, token=first.next_token))
    assert refused.value.reason.name == "CATALOG_CHANGED"


@pytest.mark.parametrize("is_started", [False, True])
async def test_an_index_of_mostly_holes_is_renewed_while_tools_change(is_started: bool) -> None:
    catalog = ToolCatalog(check_schema=lambda schema: None)
    following = CatalogIndex(catalog)
    catalog.register_all(specs(MANY))
    first = following.index
    if is_started:
        await following.start(pytest.fail)
    number = 0
    while following.index is first:
        number += 1
        changed = [replace(each, description=f"round {number}", digest="") for each in catalog.all()[:AT_ONCE]]
        catalog.register_all(changed, replace=True)
        assert len(following.index) == MANY
        await asyncio.sleep(0)
    assert number > MANY / AT_ONCE
    slots = [following.index.slot(spec.name) for spec in catalog.all()]
    assert len(set(slots)) == MANY
    assert None not in slots
    assert following.index.holes <= max(HOLES_MIN, MANY)
    await following.close()


async def test_a_tool_that_cannot_be_read_is_reported_and_keeps_no_other_from_being_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(spec: ToolSpec) -> dict[Field, str]:
        if spec.name == "a/x500":
            raise KeyError(spec.name)
        return fields_of(spec)

    monkeypatch.setattr("toolhub_service.search.catalog_index.fields_of", fails)
    harness = IndexHarness()
    await harness.search.start(harness.troubles.append)
    harness.put(specs(MANY))
    await harness.search.complete(timeout_s=600)
    assert harness.found() == 999
    assert harness.troubles == ["a tool cannot be searched: KeyError"]
    harness.catalog.unregister("a/x500")
    await harness.search.close()


async def test_after_it_is_closed_a_search_follows_no_more() -> None:
    harness = IndexHarness()
    await harness.search.start(harness.troubles.append)
    await harness.search.close()
    harness.put(specs(3))
    assert harness.found() == 0
