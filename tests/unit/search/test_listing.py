from __future__ import annotations

import base64
import json

import pytest

from tests.ports.catalog_suite import tool
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolKind, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.filters import LISTED, ToolFilter
from toolhub_service.search.hits import SearchHit
from toolhub_service.search.listing import PageRequest, Viewer, list_tools, search_tools
from toolhub_service.search.search import ToolSearch


def catalog_of(*names: str) -> ToolCatalog:
    catalog = ToolCatalog(check_schema=lambda schema: None)
    catalog.register_all([tool(name) for name in names])
    return catalog


@pytest.fixture
def catalog() -> ToolCatalog:
    return catalog_of(*(f"a/t{number:02}" for number in range(10)))


def test_pages_join_to_the_whole_list(catalog: ToolCatalog) -> None:
    seen, token, totals = [], "", set()
    while True:
        page = list_tools(catalog, page=PageRequest(3, token))
        seen += [spec.name for spec in page.tools]
        totals.add(page.total_size)
        token = page.next_token
        if not token:
            break
    assert seen == [spec.name for spec in catalog.all()]
    assert totals == {10}


def test_the_last_page_has_no_token_even_when_it_is_full(catalog: ToolCatalog) -> None:
    assert list_tools(catalog, page=PageRequest(10)).next_token == ""
    assert list_tools(catalog, page=PageRequest(9)).next_token != ""


@pytest.mark.parametrize(("asked", "given"), [(0, 100), (1, 1), (1000, 1000), (5000, 1000)])
def test_page_sizes_have_a_default_and_a_bound(asked: int, given: int) -> None:
    catalog = catalog_of(*(f"a/t{number}" for number in range(1200)))
    assert len(list_tools(catalog, page=PageRequest(asked)).tools) == given


def test_a_negative_page_size_is_refused(catalog: ToolCatalog) -> None:
    with pytest.raises(HubFailure) as caught:
        list_tools(catalog, page=PageRequest(-1))
    assert caught.value.reason.code is Code.INVALID_ARGUMENT


def test_a_change_between_pages_is_reported_and_skips_or_repeats_nothing_that_stayed(catalog: ToolCatalog) -> None:
    first = list_tools(catalog, page=PageRequest(4))
    assert not first.changed
    for name in ("a/t00", "a/t03", "a/t06"):
        catalog.unregister(name)
    for name in ("a/a", "a/t045", "a/z"):
        catalog.register(tool(name))
    second = list_tools(catalog, page=PageRequest(100, first.next_token))
    assert second.changed
    assert second.revision != first.revision
    stayed = {f"a/t{number:02}" for number in (1, 2, 4, 5, 7, 8, 9)}
    shown = [spec.name for spec in first.tools + second.tools]
    assert stayed <= set(shown)
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize(
    ("where", "scope"),
    [(ToolFilter(names=("a/*",)), "one"), (ToolFilter(kinds=frozenset({ToolKind.MCP})), "one"), (LISTED, "two")],
)
def test_a_token_of_another_question_is_refused(catalog: ToolCatalog, where: ToolFilter, scope: str) -> None:
    token = list_tools(catalog, page=PageRequest(3), viewer=Viewer("one", lambda spec: True)).next_token
    with pytest.raises(HubFailure) as caught:
        list_tools(catalog, where, PageRequest(3, token), viewer=Viewer(scope, lambda spec: True))
    assert caught.value.reason.code is Code.INVALID_ARGUMENT
    assert caught.value.reason.name == "PAGE_TOKEN_INVALID"


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "%%%",
        "é",
        "A" * 5000,
        encoded([]),
        encoded({}),
        encoded([1, 2, 3, 4]),
        encoded("abcd"),
        "[" * 900,
        encoded(7),
    ],
)
def test_a_broken_token_is_refused_with_advice(catalog: ToolCatalog, token: str) -> None:
    with pytest.raises(HubFailure) as caught:
        list_tools(catalog, page=PageRequest(3, token))
    assert caught.value.reason.name == "PAGE_TOKEN_INVALID"
    assert "without a token" in caught.value.message


def test_denied_tools_are_counted_apart(catalog: ToolCatalog) -> None:
    page = list_tools(catalog, viewer=Viewer("one", lambda spec: spec.name < "a/t04"))
    assert (page.total_size, page.denied_size, len(page.tools)) == (4, 6, 4)


def test_quarantined_and_disabled_tools_are_listed_only_when_asked_for() -> None:
    catalog = catalog_of()
    for state in ToolState:
        catalog.register(tool(f"a/{state.value.lower()}", state=state))
    assert [spec.name for spec in list_tools(catalog).tools] == ["a/active", "a/unavailable"]
    asked = ToolFilter(states=frozenset({ToolState.DISABLED, ToolState.QUARANTINED}))
    assert [spec.name for spec in list_tools(catalog, asked).tools] == ["a/disabled", "a/quarantined"]
    assert len(list_tools(catalog, ToolFilter(states=frozenset(ToolState))).tools) == 4


SOURCES = (
    SourceStatus("mcp.down", ToolKind.MCP, SourceState.DOWN, "It does not answer."),
    SourceStatus("mcp.ready", ToolKind.MCP),
    SourceStatus("flows", ToolKind.N8N, SourceState.PARTIAL, "Two definitions were refused.", tool_count=5),
    SourceStatus("attic", ToolKind.MCP, SourceState.DISABLED, "switched off in sources.yaml"),
)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (LISTED, ["flows", "mcp.down"]),
        (ToolFilter(kinds=frozenset({ToolKind.N8N})), ["flows"]),
        (ToolFilter(sources=frozenset({"mcp.ready"})), []),
    ],
)
def test_sources_that_could_have_held_a_match_and_were_not_read_are_reported(
    where: ToolFilter, names: list[str]
) -> None:
    catalog = catalog_of()
    listed = list_tools(catalog, where, sources=SOURCES)
    found = search_tools(ToolSearch(catalog), "x", where, sources=SOURCES)
    assert [status.name for status in listed.sources] == [status.name for status in found.sources] == names
    assert [(status.ok, status.partial) for status in SOURCES] == [
        (False, False),
        (True, False),
        (False, True),
        (False, False),
    ]


def test_pages_of_a_search_join_to_the_whole_ranking() -> None:
    catalog = catalog_of()
    catalog.register_all([tool(f"a/t{number}", "gadget " * number + "widget") for number in range(1, 8)])
    search = ToolSearch(catalog)
    whole = search_tools(search, "gadget widget")
    seen: list[SearchHit] = []
    token = ""
    while True:
        page = search_tools(search, "gadget widget", page=PageRequest(3, token))
        seen += page.hits
        token = page.next_token
        if not token:
            break
    assert tuple(seen) == whole.hits
    assert whole.total_size == 7


def test_a_search_goes_on_only_in_the_catalog_it_began_in() -> None:
    catalog = catalog_of("a/find.one", "a/find.two", "a/find.three")
    search = ToolSearch(catalog)
    page = search_tools(search, "find", page=PageRequest(2))
    catalog.register(tool("a/find.four"))
    with pytest.raises(HubFailure) as caught:
        search_tools(search, "find", page=PageRequest(2, page.next_token))
    assert (caught.value.reason.code, caught.value.reason.name) == (Code.FAILED_PRECONDITION, "CATALOG_CHANGED")


def test_a_token_of_another_query_is_refused() -> None:
    catalog = catalog_of("a/find.one", "a/find.two")
    search = ToolSearch(catalog)
    token = search_tools(search, "find", page=PageRequest(1)).next_token
    with pytest.raises(HubFailure) as caught:
        search_tools(search, "one", page=PageRequest(1, token))
    assert caught.value.reason.name == "PAGE_TOKEN_INVALID"
