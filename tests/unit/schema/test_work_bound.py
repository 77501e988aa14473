from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.schema.references import MAX_CHAIN_WORK, MAX_INSTANCE_DEPTH, References, SchemaRefused
from toolhub_service.schema.work_bound import WorkBound, bound_work


def _bound(schema: dict[str, Any]) -> WorkBound:
    return bound_work(References(schema))


def _refusal(schema: dict[str, Any]) -> str:
    with pytest.raises(SchemaRefused) as caught:
        _bound(schema)
    return caught.value.reason


def _doubling(levels: int, step: Any) -> dict[str, Any]:
    """d0 names d1 twice, d1 names d2 twice, …: 2^levels paths in a few kilobytes."""
    definitions = {f"d{level}": step({"$ref": f"#/$defs/d{level + 1}"}) for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "string"}}}


def test_a_plain_schema_costs_one_evaluation_a_level() -> None:
    assert _bound({"properties": {"a": {"items": {"type": "string"}}, "b": {}}}) == WorkBound(MAX_INSTANCE_DEPTH, 3)


def test_alternatives_for_one_value_add_up() -> None:
    assert _bound({"anyOf": [{}, {"allOf": [{}, {}]}, {"not": {}}]}).chain_work == 7
    assert _bound({"if": {}, "then": {}, "else": {}}).chain_work == 4


def test_alternatives_for_different_properties_do_not() -> None:
    branches = [{"properties": {f"p{number}": {"type": "string"}}} for number in range(10)]
    assert _bound({"oneOf": branches}).chain_work == 22 - 10


def test_a_declared_property_is_not_also_an_additional_one() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}
    assert _bound(schema).max_depth == MAX_INSTANCE_DEPTH


def test_a_linear_recursion_may_use_the_whole_depth() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "all": {"items": {"$ref": "#"}}}}
    assert _bound(tree).max_depth == MAX_INSTANCE_DEPTH
    value = {"anyOf": [{"type": "string"}, {"items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]}
    assert _bound(value).max_depth == MAX_INSTANCE_DEPTH


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("levels", [16, 24, 60])
def test_references_that_double_on_one_value_are_refused(keyword: str, levels: int) -> None:
    assert _refusal(_doubling(levels, lambda ref: {keyword: [ref, ref]})) == "too_complex"


@pytest.mark.parametrize("levels", [20, 60, 500])
def test_alternatives_that_double_at_every_level_narrow_the_depth(levels: int) -> None:
    schema = _doubling(levels, lambda ref: {"anyOf": [{"properties": {"x": ref}}, {"properties": {"x": ref}}]})
    bound = _bound(schema)
    assert 8 <= bound.max_depth < 16
    assert bound.chain_work <= MAX_CHAIN_WORK


def test_a_recursion_that_branches_narrows_the_depth() -> None:
    filters = {"filters": {"items": {"$ref": "#"}}}
    schema = {
        "oneOf": [{"properties": {"and": {"const": 1}, **filters}}, {"properties": {"or": {"const": 1}, **filters}}]
    }
    bound = _bound(schema)
    assert 10 <= bound.max_depth < MAX_INSTANCE_DEPTH
    assert bound.chain_work <= MAX_CHAIN_WORK


def test_a_recursion_that_branches_wildly_is_refused() -> None:
    assert _refusal({"anyOf": [{"properties": {"x": {"$ref": "#"}}}] * 50}) == "too_complex"
    assert _refusal({"anyOf": [{"items": {"$ref": "#"}}, {"contains": {"$ref": "#"}}] * 30}) == "too_complex"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "string"}, {"not": {"$ref": "#"}}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}},
        {
            "properties": {"p": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"dependentSchemas": {"x": {"$ref": "#/$defs/a"}}}},
        },
    ],
)
def test_a_cycle_without_progress_is_refused(schema: dict[str, Any]) -> None:
    assert _refusal(schema) == "endless"


def test_a_cycle_through_a_property_is_progress() -> None:
    assert _bound({"properties": {"a": {"$ref": "#"}}}).max_depth == MAX_INSTANCE_DEPTH
    assert _bound({"propertyNames": {"$ref": "#"}}).max_depth == MAX_INSTANCE_DEPTH


def test_an_unused_cycle_is_accepted() -> None:
    assert _bound({"type": "string", "$defs": {"a": {"$ref": "#/$defs/a"}}}).chain_work == 1


def test_long_chains_and_many_combinations_are_refused() -> None:
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(200)}
    assert _refusal({"$ref": "#/$defs/d0", "$defs": {**chain, "d200": {}}}) == "too_complex"
    wide: dict[str, Any] = {f"p{number}": {} for number in range(4000)}
    chained = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(10)}
    uses = {f"u{number}": {"$ref": "#/$defs/d0"} for number in range(400)}
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**chained, "d10": {"properties": wide}}}
    assert _bound(schema).max_depth == MAX_INSTANCE_DEPTH
    many = {**schema, "properties": {name: {**use, "title": name} for name, use in uses.items()}}
    assert _refusal(many) == "too_complex"


def test_long_lists_to_compare_with_weigh_more() -> None:
    assert _bound({"enum": list(range(1600))}).chain_work == 101
    assert _bound({"required": [str(number) for number in range(320)]}).chain_work == 21


def test_up_to_draft_7_a_reference_hides_its_siblings() -> None:
    schema = {"$ref": "#/definitions/a", "allOf": [{"$ref": "#"}], "definitions": {"a": {}}}
    assert _refusal(schema) == "endless"
    assert _bound({"$schema": "http://json-schema.org/draft-07/schema#", **schema}).chain_work == 2
