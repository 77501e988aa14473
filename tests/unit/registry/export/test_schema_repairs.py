from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import pytest

from toolhub_service.domain.json import JsonObject
from toolhub_service.registry.export.schema_repairs import (
    DOTTED_NAMES,
    PLAIN_NAMES,
    accepted_names,
    cut_description,
    dereference,
    object_schema,
    rename,
    repair,
)


def test_a_schema_that_is_accepted_everywhere_is_not_touched() -> None:
    nested: JsonObject = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "null"}]}},
        "if": {},
        "$schema": "s",
    }
    assert object_schema(nested) is nested


@pytest.mark.parametrize(
    ("schema", "flat"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (
            {
                "anyOf": [
                    {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
                    {"properties": {"a": {}}, "required": ["a"]},
                ]
            },
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]},
        ),
        (
            {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"type": "object", "properties": {"a": {}}},
        ),
        (
            {"allOf": [{"required": ["a"], "properties": {"a": {"const": 1}}}, {"required": ["b"]}]},
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "b"]},
        ),
        (
            {"oneOf": [{"properties": {"op": {"const": "x"}}}, {"properties": {"op": {"const": "y"}}}]},
            {"type": "object", "properties": {"op": {"anyOf": [{"const": "x"}, {"const": "y"}]}}},
        ),
        (
            {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}},
            {
                "type": "object",
                "properties": {"a": {}},
                "required": ["a"],
                "$defs": {"T": {"type": "object", "properties": {"a": {}}, "required": ["a"]}},
            },
        ),
        ({"type": ["object", "null"], "not": {"required": ["a"]}}, {"type": "object", "properties": {}}),
        ({"$ref": "#"}, {"$ref": "#", "type": "object", "properties": {}}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, None),
    ],
)
def test_a_root_that_is_refused_becomes_one_object(schema: JsonObject, flat: JsonObject | None) -> None:
    found = object_schema(schema)
    assert found["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "not", "enum", "const"} & found.keys()
    if flat is not None:
        assert found == flat


def test_no_property_is_required_or_forbidden_that_the_original_lets_be() -> None:
    chance = random.Random(9)
    compared = 0
    for _ in range(300):
        schema = _random_schema(chance, 3)
        original = jsonschema_rs.validator_for(schema)
        exported = jsonschema_rs.validator_for(dict(object_schema(schema)))
        for _ in range(20):
            value = {name: chance.choice([1, "x", None]) for name in chance.sample("abcd", chance.randint(0, 4))}
            if original.is_valid(value):
                compared += 1
                assert exported.is_valid(value), (schema, object_schema(schema), value)
    assert compared > 500


def _random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"} if chance.random() < 0.5 else {}
    if chance.random() < 0.7:
        schema["properties"] = {name: {} for name in chance.sample("abcd", 2)}
    if chance.random() < 0.5:
        schema["required"] = chance.sample("abcd", 1)
    if chance.random() < 0.2:
        schema["additionalProperties"] = False
    if depth and chance.random() < 0.8:
        keyword = chance.choice(["anyOf", "oneOf", "allOf", "not"])
        branches = [_random_schema(chance, depth - 1) for _ in range(2)]
        schema[keyword] = branches[0] if keyword == "not" else branches
    return schema


@pytest.mark.parametrize(
    ("schema", "repaired"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["string", "array"]}, {"type": ["string", "array"], "items": {}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        (
            {"type": "array", "prefixItems": [{}, {}], "items": False},
            {"type": "array", "prefixItems": [{}, {}], "items": {}, "maxItems": 2},
        ),
        ({"items": [{}], "additionalItems": {"type": "null"}}, {"prefixItems": [{}], "items": {"type": "null"}}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"enum": [{"type": "array"}]}, {"enum": [{"type": "array"}]}),
    ],
)
@pytest.mark.parametrize("keyword", ["properties", "items", "anyOf", "$defs", "additionalProperties", "not"])
def test_what_an_interface_refuses_is_repaired_at_every_place(
    schema: JsonObject, repaired: JsonObject, keyword: str
) -> None:
    def within(part: JsonObject) -> Any:
        if keyword in ("properties", "$defs"):
            return {"type": "object", keyword: {"items": part}}
        return {"type": "object", keyword: [part] if keyword == "anyOf" else part}

    assert repair(within(schema)) == within(repaired)


def test_a_repaired_schema_no_longer_names_its_old_draft_and_an_accepted_one_is_the_same() -> None:
    draft = "http://json-schema.org/draft-07/schema#"
    assert repair({"$schema": draft, "type": "array"}) == {"type": "array", "items": {}}
    accepted: JsonObject = {"$schema": draft, "type": "array", "items": {}}
    assert repair(accepted) is accepted


def test_refused_names_get_accepted_ones_that_differ_from_all_others() -> None:
    names = ["filter[a]", "filter{a}", "filter_a_", "$top", "a" * 65, "a" * 64 + "b", "naïve", "", "1st", "fine.one"]
    schema: JsonObject = {"type": "object", "properties": {name: {} for name in names}}
    for rule in (DOTTED_NAMES, PLAIN_NAMES):
        accepted = accepted_names(schema, rule)
        shown = [accepted.get(name, name) for name in names]
        assert len(set(shown)) == len(names)
        assert all(rule.accepted.fullmatch(name) for name in shown)
        assert accepted == accepted_names({"properties": {name: {} for name in reversed(names)}}, rule)
    assert accepted_names(schema, DOTTED_NAMES)["$top"] == "_top"


def test_a_renamed_property_is_renamed_wherever_the_schema_names_it() -> None:
    schema: JsonObject = {
        "properties": {"a[b]": {"properties": {"$x": {}}}, "c": {"$ref": "#/properties/a[b]/properties/$x"}},
        "required": ["a[b]"],
        "dependentRequired": {"a[b]": ["c"]},
    }
    assert rename(schema, {"a[b]": "a_b_", "$x": "_x"}) == {
        "properties": {"a_b_": {"properties": {"_x": {}}}, "c": {"$ref": "#/properties/a_b_/properties/_x"}},
        "required": ["a_b_"],
        "dependentRequired": {"a_b_": ["c"]},
    }
    assert rename(schema, {}) is schema


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Short.", "Short."),
        ("One. Two, which is long, and longer still.", "One. (more)"),
        ("一。二，它更长，还要更长，长得放不下了，真的放不下。", "一。 (more)"),
        ("no sentence ends in these many words", "no sentence (more)"),
        ("x" * 40, "x" * 13 + " (more)"),
    ],
)
def test_a_description_is_cut_after_a_whole_sentence(text: str, kept: str) -> None:
    shown = cut_description(text, 20, "(more)")
    assert shown == kept
    assert len(shown) <= 20


def test_references_are_followed_through_lists_and_escapes_and_anchors_are_left() -> None:
    leaf: JsonObject = {"type": "string"}
    root: JsonObject = {"$defs": {"a b/c": leaf}, "anyOf": [{}, {"title": "second"}]}
    assert dereference({"$ref": "#/$defs/a%20b~1c", "title": "t"}, root) == {"type": "string", "title": "t"}
    assert dereference({"$ref": "#/anyOf/1"}, root) == {"title": "second"}
    assert dereference({"$ref": "#/anyOf/9"}, root) == {}
    assert dereference({"$ref": "#leaf"}, root) == {"$ref": "#leaf"}
