"""Foreign schemas without the parts that cannot be enforced: never stricter than the original, and within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.references import SchemaRefused
from toolhub_service.schema.relaxing import compile_relaxed, repair_schema

UNFIT = r"^(?!a)b"
TEXT: dict[str, Any] = {"type": "string", "pattern": UNFIT}


def accepts(schema: Any, value: Any) -> bool:
    return compile_relaxed(repair_schema(schema).schema).is_valid(value)


def test_a_good_schema_stays_the_same_object() -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}
    assert repair_schema(schema) == (schema, ())
    assert repair_schema(schema).schema is schema


def test_a_pattern_is_shown_as_it_is_and_not_enforced() -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": TEXT, "b": {"type": "string", "pattern": "^b$"}}}
    repaired = repair_schema(schema)
    assert repaired.schema is schema
    assert len(repaired.notes) == 1
    assert UNFIT in repaired.notes[0]
    assert accepts(schema, {"a": "anything"})
    assert not accepts(schema, {"a": 7})
    assert not accepts(schema, {"b": "c"})


def test_members_keep_their_order_where_something_is_left_out() -> None:
    schema: JsonObject = {"type": "object", "title": "T", "properties": {"z": {"$ref": "#/no"}, "a": {"type": "str"}}}
    repaired = repair_schema(schema)
    assert list(repaired.schema) == ["type", "title", "properties"]
    assert repaired.schema["properties"] == {"z": {}, "a": {}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"not": TEXT}, "b"),
        ({"not": {"anyOf": [TEXT]}}, "b"),
        ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"properties": {"t": TEXT}}}}, {"t": "x"}),
        ({"oneOf": [{"type": "string"}, TEXT]}, "x"),
        ({"oneOf": [{"type": "string"}, TEXT], "anyOf": [{"type": "string"}]}, "x"),
        ({"if": TEXT, "then": False}, "x"),
        ({"contains": TEXT, "maxContains": 1}, ["x", "y"]),
        ({"patternProperties": {UNFIT: {"type": "string"}}, "additionalProperties": False}, {"b": "x"}),
        ({"allOf": [{"patternProperties": {UNFIT: {}}}], "unevaluatedProperties": False}, {"b": 1}),
        ({"$ref": "#/no", "unevaluatedProperties": False}, {"b": 1}),
        ({"not": {"$ref": "#/no"}}, 1),
        ({"properties": [], "additionalProperties": False}, {"a": 1}),
        ({"properties": {"a": "text"}, "additionalProperties": False}, {"a": 1}),
        ({"propertyNames": TEXT}, {"x": 1}),
    ],
)
def test_what_the_original_may_accept_is_accepted(schema: Any, value: Any) -> None:
    assert accepts(schema, value)


def test_a_list_of_items_is_read_as_older_drafts_mean_it() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "number"}]}
    assert accepts(pair, ["a", 1])
    assert not accepts(pair, [1, "a"])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#"}, "endless"),
        ({"description": "x" * 300_000}, "too_large"),
        ({"properties": {f"p{n}": {"pattern": f"(?!{n})"} for n in range(40)}}, "pattern"),
        ({"properties": {f"p{n}": {"type": "str"} for n in range(100)}}, "invalid"),
    ],
)
def test_a_schema_beyond_the_bounds_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        repair_schema(schema)
    assert refused.value.reason == reason
