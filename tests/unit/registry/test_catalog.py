from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ports.catalog_suite import CatalogSuite, tool
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, Violation, refuse
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolKind, ToolState
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.schema.compiled import compile_schema


def empty() -> ToolCatalog:
    return ToolCatalog(check_schema=compile_schema)


def filled(*names: str) -> ToolCatalog:
    catalog = empty()
    catalog.register_all([tool(name) for name in names])
    return catalog


def refusal_of(catalog: ToolCatalog, name: str, **fields: object) -> HubFailure:
    with pytest.raises(HubFailure) as caught:
        catalog.register(tool(name, **fields))  # type: ignore[arg-type]
    assert catalog.get(name) is None or fields
    return caught.value


class TestToolCatalog(CatalogSuite):
    @pytest.fixture
    def catalog(self) -> ToolCatalog:
        return empty()


@pytest.mark.parametrize(
    "name",
    ["core2/fs.read", "github/search_issues", "n8n/a.b.c-d", "my-ns/x", "a/" + "b" * 126, "0x/1.2"],
)
def test_names_that_follow_the_grammar_are_taken(name: str) -> None:
    catalog = empty()
    catalog.register(tool(name))
    assert catalog.get(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "noslash",
        "a/",
        "/a",
        "a//b",
        "a/b/c",
        "A/b",
        "a/b..c",
        "a/b.",
        "a/.b",
        "a/b c",
        "a/b\n",
        "a/é",
        "а/b",  # Cyrillic a
        "a/-b",
        "a/" + "b" * 127,
        "../a",
        "a/b\u200bc",
    ],
)
def test_names_that_break_the_grammar_are_refused(name: str) -> None:
    failure = refusal_of(empty(), name)
    assert failure.reason.code is Code.INVALID_ARGUMENT
    assert failure.reason.name == "TOOL_NAME_INVALID"


@pytest.mark.promise("registry.names-are-safe")
@pytest.mark.parametrize(
    "name", ["core/fs.readText", "core/anything", "co-re/fs.readText", "c_o_r_e/x", "core_/x", "core-/x"]
)
def test_the_core_namespace_and_its_likenesses_are_reserved(name: str) -> None:
    failure = refusal_of(empty(), name)
    assert failure.reason.code is Code.PERMISSION_DENIED
    assert failure.reason.name == "TOOL_NAME_RESERVED"


def test_claiming_the_core_source_does_not_open_the_core_namespace() -> None:
    assert (
        refusal_of(empty(), "core/fs.readText", source="core", kind=ToolKind.CORE).reason.name == "TOOL_NAME_RESERVED"
    )


def test_built_in_tools_can_neither_be_replaced_nor_removed() -> None:
    catalog = empty()
    catalog.register_builtins([tool("core/fs.readText", source="core")])
    with pytest.raises(HubFailure):
        catalog.register(tool("core/fs.readText", "Evil.", source="core"), replace=True)
    with pytest.raises(HubFailure):
        catalog.unregister("core/fs.readText")
    assert list(catalog.register_all([], removing=["core/fs.readText"])) == ["core/fs.readText"]
    found = catalog.get("core/fs.readText")
    assert found is not None
    assert found.description == "A tool."


def test_built_in_tools_are_named_core() -> None:
    with pytest.raises(HubFailure) as caught:
        empty().register_builtins([tool("other/x")])
    assert caught.value.reason.name == "TOOL_NAME_INVALID"


@pytest.mark.promise("registry.names-are-safe")
@pytest.mark.parametrize(
    "twin", ["git/getuser", "git/get_User", "git/get.user", "git/get-user", "gi-t/getUser", "gitget/user"]
)
def test_names_that_differ_only_by_case_or_separators_are_refused(twin: str) -> None:
    failure = refusal_of(filled("git/getUser"), twin)
    assert failure.reason.name == "TOOL_NAME_CONFUSABLE"
    assert failure.metadata["known"] == "git/getUser"


def test_a_name_is_free_again_once_its_twin_is_gone() -> None:
    catalog = filled("git/getUser")
    catalog.unregister("git/getUser")
    catalog.register(tool("git/get_user"))
    assert catalog.get("git/get_user") is not None


def test_another_source_cannot_take_over_a_name() -> None:
    catalog = filled("git/getUser")
    with pytest.raises(HubFailure) as caught:
        catalog.register(tool("git/getUser", source="elsewhere"), replace=True)
    assert caught.value.reason.code is Code.ALREADY_EXISTS
    assert "`test`" in caught.value.message


@pytest.mark.parametrize("place", ["input_schema", "output_schema"])
def test_a_broken_schema_is_refused_and_named(place: str) -> None:
    failure = refusal_of(empty(), "git/x", **{place: {"type": "no-such-type"}})
    assert failure.reason.code is Code.INVALID_ARGUMENT
    assert failure.reason.name == "TOOL_SCHEMA_INVALID"
    assert place.replace("_s", "S") in failure.message


def test_the_place_inside_a_broken_schema_is_reported_when_it_is_known() -> None:
    def check(schema: JsonObject) -> None:
        violation = Violation(path="/properties/x/type", keyword="enum", message="no such type")
        raise refuse(ErrorKind.INPUT_SCHEMA_INVALID, "broken", violations=(violation,))

    failure = refusal_of(ToolCatalog(check_schema=check), "git/x")
    assert failure.metadata["path"] == "inputSchema/properties/x/type"


@pytest.mark.promise("registry.whole-batches")
def test_a_batch_is_registered_whole_or_not_at_all_with_a_report_per_tool() -> None:
    catalog = filled("git/a")
    before = catalog.snapshot()
    batch = [tool("git/b"), tool("git/a"), tool("core/c"), tool("git/d", input_schema={"type": 7}), tool("git/b")]
    refused = catalog.register_all(batch)
    assert {name: refusal.reason.name for name, refusal in refused.items()} == {
        "git/a": "TOOL_EXISTS",
        "core/c": "TOOL_NAME_RESERVED",
        "git/d": "TOOL_SCHEMA_INVALID",
        "git/b": "TOOL_EXISTS",
    }
    with pytest.raises(HubFailure, match=r"`git/a` is taken.*\(3 more were refused; nothing was registered\.\)"):
        catalog.check_all(batch)
    assert catalog.snapshot() is before


def test_duplicates_within_a_batch_are_refused() -> None:
    catalog = empty()
    assert list(catalog.register_all([tool("git/get_user"), tool("git/getUser")])) == ["git/getUser"]
    assert not catalog.all()


def test_a_source_swaps_its_tools_in_one_change() -> None:
    catalog = filled("git/a", "git/b")
    changes: list[CatalogChange] = []
    catalog.subscribe(changes.append)
    assert not catalog.register_all([tool("git/b", "New."), tool("git/A")], replace=True, removing=["git/a"])
    (change,) = changes
    assert [spec.name for spec in change.added] == ["git/A"]
    assert [spec.name for spec in change.changed] == ["git/b"]
    assert [spec.name for spec in change.removed] == ["git/a"]
    assert [spec.name for spec in catalog.all()] == ["git/A", "git/b"]
    assert list(catalog.register_all([tool("git/a")])) == ["git/a"]


def test_listeners_receive_changes_only_and_can_stop() -> None:
    catalog = filled("git/a")
    changes: list[CatalogChange] = []
    stop = catalog.subscribe(changes.append)
    catalog.register(tool("git/a"), replace=True)
    assert changes == []
    catalog.register(replace(tool("git/a"), tags=("new",)), replace=True)
    assert [spec.tags for spec in changes[0].changed] == [("new",)]
    stop()
    stop()
    catalog.unregister("git/a")
    assert len(changes) == 1


def test_a_state_can_be_changed_and_keeps_the_definition() -> None:
    catalog = empty()
    catalog.register_builtins([tool("core/a", source="core")])
    known = catalog.get("core/a")
    catalog.set_state("core/a", ToolState.DISABLED, "switched off")
    spec = catalog.get("core/a")
    assert spec is not None
    assert known is not None
    assert (spec.state, spec.state_reason, spec.digest) == (ToolState.DISABLED, "switched off", known.digest)
    with pytest.raises(HubFailure):
        catalog.set_state("core/b", ToolState.ACTIVE)


def test_the_snapshot_counts_and_is_kept_until_something_changes() -> None:
    catalog = filled("git/a", "git/b")
    catalog.register(tool("x/c", kind=ToolKind.SKILL, state=ToolState.QUARANTINED, source="skills"))
    snapshot = catalog.snapshot()
    assert snapshot.totals.tools == 3
    assert snapshot.totals.by_kind == {ToolKind.MCP: 2, ToolKind.SKILL: 1}
    assert snapshot.totals.by_state == {ToolState.ACTIVE: 2, ToolState.QUARANTINED: 1}
    assert snapshot.totals.by_source == {"test": 2, "skills": 1}
    assert catalog.snapshot() is snapshot
    assert catalog.all() is catalog.all()
    catalog.unregister("x/c")
    assert catalog.snapshot() is not snapshot


def test_revisions_of_two_replicas_agree() -> None:
    assert filled("git/a", "git/b").revision == filled("git/b", "git/a").revision
