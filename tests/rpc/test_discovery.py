"""Lists, searches, single tools and exports: honest counts, nothing that policy denies, names that lead back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, running_hub
from tests.ports.catalog_suite import tool as a_tool
from tests.rpc.sample_tools import Echo
from tests.rpc.statuses import failed
from toolhub.v1 import registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_client import connect
from toolhub_service.domain.tool import ToolState

DENIES_WRITES = """
extends: none
grants: [{principals: [local], capabilities: [read:fs]}]
rules: [{id: no-hash, effect: DENY, tools: [core/util.hash.*]}]
"""
FORMATS = {"OPENAI": pb.EXPORT_FORMAT_OPENAI, "ANTHROPIC": pb.EXPORT_FORMAT_ANTHROPIC, "MCP": pb.EXPORT_FORMAT_MCP}


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=DENIES_WRITES, tools=[Echo()]) as running:
        yield running


async def listed(hub: RunningHub, **fields: Any) -> list[str]:
    """Names over all pages."""
    names: list[str] = []
    token = ""
    while True:
        page = await hub.stub.ListTools(pb.ListToolsRequest(page_token=token, **fields))
        names += [tool.name for tool in page.tools]
        token = page.next_page_token
        if not token:
            assert page.total_size == len(names)
            return names


@pytest.mark.promise("registry.exact-lists")
@pytest.mark.parametrize("page_size", [0, 1, 3, 1_000, 5_000])
async def test_pages_of_any_size_make_the_same_list_and_an_honest_total(reader: RunningHub, page_size: int) -> None:
    names = await listed(reader, page_size=page_size)
    assert names == sorted(set(names))
    assert "core/fs.readText" in names


@pytest.mark.promise("registry.hidden-is-hidden")
async def test_list_shows_what_policy_could_allow_and_nothing_else(reader: RunningHub) -> None:
    names = await listed(reader)
    assert {"core/fs.readText", "core/util.time.now", "test/text.echo"} <= set(names)
    for denied in ("core/fs.writeText", "core/http.request", "core/exec.run", "core/util.hash.sha256Text"):
        assert denied not in names


async def test_page_token_of_another_query_or_of_nobody_is_refused(reader: RunningHub) -> None:
    page = await reader.stub.ListTools(pb.ListToolsRequest(page_size=1))
    for token in (page.next_page_token[:-2] + "xx", "nonsense"):
        failure = await failed(reader.stub.ListTools(pb.ListToolsRequest(page_size=1, page_token=token)))
        assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.reason


async def test_get_tool_shows_the_whole_contract(reader: RunningHub) -> None:
    tool = (await reader.stub.GetTool(pb.GetToolRequest(name="core/fs.readText"))).tool
    assert json.loads(tool.input_schema_json)["required"] == ["path"]
    assert json.loads(tool.output_schema_json)["type"] == "object"
    assert tool.annotations.read_only
    assert tool.digest == reader.hub.toolbox.catalog.get("core/fs.readText").digest  # type: ignore[union-attr]


@pytest.mark.promise("registry.hidden-is-hidden")
@pytest.mark.parametrize("name", ["core/fs.writeText", "core/util.hash.sha256Text", "test/unknown"])
async def test_get_tool_answers_alike_for_what_is_denied_and_what_is_not_there(reader: RunningHub, name: str) -> None:
    failure = await failed(reader.stub.GetTool(pb.GetToolRequest(name=name)))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "TOOL_NOT_FOUND")
    assert (
        failure.message.replace(name, "") == "There is no tool named '' that you may call. "
        "Search for one by what it does: SearchTools, `toolhub tools search`, or `search` of a client."
    )


async def test_a_search_finds_by_meaningful_words_and_names_what_matched(reader: RunningHub) -> None:
    found = await reader.stub.SearchTools(pb.SearchToolsRequest(query="read a text file", page_size=3))
    assert found.hits[0].tool.name == "core/fs.readText"
    assert found.hits[0].score > 0
    assert found.hits[0].matched_fields
    assert "read" in {term.lower() for term in found.hits[0].matched_terms}
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    assert list(found.ranked_by) == ["words"]
    reasons = found.hits[0].reasons
    assert {reason.part for reason in reasons} <= {"words", "related"}
    assert {"read", "text", "file"} <= {reason.word for reason in reasons}
    assert all(reason.score > 0 and reason.fields for reason in reasons)


@pytest.mark.promise("registry.hidden-is-hidden")
async def test_search_never_finds_what_policy_denies(reader: RunningHub) -> None:
    found = await reader.stub.SearchTools(pb.SearchToolsRequest(query="write text to a file"))
    assert "core/fs.writeText" not in {hit.tool.name for hit in found.hits}


@pytest.mark.parametrize("query", ["core/fs.readText", "fs.readtext", "core__fs_readText", "CORE/FS.READTEXT"])
async def test_a_search_for_a_name_finds_its_tool_first(reader: RunningHub, query: str) -> None:
    found = await reader.stub.SearchTools(pb.SearchToolsRequest(query=query, page_size=3))
    assert found.hits[0].tool.name == "core/fs.readText"
    assert "name" in found.hits[0].matched_fields
    denied = await reader.stub.SearchTools(pb.SearchToolsRequest(query="core/fs.writeText"))
    assert "core/fs.writeText" not in {hit.tool.name for hit in denied.hits}


async def test_search_without_words_is_the_list(reader: RunningHub) -> None:
    found = await reader.stub.SearchTools(pb.SearchToolsRequest(page_size=1_000))
    assert [hit.tool.name for hit in found.hits] == await listed(reader)
    assert {hit.score for hit in found.hits} == {0.0}


@pytest.mark.promise("registry.exports-lead-back")
@pytest.mark.parametrize("form", FORMATS)
async def test_exported_names_lead_back_to_tools_that_can_be_called(reader: RunningHub, form: str) -> None:
    export = await reader.stub.ExportTools(pb.ExportToolsRequest(format=FORMATS[form]))
    tools = json.loads(export.tools_json)
    names = [tool["function"]["name"] if form == "OPENAI" else tool["name"] for tool in tools]
    assert len(tools) == export.total_size == len(export.names) == len(set(names))
    assert [export.names[name] for name in names] == sorted(await listed(reader))
    assert all(name.replace("_", "").replace("-", "").isalnum() and len(name) <= 64 for name in names)
    assert (await reader.invoke(export.names["core__util_time_now"])).ok


async def test_export_leaves_out_what_cannot_be_called_now(reader: RunningHub) -> None:
    reader.hub.toolbox.catalog.set_state("test/text.echo", ToolState.QUARANTINED, "drifted")
    export = await reader.stub.ExportTools(pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_MCP))
    assert "test/text.echo" not in export.names.values()


@pytest.mark.promise("registry.exact-lists")
async def test_tool_that_cannot_work_is_listed_with_the_reason(tmp_path: Path) -> None:
    settings = {"tools": {"custom": [{"tool": "nowhere.to.be:Found"}], "trusted_namespaces": ["nowhere"]}}
    async with running_hub(tmp_path, settings=settings) as running:
        page = await running.stub.ListTools(pb.ListToolsRequest())
        (broken,) = [tool for tool in page.tools if tool.state == tool_pb2.TOOL_STATE_UNAVAILABLE]
        assert broken.name.startswith("custom/")
        assert "ModuleNotFoundError" in broken.state_reason
        assert [source.source for source in page.sources] == ["custom"]


async def test_lists_and_searches_show_the_short_view_unless_the_whole_one_is_asked_for(hub: RunningHub) -> None:
    short, whole = tool_pb2.TOOL_VIEW_UNSPECIFIED, tool_pb2.TOOL_VIEW_FULL
    for view, has_schema in ((short, False), (tool_pb2.TOOL_VIEW_BASIC, False), (whole, True)):
        page = await hub.stub.ListTools(pb.ListToolsRequest(view=view))
        found = await hub.stub.SearchTools(pb.SearchToolsRequest(query="time", view=view))
        tools = [*page.tools, *(hit.tool for hit in found.hits)]
        assert {bool(tool.input_schema_json) for tool in tools} == {has_schema}
    one = await hub.stub.GetTool(pb.GetToolRequest(name="core/util.time.now"))
    assert one.tool.input_schema_json


# Pages end before what a message does not take: a client of gRPC refuses answers of more than 4 MiB by default.

LARGE = [f"shelf/large.t{number:03}" for number in range(320)]
"""As many tools with schemas of 20 KiB as made 7 MiB in one answer."""


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[RunningHub]:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 20_480}}}
    async with running_hub(tmp_path) as running:
        specs = [a_tool(name, "Shelve books.", input_schema=schema, capabilities=frozenset()) for name in LARGE]
        assert not running.hub.toolbox.catalog.register_all(specs)
        while (await running.stub.SearchTools(pb.SearchToolsRequest(query="books"))).note:
            pass  # each search waits for the index a while
        yield running


async def pages_of(rpc: Any, request: Any) -> list[Any]:
    pages = [await rpc(request)]
    while pages[-1].next_page_token:
        request.page_token = pages[-1].next_page_token
        pages.append(await rpc(request))
    return pages


@pytest.mark.promise("registry.pages-are-bounded")
async def test_pages_of_lists_searches_snapshots_and_exports_are_bounded_by_their_bytes(crowded: RunningHub) -> None:
    full = tool_pb2.TOOL_VIEW_FULL
    listed = await pages_of(crowded.stub.ListTools, pb.ListToolsRequest(page_size=1_000, view=full))
    shelf = tool_pb2.ToolFilter(names=["shelf/*"])
    found = await pages_of(
        crowded.stub.SearchTools, pb.SearchToolsRequest(query="shelve books", filter=shelf, page_size=1_000, view=full)
    )
    snapshot = await pages_of(crowded.registry.GetSnapshot, registry_service_pb2.GetSnapshotRequest(view=full))
    exports = [
        await pages_of(crowded.stub.ExportTools, pb.ExportToolsRequest(format=form)) for form in FORMATS.values()
    ]
    for pages in (listed, found, snapshot, *exports):
        assert len(pages) > 3
        assert all(1024 * 1024 < page.ByteSize() < 3 * 1024 * 1024 for page in pages[:-1])
        assert len({page.revision for page in pages}) == 1
    every = [tool.name for page in listed for tool in page.tools]
    assert every == sorted({*LARGE, *every})
    assert sorted(hit.tool.name for page in found for hit in page.hits) == LARGE
    catalog = [spec.name for spec in crowded.hub.toolbox.catalog.all()]
    assert [tool.name for page in snapshot for tool in page.tools] == catalog
    assert {page.totals.tools for page in snapshot} == {len(catalog)}
    active = [tool.name for page in listed for tool in page.tools if tool.state == tool_pb2.TOOL_STATE_ACTIVE]
    for pages in exports:
        assert [name for page in pages for name in sorted(page.names.values())] == active
        assert sum(len(json.loads(page.tools_json)) for page in pages) == pages[0].total_size == len(active)


async def test_a_page_goes_on_exactly_where_the_one_before_ended(crowded: RunningHub) -> None:
    whole = await pages_of(crowded.stub.ExportTools, pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_MCP))
    parts = await pages_of(crowded.stub.ExportTools, pb.ExportToolsRequest(format=pb.EXPORT_FORMAT_MCP, page_size=7))
    assert max(len(page.names) for page in parts) == 7
    one, other = ([tool for page in pages for tool in json.loads(page.tools_json)] for pages in (whole, parts))
    assert one == other


async def test_a_tool_that_is_larger_than_a_page_has_one_of_its_own(crowded: RunningHub) -> None:
    large = a_tool("shelf/larger", "y" * 3_000_000, capabilities=frozenset())
    crowded.hub.toolbox.catalog.register_all([large])
    request = pb.ListToolsRequest(
        filter=tool_pb2.ToolFilter(names=["shelf/large.t00[0-4]", "shelf/larger", "core/util.time.*"])
    )
    sizes = [len(page.tools) for page in await pages_of(crowded.stub.ListTools, request)]
    assert sizes[-1] == 1
    assert sum(sizes) == 7


async def test_snapshot_of_a_catalog_that_changes_between_two_pages_is_begun_again(crowded: RunningHub) -> None:
    request = registry_service_pb2.GetSnapshotRequest(page_size=5)
    request.page_token = (await crowded.registry.GetSnapshot(request)).next_page_token
    crowded.hub.toolbox.catalog.set_state(LARGE[-1], ToolState.UNAVAILABLE, "its source is down")
    failure = await failed(crowded.registry.GetSnapshot(request))
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CATALOG_CHANGED")


async def test_the_client_reads_every_page(crowded: RunningHub) -> None:
    async with connect(crowded.address) as client:
        tools, names = await client.export("openai", names=["shelf/*"])
        found = await client.search("shelve books", limit=300)
    assert ([tool["function"]["name"] for tool in tools], sorted(names.values())) == (sorted(names), LARGE)
    assert len({hit.tool.name for hit in found}) == len(found) == 300


@pytest.mark.promise("registry.exact-lists")
async def test_a_list_counts_denied_tools_but_not_for_guessed_names(tmp_path: Path) -> None:
    for roles, guesses in (("agent", None), ("agent, operator", 1)):
        policy = f"{DENIES_WRITES}roles: [{{principals: [local], roles: [{roles}]}}]\n"
        async with running_hub(tmp_path / (roles[-5:]), policy=policy) as running:
            page = await running.stub.ListTools(pb.ListToolsRequest(page_size=1_000))
            everything = running.hub.toolbox.catalog.all()
            assert page.total_size + page.denied_size == len(everything)
            assert page.denied_size > 1
            for filter in (tool_pb2.ToolFilter(names=["core/fs.writeText"]), tool_pb2.ToolFilter(tags=["hash"])):
                page = await running.stub.ListTools(pb.ListToolsRequest(filter=filter))
                assert page.HasField("denied_size") == (guesses is not None)
            named = tool_pb2.ToolFilter(names=["core/fs.writeText"])
            assert (await running.stub.ListTools(pb.ListToolsRequest(filter=named))).denied_size == (guesses or 0)
