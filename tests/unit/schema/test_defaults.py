from __future__ import annotations

import copy
from typing import Any

import pytest

from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.defaults import DefaultsPlan, compile_defaults


def _plan(schema: dict[str, Any]) -> DefaultsPlan:
    return compile_defaults(compile_schema(schema))


def _fill(schema: dict[str, Any], args: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    before = copy.deepcopy(args)
    completed, filled = _plan(schema).fill(args)
    assert args == before, "the input is never touched"
    assert (completed is args) is (not filled), "a new object exactly when something was filled"
    return completed, filled


PAGE = {"type": "object", "properties": {"size": {"type": "integer", "default": 20}, "after": {"type": "string"}}}


def test_absent_properties_are_filled_and_reported() -> None:
    schema = {"properties": {"a": {"default": 1}, "b/c~": {"default": "x"}, "d": {}}}
    assert _fill(schema, {"a": 5}) == ({"a": 5, "b/c~": "x"}, ("/b~1c~0",))
    assert _fill(schema, {"a": 5, "b/c~": ""}) == ({"a": 5, "b/c~": ""}, ())


@pytest.mark.promise("defaults.by-the-hub")
@pytest.mark.parametrize("present", [None, 0, False, "", [], {}])
def test_present_values_of_any_kind_are_kept(present: Any) -> None:
    assert _fill({"properties": {"a": {"default": 1}}}, {"a": present}) == ({"a": present}, ())


@pytest.mark.parametrize("default", [None, 0, False, "", [], {}])
def test_empty_defaults_are_defaults(default: Any) -> None:
    assert _fill({"properties": {"a": {"default": default}}}, {}) == ({"a": default}, ("/a",))


def test_a_missing_parent_is_not_created_for_a_childs_default() -> None:
    assert _fill({"properties": {"page": PAGE}}, {}) == ({}, ())
    assert _fill({"properties": {"page": PAGE}}, {"page": {}}) == ({"page": {"size": 20}}, ("/page/size",))
    assert _fill({"properties": {"page": PAGE}}, {"page": None}) == ({"page": None}, ())


def test_a_parent_that_has_a_default_is_filled_inside() -> None:
    schema = {"properties": {"page": {**PAGE, "default": {"after": "x"}}}}
    assert _fill(schema, {}) == ({"page": {"after": "x", "size": 20}}, ("/page",))


def test_defaults_of_default_objects_reach_several_levels() -> None:
    inner = {"type": "object", "default": {}, "properties": {"page": {**PAGE, "default": {}}}}
    assert _fill({"properties": {"q": inner}}, {}) == ({"q": {"page": {"size": 20}}}, ("/q",))


def test_items_of_arrays_are_completed_each() -> None:
    completed, filled = _fill({"properties": {"l": {"items": PAGE}}}, {"l": [{}, {"size": 1}, 7, {}]})
    assert completed == {"l": [{"size": 20}, {"size": 1}, 7, {"size": 20}]}
    assert filled == ("/l/0/size", "/l/3/size")


def test_tuple_items_follow_their_position_in_old_and_new_drafts() -> None:
    new = {"properties": {"l": {"prefixItems": [{}, PAGE], "items": {"properties": {"r": {"default": 1}}}}}}
    expected = {"l": [{}, {"size": 20}, {"r": 1}]}
    assert _fill(new, {"l": [{}, {}, {}]})[0] == expected
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"l": {"items": [{}, PAGE]}}}
    assert _fill(old, {"l": [{}, {}, {}]})[0] == {"l": [{}, {"size": 20}, {}]}


def test_local_references_are_followed() -> None:
    schema = {
        "properties": {"page": {"$ref": "#/$defs/page"}, "n": {"$ref": "#/$defs/n"}},
        "$defs": {"page": PAGE, "n": {"default": 3}},
    }
    assert _fill(schema, {"page": {}})[0] == {"page": {"size": 20}, "n": 3}


def test_a_default_beside_a_reference_comes_first() -> None:
    for dialect in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        schema = {
            "$schema": dialect,
            "properties": {"n": {"default": 1, "$ref": "#/definitions/n"}},
            "definitions": {"n": {"type": "integer", "default": 2}},
        }
        assert _fill(schema, {}) == ({"n": 1}, ("/n",))


def test_cyclic_references_end() -> None:
    node = {
        "properties": {
            "v": {"default": 1},
            "next": {"$ref": "#/$defs/node"},
            "all": {"items": {"$ref": "#/$defs/node"}},
        }
    }
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    completed, filled = _fill(schema, {"next": {"next": {"v": 2}}, "all": [{}]})
    assert completed == {"v": 1, "next": {"v": 1, "next": {"v": 2}}, "all": [{"v": 1}]}
    assert set(filled) == {"/v", "/next/v", "/all/0/v"}


def test_a_default_object_never_holds_itself() -> None:
    node = {"type": "object", "default": {}, "properties": {"v": {"default": 1}, "next": {"$ref": "#/$defs/node"}}}
    completed, filled = _fill({"properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}, {})
    assert filled == ("/x",)
    assert completed["x"]["v"] == 1
    assert len(repr(completed)) < 200


def test_the_first_definition_in_all_of_wins() -> None:
    parts = [{"properties": {"a": {"default": 1}}}, {"properties": {"a": {"default": 2}, "b": {"default": 3}}}]
    assert _fill({"allOf": parts}, {}) == ({"a": 1, "b": 3}, ("/a", "/b"))
    assert _fill({"properties": {"b": {"default": 9}}, "allOf": parts}, {})[0] == {"a": 1, "b": 9}
    assert _fill({"properties": {"n": {"allOf": [{"type": "integer"}, {"default": 4}, {"default": 5}]}}}, {})[0] == {
        "n": 4
    }


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_defaults_of_alternatives_without_a_tag_are_not_filled(keyword: str) -> None:
    branches = [{"properties": {"a": {"default": 1}, "kind": {"type": "string"}}}, {"required": ["z"]}]
    assert _plan({keyword: branches}).is_empty
    assert _plan({keyword: [{"properties": {"kind": {"const": "a"}, "a": {"default": 1}}}, {}]}).is_empty


@pytest.mark.parametrize("keyword", ["not", "if", "then", "else"])
def test_defaults_of_conditions_are_not_filled(keyword: str) -> None:
    assert _plan({keyword: {"properties": {"a": {"default": 1}}}}).is_empty


def test_defaults_of_dependent_schemas_are_not_filled() -> None:
    assert _plan({"dependentSchemas": {"b": {"properties": {"a": {"default": 1}}}}}).is_empty


TAGGED = [
    {"properties": {"kind": {"const": "circle"}, "radius": {"default": 1}}, "required": ["kind"]},
    {"$ref": "#/$defs/square"},
    {"properties": {"kind": {"enum": ["line", "ray"]}, "length": {"default": 3}}, "required": ["kind"]},
]
SQUARE = {"properties": {"kind": {"const": "square"}, "side": {"default": 2}}, "required": ["kind"]}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("kind", "added"), [("circle", {"radius": 1}), ("square", {"side": 2}), ("ray", {"length": 3}), ("dot", {})]
)
def test_a_tag_picks_the_one_branch(keyword: str, kind: str, added: dict[str, Any]) -> None:
    schema = {"properties": {"shape": {keyword: TAGGED}}, "$defs": {"square": SQUARE}}
    assert _fill(schema, {"shape": {"kind": kind}})[0] == {"shape": {"kind": kind, **added}}


def test_a_missing_or_odd_tag_picks_nothing() -> None:
    schema = {"oneOf": TAGGED, "$defs": {"square": SQUARE}}
    for args in ({}, {"kind": None}, {"kind": ["circle"]}, {"kind": 1}):
        assert _fill(schema, args) == (args, ())


def test_a_tag_that_two_branches_share_picks_neither() -> None:
    branches = [{"properties": {"k": {"const": "a"}, "x": {"default": n}}} for n in (1, 2)]
    third = {"properties": {"k": {"const": "b"}, "x": {"default": 3}}}
    assert _fill({"anyOf": [*branches, third]}, {"k": "a"}) == ({"k": "a"}, ())
    assert _fill({"anyOf": [*branches, third]}, {"k": "b"}) == ({"k": "b", "x": 3}, ("/x",))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "default": None},
        {"enum": ["a"], "default": "b"},
        {"type": "integer", "minimum": 1, "default": 0},
        {"$ref": "#/$defs/text", "default": 5},
        {"allOf": [{"$ref": "#/$defs/text"}], "default": 5},
        {"type": "array", "items": {"$ref": "#/$defs/text"}, "default": [1]},
    ],
)
def test_a_default_that_breaks_its_own_schema_is_dropped_and_others_stay(schema: dict[str, Any]) -> None:
    whole = {
        "properties": {"a": schema, "b": {"$ref": "#/$defs/text", "default": "ok"}},
        "$defs": {"text": {"type": "string"}},
    }
    assert _fill(whole, {}) == ({"b": "ok"}, ("/b",))


@pytest.mark.parametrize(
    "identifier", [None, "http://example.net/s.json", "http://example.net/s.json#", "s.json", "urn:x:y"]
)
@pytest.mark.parametrize(
    "dialect",
    [
        None,
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
    ],
)
def test_defaults_are_checked_in_every_draft_and_under_every_id(identifier: str | None, dialect: str | None) -> None:
    schema: dict[str, Any] = {
        "properties": {
            "a b/%": {"allOf": [{"$ref": "#/definitions/n"}], "default": 1},
            "bad": {"type": "string", "default": 1},
        },
        "definitions": {"n": {"type": "integer"}},
    }
    if identifier:
        schema["id" if dialect and "draft-04" in dialect else "$id"] = identifier
    if dialect:
        schema["$schema"] = dialect
    assert _fill(schema, {}) == ({"a b/%": 1}, ("/a b~1%",))


def test_mutable_defaults_are_copied_for_every_call() -> None:
    plan = _plan({"properties": {"a": {"default": {"l": [1, {"x": []}]}}}})
    first: Any = plan.fill({})[0]
    first["a"]["l"][1]["x"].append("changed")
    first["a"]["new"] = True
    assert plan.fill({})[0] == {"a": {"l": [1, {"x": []}]}}


def test_untouched_parts_are_shared_and_touched_ones_are_new() -> None:
    args: Any = {"page": {}, "other": {"deep": [1]}}
    completed: Any = _plan({"properties": {"page": PAGE, "other": {"properties": {"deep": {}}}}}).fill(args)[0]
    assert completed["other"] is args["other"]
    assert completed["page"] is not args["page"]


def test_a_property_named_default_is_no_default() -> None:
    assert _plan({"properties": {"default": {"type": "string"}}}).is_empty
    assert _fill({"properties": {"default": {"default": "x"}}}, {}) == ({"default": "x"}, ("/default",))


def test_large_integers_stay_exact() -> None:
    completed: Any = _fill({"properties": {"n": {"type": "integer", "default": 2**70 + 1}}}, {})[0]
    assert completed["n"] == 2**70 + 1


def test_skipped_pointers_are_left_out() -> None:
    plan = _plan({"properties": {"a": {"default": 1}, "b": {"default": 2}}})
    assert plan.fill({}, skip={"/a"}) == ({"b": 2}, ("/b",))
    args: dict[str, Any] = {}
    assert plan.fill(args, skip={"/a", "/b"})[0] is args
