"""Reading a server's list of tools, for any behaviour of the server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.mcp_harness import over_http, over_stdio
from tests.fakes.mcp_servers.scripted import TOOLS, Refusal, Script, tool
from toolhub_service.adapters.definitions import PROBLEMS_MAX
from toolhub_service.adapters.mcp import source as reading
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.source import Discovery, Trust
from toolhub_service.registry.names import skeleton


async def discovered(*pages: list[Any], generation: str = "modern", ttl_ms: int = 0) -> Discovery:
    async with over_http(Script(generation=generation, pages=list(pages), ttl_ms=ttl_ms)) as harness:
        return await harness.source.discover()


@pytest.mark.parametrize(("generation", "protocol"), [("modern", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_every_tool_is_found_and_the_server_is_named(generation: str, protocol: str) -> None:
    async with over_stdio(generation) as harness:
        found = await harness.source.discover()
        assert (harness.source.name, harness.source.trust) == ("fake", Trust.FIRST_USE)
    assert [each.spec.resource_id for each in found.definitions] == sorted(each["name"] for each in TOOLS)
    assert (found.server, found.protocol, found.problems) == ("scripted 1.2.3", protocol, ())
    asynchronous = {each.spec.resource_id for each in found.definitions if each.spec.cost.is_async}
    assert asynchronous == ({"long"} if generation == "legacy" else set())


async def test_all_pages_are_followed_and_the_order_is_that_of_the_names() -> None:
    found = await discovered([tool("c")], [tool("a")], [tool("b")], ttl_ms=45_000)
    assert [each.spec.name for each in found.definitions] == ["fake/a", "fake/b", "fake/c"]
    assert found.ttl_s == 45


async def test_a_server_that_keeps_nothing_names_no_time() -> None:
    assert (await discovered([tool("a")])).ttl_s is None


@pytest.mark.promise("sources.broken-tool-alone")
@pytest.mark.parametrize("generation", ["modern", "legacy"])
async def test_a_broken_tool_affects_only_itself(generation: str) -> None:
    broken = {"name": "broken", "inputSchema": {"type": "object", "$ref": "#"}, "annotations": 7}
    found = await discovered([tool("a"), broken, None, {"no": "name"}, tool("z")], generation=generation)
    assert [each.spec.resource_id for each in found.definitions] == ["a", "broken", "z"]
    assert [bool(each.problem) for each in found.definitions] == [False, True, False]
    assert len(found.problems) == 2


async def test_names_that_read_alike_live_side_by_side_whatever_their_order() -> None:
    own = ["GET USER", "Get_User", "get_user", "get/user"]
    names = []
    for order in (own, own[::-1]):
        async with over_http(Script(pages=[[tool(name) for name in order]])) as harness:
            found = await harness.source.discover()
            remarks = [line for line in harness.source.diagnostics() if "reads like it" in line]
            restored = [harness.source.restore_pinned(each.remote) for each in found.definitions]
        assert [each and each.spec.name for each in restored] == [each.spec.name for each in found.definitions]
        assert (found.problems, len(remarks)) == ((), 3)
        names.append({each.spec.resource_id: each.spec.name for each in found.definitions})
    assert names[0] == names[1]
    assert names[0]["get_user"] == "fake/get_user"
    assert names[0]["Get_User"] == "fake/Get_User_660510b8"
    assert len(set(map(skeleton, names[0].values()))) == 4


async def test_a_tool_that_is_listed_twice_is_offered_once() -> None:
    found = await discovered([tool("read_file"), tool("read_file", description="Another.")])
    assert [each.spec.description for each in found.definitions] == ["It is read_file."]
    assert "listed twice" in found.problems[0]


async def test_a_name_that_imitates_anothers_suffix_stays_and_the_other_is_left_out() -> None:
    found = await discovered([tool("get_user"), tool("Get_User"), tool("get_user_660510b8")])
    assert [each.spec.resource_id for each in found.definitions] == ["get_user", "get_user_660510b8"]
    assert found.problems == ("The tool `Get_User` was left out: its name looks like another's.",)


async def test_the_operator_is_told_what_of_a_tool_is_not_enforced() -> None:
    look_around = {"type": "object", "properties": {"to": {"pattern": "^(?!x)"}}}
    async with over_http(Script(pages=[[tool("mail", inputSchema=look_around)]])) as harness:
        found = await harness.source.discover()
        told = harness.source.diagnostics()
    assert (found.problems, found.definitions[0].problem) == ((), "")
    assert any(line.startswith("`mail`: inputSchema: the pattern `^(?!x)` is not enforced") for line in told)


async def test_a_page_that_fails_makes_the_reading_incomplete() -> None:
    class Torn(Script):
        def _page(self, params: dict[str, Any]) -> dict[str, Any]:
            if params.get("cursor"):
                raise Refusal(-32603, "page 2 is lost")
            return {**super()._page(params), "nextCursor": "1"}

    async with over_http(Torn(pages=[[tool("a")]])) as harness:
        found = await harness.source.discover()
    assert [each.spec.resource_id for each in found.definitions] == ["a"]
    assert "page 2 is lost" in found.problems[0]


async def test_a_list_that_leads_in_circles_ends() -> None:
    class Circular(Script):
        def _page(self, params: dict[str, Any]) -> dict[str, Any]:
            return {**super()._page({}), "nextCursor": "again"}

    async with over_http(Circular(pages=[[tool("a")]])) as harness:
        found = await harness.source.discover()
    assert harness.script.asked.count("tools/list") == 2
    assert any("loop" in problem for problem in found.problems)


async def test_a_list_without_end_is_cut_and_the_loop_gets_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TOOLS_MAX", 40)
    found = await discovered([tool(f"t{n:03}") for n in range(30)], [tool(f"u{n:03}") for n in range(30)], [])
    assert len(found.definitions) == 40
    assert any("cut at 40 tools" in problem for problem in found.problems)


async def test_a_list_of_huge_tools_is_cut_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LIST_MAX_BYTES", 100_000)
    found = await discovered([tool(f"t{n}", description="x" * 15_000) for n in range(30)])
    assert len(found.definitions) == 7
    assert any("cut at 7 tools" in problem for problem in found.problems)


async def test_problems_are_reported_up_to_a_bound() -> None:
    found = await discovered([None] * 200)
    assert len(found.problems) == PROBLEMS_MAX
    assert found.problems[-1] == "And 151 more."


async def test_a_server_without_tools_is_read_anyway() -> None:
    class Toolless(Script):
        def _page(self, params: dict[str, Any]) -> dict[str, Any]:
            raise Refusal(-32601, "Method not found")

    async with over_http(Toolless()) as harness:
        found = await harness.source.discover()
    assert (found.definitions, found.problems) == ((), ("The server offers no tools.",))


async def test_a_server_that_is_not_there_fails_the_reading_with_a_reason() -> None:
    async with over_http(Script()) as harness:
        pass
    with pytest.raises(ToolFailure) as caught:
        await harness.source.discover()
    assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_tools_that_can_run_as_tasks_are_remembered_for_the_adapter() -> None:
    async with over_stdio("legacy") as harness:
        found = await harness.source.discover()
        specs = {each.spec.resource_id: each.spec for each in found.definitions}
        resumed = {name for name, spec in specs.items() if harness.adapter.resumes(spec)}
    assert resumed == {"long", "perhaps"}


async def test_a_pin_restores_a_definition_and_its_jobs_resume_before_the_server_answers() -> None:
    async with over_http(Script(generation="legacy")) as harness:
        (pinned,) = [
            each for each in (await harness.source.discover()).definitions if each.spec.resource_id == "perhaps"
        ]
    async with over_http(Script(generation="legacy")) as later:
        restored = later.source.restore_pinned(pinned.remote)
        assert restored is not None
        assert (restored.remote, restored.spec.name) == (pinned.remote, pinned.spec.name)
        assert later.adapter.resumes(pinned.spec)
        assert later.source.restore_pinned({"no": "name"}) is None
