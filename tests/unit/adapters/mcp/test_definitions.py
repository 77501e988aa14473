"""Tool definitions made of a server's descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.adapters.definitions import DESCRIPTION_MAX_BYTES, Overrides, SourceTerms
from toolhub_service.adapters.mcp.definitions import DefinitionReader
from toolhub_service.adapters.tool_names import Unnamed, full_name
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import ToolKind
from toolhub_service.registry.names import check_name
from toolhub_service.schema.relaxing import Relaxed, repair_schema
from toolhub_service.schema.tool_schemas import for_tool
from toolhub_service.sections.source_config import ToolTerms

OBJECT: dict[str, Any] = {"type": "object"}


def reader(overrides: dict[str, ToolTerms] | None = None, **terms: Any) -> DefinitionReader:
    return DefinitionReader(SourceTerms(ToolKind.MCP, "files", **terms), Overrides(overrides), repair_schema)


def read(tool: dict[str, Any], overrides: dict[str, ToolTerms] | None = None, **terms: Any) -> Definition:
    """Of a tool that has an input schema unless it says otherwise."""
    definition = reader(overrides, **terms).read({"inputSchema": OBJECT, **tool}, is_modern=True)
    assert definition is not None
    return definition


def test_a_tool_is_known_by_its_source_and_keeps_its_own_name() -> None:
    spec = read({"name": "read_file", "description": "Reads."}, tags=("docs",), timeout_s=7, max_concurrency=3).spec
    assert (spec.name, spec.resource_id, spec.kind) == ("files/read_file", "read_file", ToolKind.MCP)
    assert (spec.source, spec.upstream, spec.tags) == ("files", "mcp:files", ("docs", "mcp", "files"))
    assert (spec.limits.timeout_s, spec.limits.max_concurrency, spec.limits.max_retries) == (7, 3, 0)
    assert spec.capabilities == {"mcp:files"}
    assert spec.annotations.supports_progress


@pytest.mark.promise("sources.risk-only-rises")
def test_hints_raise_the_risk_and_never_lower_it() -> None:
    kind = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False, "openWorldHint": False}
    hints = read({"name": "a", "annotations": kind}).spec.annotations
    assert (hints.read_only, hints.idempotent) == (False, False)
    wild = {"destructiveHint": True, "openWorldHint": True}
    hints = read({"name": "a", "annotations": wild}).spec.annotations
    assert (hints.destructive, hints.open_world) == (True, True)
    assert not read({"name": "a", "annotations": {"destructiveHint": "true"}}).spec.annotations.destructive


def test_the_operators_last_matching_word_counts() -> None:
    terms = {
        "*": ToolTerms(offered=False),
        "get_*": ToolTerms(read_only=True, capabilities=("read:x",), timeout_s=5, destructive=False),
    }
    spec = read({"name": "get_it", "annotations": {"destructiveHint": True}}, terms).spec
    assert spec.annotations.read_only
    assert not spec.annotations.destructive
    assert spec.capabilities == {"read:x"}
    assert (spec.limits.timeout_s, spec.limits.max_retries) == (5, 2)
    assert reader(terms).read({"name": "put_it", "inputSchema": OBJECT}, is_modern=True) is None


def test_an_error_pattern_that_is_none_is_refused_when_the_source_is_put_together() -> None:
    with pytest.raises(ValueError, match="error_pattern"):
        Overrides({"*": ToolTerms(error_pattern="(?=x)")})


LOOK_AROUND = r"^(?!\.)(?!.*\.\.)[^@]+@[^@]+$"  # of an address, as zod 4.1 writes it
ADDRESS: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "string", "pattern": LOOK_AROUND}}}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({}, OBJECT),
        ({"type": ["object", "null"]}, OBJECT),
        ({"oneOf": [OBJECT]}, {**OBJECT, "oneOf": [OBJECT]}),
        ({"$ref": "#/$defs/A", "$defs": {"A": OBJECT}}, {**OBJECT, "$ref": "#/$defs/A", "$defs": {"A": OBJECT}}),
    ],
)
def test_arguments_are_an_object_whatever_their_schema_says(schema: JsonObject, shown: JsonObject) -> None:
    definition = read({"name": "a", "inputSchema": schema})
    assert (definition.problem, definition.spec.unenforced, definition.spec.input_schema) == ("", (), shown)


@pytest.mark.parametrize(
    ("tool", "shown"),
    [
        ({"inputSchema": None}, OBJECT),
        ({"inputSchema": [1]}, OBJECT),
        ({"inputSchema": {"type": "string"}}, OBJECT),
        ({"inputSchema": ADDRESS}, ADDRESS),
        ({"inputSchema": {"type": "object", "$ref": "https://evil.example/schema"}}, OBJECT),
        ({"inputSchema": {"type": "object", "required": "to"}}, OBJECT),
        ({"outputSchema": "text"}, OBJECT),
        ({"outputSchema": {"type": "nonsense"}}, OBJECT),
        ({"outputSchema": {"$ref": "#"}}, OBJECT),
        ({"description": 7}, OBJECT),
        ({"description": "x" * (DESCRIPTION_MAX_BYTES + 1)}, OBJECT),
        ({"annotations": "harmless"}, OBJECT),
        ({"execution": []}, OBJECT),
    ],
)
def test_a_part_that_cannot_be_used_is_left_out_and_the_tool_stays(tool: dict[str, Any], shown: JsonObject) -> None:
    definition = read({"name": "usable", **tool})
    assert (definition.problem, definition.spec.input_schema, definition.spec.output_schema) == ("", shown, {})
    assert len(definition.spec.unenforced) == 1
    assert len(definition.spec.unenforced[0]) <= 240
    assert for_tool(definition.spec).validate_input({"to": "a..b@c"}) == ()


def test_what_is_left_of_a_schema_is_enforced() -> None:
    closed = {**ADDRESS, "required": ["to"], "additionalProperties": False}
    schemas = for_tool(read({"name": "mail", "inputSchema": closed}).spec)
    assert [violation.keyword for violation in schemas.validate_input({})] == ["required"]
    assert [violation.keyword for violation in schemas.validate_input({"to": 7})] == ["type"]
    assert [violation.keyword for violation in schemas.validate_input({"to": "", "cc": ""})] == ["additionalProperties"]


@pytest.mark.parametrize(
    "tool",
    [
        {"inputSchema": {"type": "object", "description": "x" * 300_000}},
        {"inputSchema": {"type": "object", "$ref": "#"}},
        {"inputSchema": {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}},
    ],
)
def test_arguments_beyond_the_bounds_are_a_problem_and_schemas_stand_in(tool: dict[str, Any]) -> None:
    definition = read({"name": "broken", "outputSchema": OBJECT, **tool})
    assert definition.problem
    assert len(definition.problem) <= 500
    assert (definition.spec.input_schema, definition.spec.output_schema) == (OBJECT, {})


def test_a_long_description_is_shown_as_its_pin_holds_it() -> None:
    long = read({"name": "a", "description": "x" * 100_000})
    again = read(dict(long.remote))
    assert len(long.spec.description) == DESCRIPTION_MAX_BYTES
    assert (again.spec.description, again.remote, again.problem) == (long.spec.description, long.remote, "")


def test_a_schema_too_large_to_be_pinned_stays_a_problem_after_a_restart() -> None:
    large = read({"name": "a", "inputSchema": {"type": "object", "description": "x" * 300_000}})
    assert read(dict(large.remote)).problem


def test_a_schema_nested_without_end_is_a_problem_of_its_tool_alone() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"not": deep}
    definition = read({"name": "deep", "inputSchema": {"type": "object", "not": deep}})
    assert "nested" in definition.problem


@pytest.mark.parametrize(
    "failure", [ValueError("too many branches"), refuse(ErrorKind.INVALID_INPUT, "too many branches")]
)
def test_why_a_schema_is_refused_is_reported_with_its_place(failure: Exception) -> None:
    def refusing(schema: JsonObject) -> Relaxed:
        raise failure

    refused = DefinitionReader(SourceTerms(ToolKind.MCP, "files"), Overrides(), refusing)
    definition = refused.read({"name": "a", "inputSchema": OBJECT}, is_modern=True)
    assert definition is not None
    assert definition.problem == "Its inputSchema cannot be used: too many branches"


@pytest.mark.parametrize("tool", [None, [], {}, {"name": ""}, {"name": 3}, {"name": "x" * 300}])
def test_a_tool_without_a_usable_name_is_reported_and_left_out(tool: Any) -> None:
    with pytest.raises(Unnamed):
        reader().read(tool, is_modern=True)


def test_a_pin_stores_a_definition_word_for_word_and_bounded() -> None:
    tool = {"name": "a", "title": "A", "description": "d", "inputSchema": OBJECT, "outputSchema": {"type": "array"}}
    kept = read({**tool, "annotations": {"readOnlyHint": True}, "icons": [{"src": "x"}], "_meta": {}}).remote
    assert kept == {**tool, "annotations": {"readOnlyHint": True}}
    long = [read({"name": "a", "description": "x" * 10_000_000 + tail}) for tail in "ab"]
    assert all(len(str(each.remote)) < 20_000 for each in long)
    assert pin_digest("files", long[0].remote) != pin_digest("files", long[1].remote)


def test_only_an_older_server_can_require_a_task() -> None:
    tool: JsonObject = {"name": "long", "inputSchema": OBJECT, "execution": {"taskSupport": "required"}}
    old, new = (reader().read(tool, is_modern=is_modern) for is_modern in (False, True))
    assert old is not None
    assert new is not None
    assert (old.spec.cost.is_async, new.spec.cost.is_async) == (True, False)


def test_a_definition_that_stays_is_not_checked_again() -> None:
    checked: list[JsonObject] = []

    def repair(schema: JsonObject) -> Relaxed:
        checked.append(schema)
        return Relaxed(schema)

    known = DefinitionReader(SourceTerms(ToolKind.MCP, "files"), Overrides(), repair)
    tool: JsonObject = {"name": "a", "inputSchema": OBJECT}
    first = known.read(tool, is_modern=True)
    known.begin()
    assert known.read(dict(tool), is_modern=True) is first
    assert len(checked) == 1
    known.begin()
    known.begin()
    known.read(tool, is_modern=True)
    assert len(checked) == 2


@pytest.mark.parametrize(
    ("own", "full"),
    [
        ("read_file", "files/read_file"),
        ("fs.readText", "files/fs.readText"),
        ("a/b c:d", "files/a_b_c_d"),
        ("搜索", "files/u641cu7d22"),
        ("a\u200bb", "files/au200bb"),
        ("-x..y", "files/_-x._.y"),
        (".", "files/_._"),
    ],
)
def test_any_name_fits_the_grammar_and_shows_what_is_hidden_in_it(own: str, full: str) -> None:
    assert full_name("files", own) == full
    check_name(full)


def test_long_names_are_cut_and_stay_apart() -> None:
    names = {full_name("s" * 64, "n" * 200 + tail) for tail in "ab"}
    assert len(names) == 2
    for name in names:
        check_name(name)
