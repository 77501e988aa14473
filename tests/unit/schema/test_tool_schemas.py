from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.schema.references import SchemaRefused
from toolhub_service.schema.tool_schemas import for_tool


def _spec(input_schema: dict[str, Any], output_schema: dict[str, Any] | None = None) -> ToolSpec:
    return ToolSpec("demo/a.b", ToolKind.CORE, "", input_schema, output_schema or {})


def test_a_tool_is_compiled_once_per_definition() -> None:
    schema = {"properties": {"a": {"type": "string"}}}
    assert for_tool(_spec(schema)) is for_tool(_spec(dict(schema)))
    assert for_tool(_spec(schema)) is not for_tool(_spec({"properties": {"a": {"type": "integer"}}}))


def test_input_and_output_are_checked_by_their_own_schemas() -> None:
    schemas = for_tool(_spec({"required": ["q"]}, {"required": ["hits"]}))
    assert [violation.keyword for violation in schemas.validate_input({})] == ["required"]
    assert schemas.validate_input({"q": 1}) == ()
    assert [violation.keyword for violation in schemas.validate_output({"q": 1})] == ["required"]
    assert schemas.validate_output({"hits": []}) == ()


@pytest.mark.parametrize("position", [0, 1])
def test_a_refused_schema_is_refused_at_any_place(position: int) -> None:
    schemas: list[dict[str, Any]] = [{}, {}]
    schemas[position] = {"$ref": "http://example.org/x"}
    with pytest.raises(SchemaRefused):
        for_tool(_spec(*schemas))


def test_a_required_property_is_not_saved_by_its_default() -> None:
    schemas = for_tool(_spec({"properties": {"a": {"default": 1}}, "required": ["a"]}))
    (violation,) = schemas.validate_input({})
    assert violation.expected == {"property": "a", "default": 1}


A_DEFAULT = {"a": {"default": 1}, "b": {"default": 2}, "c": {"default": 3}}


@pytest.mark.parametrize(
    ("rule", "args", "completed"),
    [
        ({}, {}, {"a": 1, "b": 2, "c": 3}),
        ({"maxProperties": 2}, {}, {"a": 1, "b": 2}),
        ({"not": {"required": ["a"]}}, {}, {"b": 2, "c": 3}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 9}, {"b": 9, "c": 3}),
        ({"dependentRequired": {"c": ["d"]}}, {}, {"a": 1, "b": 2}),
        ({"dependentRequired": {"c": ["d"]}}, {"d": 0}, {"a": 1, "b": 2, "c": 3, "d": 0}),
        ({"allOf": [{"properties": {"a": {"type": "string"}}}]}, {}, {"b": 2, "c": 3}),
        ({"propertyNames": {"maxLength": 0}}, {}, {}),
    ],
)
def test_defaults_that_would_break_a_valid_call_are_given_up_one_by_one(
    rule: dict[str, Any], args: dict[str, Any], completed: dict[str, Any]
) -> None:
    schemas = for_tool(_spec({"properties": A_DEFAULT, **rule}))
    assert schemas.validate_input(args) == ()
    result, filled = schemas.complete(args)
    assert result == completed
    assert filled == tuple(f"/{name}" for name in completed if name not in args)
    assert schemas.validate_input(result) == ()


def test_complete_arguments_stay_the_very_same_object() -> None:
    args = {"a": 1, "b": 1, "c": 1}
    assert for_tool(_spec({"properties": A_DEFAULT})).complete(args)[0] is args


def test_defaults_are_given_up_together_where_trying_them_one_by_one_would_be_expensive() -> None:
    schemas = for_tool(_spec({"properties": {**A_DEFAULT, "l": {"items": {"type": "integer"}}}, "maxProperties": 3}))
    assert schemas.complete({"l": [1] * 10})[1] == ("/a", "/b")
    args = {"l": [1] * 60_000}
    assert schemas.complete(args) == (args, ())
