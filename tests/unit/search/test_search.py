from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ports.catalog_suite import tool
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.fields import argument_texts
from toolhub_service.search.filters import ToolFilter
from toolhub_service.search.fusion import RANK_OFFSET, fuse_rankings
from toolhub_service.search.hits import REASONS_MAX
from toolhub_service.search.index import Slots
from toolhub_service.search.search import ToolSearch


def catalog_of(*specs: ToolSpec) -> ToolCatalog:
    catalog = ToolCatalog(check_schema=lambda schema: None)
    catalog.register_all(specs)
    return catalog


def names(search: ToolSearch, query: str, **options: object) -> list[str]:
    return [hit.tool.name for hit in search.search(query, **options).hits]  # type: ignore[arg-type]


WEATHER = tool(
    "web/weather.forecast", "Tells the weather of the next days in a city.", capabilities=frozenset({"network"})
)
READ = tool(
    "disk/fs.readText",
    "Return the contents of a file.",
    kind=ToolKind.CORE,
    tags=("files",),
    capabilities=frozenset({"read:fs"}),
    input_schema={"type": "object", "properties": {"path": {"type": "string", "description": "Where it lies."}}},
)
WRITE = tool("disk/fs.writeText", "Write a file.", tags=("files",), capabilities=frozenset({"write:fs"}))
HIDDEN = tool("web/weather.secret", "Weather, weather, weather.", state=ToolState.QUARANTINED, source="other")


@pytest.fixture
def search() -> ToolSearch:
    return ToolSearch(catalog_of(WEATHER, READ, WRITE, HIDDEN))


@pytest.mark.promise("search.finds")
def test_a_tool_is_found_by_any_form_of_its_words(search: ToolSearch) -> None:
    assert names(search, "forecasting") == ["web/weather.forecast"]
    assert names(search, "What will the weather be like in some cities?") == ["web/weather.forecast"]


def test_the_better_match_comes_first(search: ToolSearch) -> None:
    assert names(search, "read a file") == ["disk/fs.readText", "disk/fs.writeText"]


@pytest.mark.promise("search.finds")
def test_chinese_is_found_by_its_bigrams() -> None:
    search = ToolSearch(catalog_of(tool("a/x", "查询城市的天气预报"), tool("a/y", "翻译文本")))
    assert names(search, "明天天气怎么样") == ["a/x"]


@pytest.mark.promise("search.finds")
@pytest.mark.parametrize("query", ["读文件", "读取文件", "查看文件夹中的文件"])
def test_a_chinese_query_finds_a_tool_that_is_described_in_english(search: ToolSearch, query: str) -> None:
    assert names(search, query)[0] == "disk/fs.readText"


def test_required_capabilities_do_not_describe_effects() -> None:
    search = ToolSearch(catalog_of(tool("a/x", "Tells the time.", capabilities=frozenset({"network", "read:fs"}))))
    assert names(search, "read from the network") == []


def test_a_tools_function_counts_more_than_its_description() -> None:
    deletes = tool("a/x", "Deletes a note. There is another tool to print one.")
    prints = tool("b/y", "Prints a note. There is another tool to delete one.")
    search = ToolSearch(catalog_of(deletes, prints))
    assert names(search, "delete") == ["a/x", "b/y"]
    assert names(search, "print") == ["b/y", "a/x"]


def test_a_hit_names_the_field_and_words_that_matched(search: ToolSearch) -> None:
    (hit,) = search.search("reading from the path where it lies").hits
    assert hit.score > 0
    assert hit.fields == ("name", "arguments")
    assert hit.terms == ("read", "path", "lies")


@pytest.mark.promise("search.explained")
def test_a_hit_gives_the_grounds_for_its_score(search: ToolSearch) -> None:
    hit = search.search("reading a folder").hits[0]
    assert [(reason.part, reason.word, reason.found, reason.fields) for reason in hit.reasons] == [
        ("words", "reading", "read", ("name",)),
        ("related", "folder", "file", ("description", "tags")),
    ]
    assert sum(reason.score for reason in hit.reasons) == pytest.approx(hit.score, rel=1e-4)
    assert search.search("reading").ranked_by == ("words",)


def test_the_grounds_of_a_hit_are_bounded() -> None:
    words = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
    (hit,) = ToolSearch(catalog_of(tool("a/x", words))).search(words).hits
    assert len(hit.reasons) == REASONS_MAX


@pytest.mark.promise("search.finds")
def test_a_tool_is_found_by_words_of_like_meaning_behind_those_that_have_the_word() -> None:
    films = tool("a/films", "Lists films on show.")
    movies = tool("b/movies", "Lists movies on show.")
    search = ToolSearch(catalog_of(films, movies))
    assert names(search, "movie") == ["b/movies", "a/films"]
    assert names(ToolSearch(catalog_of(films)), "movie") == ["a/films"]


def test_words_around_a_wish_count_less_than_the_wish() -> None:
    search = ToolSearch(catalog_of(tool("a/x", "detailed recommendations"), tool("b/y", "hiking trails")))
    assert names(search, "provide detailed recommendations for hiking trails")[0] == "b/y"
    assert names(search, "detailed recommendations") == ["a/x"]


def test_nested_arguments_are_part_of_the_document() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"filters": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Range"}]}}},
        "$defs": {"Range": {"type": "object", "properties": {"lowestPrice": {"description": "In euros."}}}},
    }
    assert argument_texts(schema) == ["filters", "Range", "lowestPrice", "In euros."]
    assert names(ToolSearch(catalog_of(tool("a/x", input_schema=schema))), "price in euro") == ["a/x"]


def test_an_endless_schema_is_read_to_a_bound() -> None:
    schema: JsonObject = {"description": "x"}
    for _ in range(500):
        schema = {"description": "x", "items": schema}
    assert len(argument_texts(schema)) < 40
    wide: JsonObject = {"properties": {f"p{number}": {} for number in range(9_000)}}
    assert len(argument_texts(wide)) == 2_000


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (ToolFilter(kinds=frozenset({ToolKind.CORE})), ["disk/fs.readText"]),
        (ToolFilter(capabilities=frozenset({"write:fs"})), ["disk/fs.writeText"]),
        (ToolFilter(capabilities=frozenset({"write:file"})), ["disk/fs.writeText"]),
        (ToolFilter(capabilities=frozenset({"write:fs", "network"})), []),
        (ToolFilter(tags=frozenset({"files", "none"})), ["disk/fs.readText", "disk/fs.writeText"]),
        (ToolFilter(sources=frozenset({"other"})), []),
        (ToolFilter(names=("disk/*", "none/*")), ["disk/fs.readText", "disk/fs.writeText"]),
        (ToolFilter(states=frozenset({ToolState.QUARANTINED})), ["web/weather.secret"]),
    ],
)
@pytest.mark.parametrize("query", ["", "file weather"])
def test_filters_hold_with_and_without_words(
    search: ToolSearch, where: ToolFilter, found: list[str], query: str
) -> None:
    result = search.search(query, where)
    assert sorted(hit.tool.name for hit in result.hits) == found
    assert result.total_size == len(found)


@pytest.mark.parametrize("viewer", [None, "someone"])
@pytest.mark.parametrize("query", ["", "text file"])
def test_disallowed_tools_take_no_place_and_do_not_count(search: ToolSearch, viewer: str | None, query: str) -> None:
    for _ in range(2):
        result = search.search(query, allowed=lambda spec: "write" in spec.name, viewer=viewer, limit=1)
        assert [hit.tool.name for hit in result.hits] == ["disk/fs.writeText"]
        assert result.total_size == 1


def test_results_for_one_viewer_are_not_shown_to_another(search: ToolSearch) -> None:
    assert names(search, "file", allowed=lambda spec: True, viewer="one") != []
    assert names(search, "file", allowed=lambda spec: False, viewer="two") == []


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of and"])
def test_a_query_without_words_lists_everything_by_name(search: ToolSearch, query: str) -> None:
    result = search.search(query)
    assert [hit.tool.name for hit in result.hits] == ["disk/fs.readText", "disk/fs.writeText", "web/weather.forecast"]
    assert {hit.score for hit in result.hits} == {0.0}


def test_a_word_that_no_tool_has_finds_nothing(search: ToolSearch) -> None:
    assert search.search("xylophone").total_size == 0


async def test_the_index_follows_the_catalog() -> None:
    catalog = catalog_of(WEATHER)
    search = ToolSearch(catalog)
    catalog.register(READ)
    assert names(search, "contents") == ["disk/fs.readText"]
    catalog.register(replace(READ, description="Nothing here.", digest=""), replace=True)
    assert names(search, "contents") == []
    assert names(search, "nothing") == ["disk/fs.readText"]
    catalog.unregister(READ.name)
    assert names(search, "nothing") == []
    await search.close()
    catalog.register(WRITE)
    assert names(search, "file") == []


def test_verdicts_are_forgotten_when_the_catalog_changes() -> None:
    catalog = catalog_of(WEATHER, replace(READ, state=ToolState.DISABLED))
    search = ToolSearch(catalog)
    assert names(search, "file", allowed=lambda spec: True, viewer="x") == []
    catalog.set_state(READ.name, ToolState.ACTIVE)
    assert names(search, "file", allowed=lambda spec: True, viewer="x") == ["disk/fs.readText"]


def test_pages_of_hits_join_without_gap_or_repeat() -> None:
    catalog = catalog_of(*(tool(f"a/x{number}", "same words here") for number in range(25)))
    search = ToolSearch(catalog)
    pages = [names(search, "words", limit=10, offset=offset) for offset in (0, 10, 20)]
    assert [name for page in pages for name in page] == [f"a/x{number}" for number in sorted(range(25), key=str)]


@pytest.mark.parametrize("viewer", [None, "someone"])
def test_verdicts_hold_after_many_changes_that_moved_every_tool(viewer: str | None) -> None:
    catalog = catalog_of(*(tool(f"a/x{number}", "same words") for number in range(300)))
    search = ToolSearch(catalog)
    for round_number in range(4):
        result = search.search("words", allowed=lambda spec: spec.name.endswith("7"), viewer=viewer, limit=500)
        assert {hit.tool.name for hit in result.hits} == {f"a/x{number}" for number in range(7, 300, 10)}
        for spec in catalog.all():
            catalog.register(replace(spec, description=f"same words {round_number}", digest=""), replace=True)


def places(*slots: int) -> Slots:
    return np.array(slots, np.int64)


def test_places_are_added_by_weight() -> None:
    slots, scores = fuse_rankings([(places(7, 3), 2.0), (places(3, 9), 1.0)])
    assert slots.tolist() == [3, 7, 9]
    expected = [2 / (RANK_OFFSET + 2) + 1 / (RANK_OFFSET + 1), 2 / (RANK_OFFSET + 1), 1 / (RANK_OFFSET + 2)]
    assert scores.tolist() == pytest.approx(expected)


def test_one_empty_ranking_leaves_the_other_as_it_is() -> None:
    slots, scores = fuse_rankings([(places(), 2.0), (places(5, 1), 1.0)])
    assert [slot for _, slot in sorted(zip(-scores, slots.tolist(), strict=True))] == [5, 1]


def test_the_first_by_words_is_beaten_only_by_one_that_both_rank_high() -> None:
    slots, scores = fuse_rankings([(places(1, 2, 3), 2.0), (places(4, 2), 1.0)])
    assert slots[np.argsort(-scores)].tolist() == [2, 1, 3, 4]


CROWD = [tool(f"svc{at}/svc{at}_operation_{number}", "It operates.") for at in range(20) for number in range(60)]


@pytest.mark.promise("search.finds")
@pytest.mark.parametrize(
    "query",
    [
        "svc12_operation_37",
        "svc12/svc12_operation_37",
        "SVC12_Operation_37",
        "svc12__svc12_operation_37",
        "svc12 operation 37",
    ],
)
def test_a_tool_that_is_named_exactly_comes_first_whatever_its_case_and_prefix(query: str) -> None:
    assert names(ToolSearch(catalog_of(*CROWD)), query)[0] == "svc12/svc12_operation_37"


def test_an_exact_name_comes_before_a_better_match_of_its_words() -> None:
    wordy = tool("a/search.issues.search", "Search issues. Search, search the issues.", tags=("search", "issues"))
    search = ToolSearch(catalog_of(wordy, tool("b/search", "Look."), tool("c/Search", "Look."), tool("d/it", "Do.")))
    assert names(search, "search")[:2] == ["b/search", "c/Search"]
    assert names(search, "c/search")[0] == "c/Search"
    assert names(search, "it") == ["d/it"]
    assert names(search, "search", limit=1, offset=2) == ["a/search.issues.search"]


def test_an_exact_name_of_a_hidden_tool_finds_nothing(search: ToolSearch) -> None:
    assert "web/weather.secret" not in names(search, "weather.secret")
    assert names(search, "web/weather.forecast", allowed=lambda spec: spec.name != "web/weather.forecast") == []


def test_numbers_of_a_few_words_and_of_names_count_where_a_name_holds_them() -> None:
    catalog = catalog_of(
        tool("a/area.51", "Tell of a place."), tool("a/area.52", "Tell of a place."), tool("b/x", "51")
    )
    search = ToolSearch(catalog)
    assert names(search, "the place 52")[0] == "a/area.52"
    sentence = "please describe the famous desert site that is known as"
    assert names(search, f"{sentence} area_52")[0] == "a/area.52"
    assert names(search, f"{sentence} area within 52 days") == names(search, f"{sentence} area within days")
    assert names(search, "places within 7 days") == names(search, "places within days")
    catalog.unregister("a/area.52")
    assert names(search, "a place 52") == names(search, "a place")
