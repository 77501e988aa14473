from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.schema.compiled import compile_schema

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _all(schema: Any, value: Any) -> tuple[Violation, ...]:
    return compile_schema(schema).validate(value)


def _one(schema: Any, value: Any) -> Violation:
    (violation,) = _all(schema, value)
    return violation


def _of(schema: Any, value: Any) -> Violation:
    """The violation of a property named `a`."""
    violation = _one({"properties": {"a": schema}}, {"a": value})
    assert violation.path == "/a"
    assert violation.message.startswith("`/a` ")
    assert violation.message.endswith(".")
    return violation


@pytest.mark.promise("errors.repairable-arguments")
@pytest.mark.parametrize(
    ("schema", "value", "keyword", "expected", "words"),
    [
        ({"type": "integer"}, "x", "type", "integer", "must be integer, not string"),
        ({"type": ["integer", "null"]}, [], "type", ["integer", "null"], "integer or null, not array"),
        ({"enum": ["a", 1, None]}, "z", "enum", ["a", 1, None], 'one of "a", 1, null'),
        ({"const": {"x": 1}}, 2, "const", {"x": 1}, 'must be {"x": 1}, not integer 2'),
        ({"minimum": 2}, 1, "minimum", 2, "at least 2, not integer 1"),
        ({"maximum": 2**70}, 2**71, "maximum", 2**70, f"at most {2**70}"),
        ({"exclusiveMinimum": 2}, 2, "exclusiveMinimum", 2, "more than 2"),
        ({"exclusiveMaximum": 2.5}, 3, "exclusiveMaximum", 2.5, "less than 2.5"),
        ({"multipleOf": 5}, 7, "multipleOf", 5, "a multiple of 5"),
        ({"minLength": 3}, "ab", "minLength", 3, "at least 3 characters, not 2"),
        ({"maxLength": 1}, "ab", "maxLength", 1, "at most 1 characters, not 2"),
        ({"pattern": "^a$"}, "b", "pattern", "^a$", "match the pattern ^a$"),
        ({"minItems": 1}, [], "minItems", 1, "at least 1 items, not 0"),
        ({"maxItems": 1}, [1, 2], "maxItems", 1, "at most 1 items, not 2"),
        ({"uniqueItems": True}, [1, 1], "uniqueItems", "unique items", "twice"),
        ({"minProperties": 1}, {}, "minProperties", 1, "at least 1 properties, not 0"),
        ({"maxProperties": 0}, {"x": 1}, "maxProperties", 0, "at most 0 properties, not 1"),
        ({"contains": {"type": "string"}}, [1], "contains", None, "too few or too many items"),
        ({"prefixItems": [{}], "items": False}, [1, 2], "falseSchema", None, "not accepted"),
        ({"not": {"type": "string"}}, "x", "not", None, "ruled out"),
        ({"propertyNames": {"maxLength": 1}}, {"long": 1}, "propertyNames", 1, "`long`"),
        (
            {"dependentRequired": {"x": ["y"]}},
            {"x": 1},
            "required",
            {"property": "y"},
            "lacks the required property `y`",
        ),
        ({"unevaluatedProperties": False}, {"x": 1}, "unevaluatedProperties", [], "no property `x`"),
        ({"unevaluatedItems": False}, [1], "unevaluatedItems", None, "more items"),
    ],
)
def test_each_rule_is_reported_in_its_own_words(
    schema: Any, value: Any, keyword: str, expected: Any, words: str
) -> None:
    violation = _of(schema, value) if keyword != "falseSchema" else _one({"properties": {"a": schema}}, {"a": value})
    assert violation.keyword == keyword
    assert violation.expected == expected
    assert words in violation.message


def test_the_path_is_a_json_pointer() -> None:
    schema = {"properties": {"a/b~c": {"items": {"properties": {"é ": {"type": "string"}}}}}}
    assert _one(schema, {"a/b~c": [{}, {"é ": 1}]}).path == "/a~1b~0c/1/é "
    assert _one({"type": "object"}, 1).path == ""


def test_a_missing_property_is_described() -> None:
    declared = {"type": "string", "description": " Where to look. ", "default": ".", "enum": [".", "/"], "title": "no"}
    violation = _one(
        {"properties": {"root": {"$ref": "#/$defs/root"}}, "required": ["root"], "$defs": {"root": declared}}, {}
    )
    assert violation.expected == {
        "property": "root",
        "type": "string",
        "description": "Where to look.",
        "default": ".",
        "enum": [".", "/"],
    }
    assert violation.hint == 'Add `root`: of type string; default "."; Where to look.'


def test_an_unknown_property_is_met_with_the_nearest_declared_one_that_is_free() -> None:
    schema = {"properties": {"timeoutMs": {}, "timeoutS": {}}, "additionalProperties": False}
    assert _one(schema, {"timeout_ms": 1}).hint == "Did you mean `timeoutMs`?"
    assert _one(schema, {"timeoutMs": 1, "timeout_ms": 1}).hint == "Did you mean `timeoutS`?"
    assert _one(schema, {"zzz": 1}).hint == "Leave it out."
    assert _one(schema, {"zzz": 1}).expected == ["timeoutMs", "timeoutS"]


def test_hints_do_not_come_from_another_resource_of_the_document() -> None:
    schema = {
        "$id": "http://example.net/root",
        "properties": {"a": {"$ref": "part"}, "name": {"description": "the root's own"}},
        "$defs": {"part": {"$id": "part", "required": ["name"]}},
    }
    assert _one(schema, {"a": {}}).expected == {"property": "name"}


@pytest.mark.parametrize(
    ("schema", "value", "hint"),
    [
        ({"enum": ["read", "write"]}, "Raed", 'Did you mean "read"?'),
        ({"enum": ["read", "write"]}, "delete", ""),
        ({"type": "integer"}, " 7 ", "Send the number without quotes."),
        ({"type": "boolean"}, "True", "Send true or false without quotes."),
        ({"type": "object"}, '{"a":1}', "Send the JSON itself, not a string that holds it."),
        ({"type": "array"}, "[1]", "Send the JSON itself, not a string that holds it."),
        ({"type": "array"}, "one", "Send an array, even for one item."),
        ({"type": "string"}, None, "Leave the property out instead of sending null."),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", "Send the number without quotes."),
    ],
)
def test_common_mistakes_of_models_are_answered_with_the_repair(schema: Any, value: Any, hint: str) -> None:
    assert _of(schema, value).hint == hint


SECRET = "hunter2-correct-horse"


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "passwd",
        "apiKey",
        "api_key",
        "X-Api-Key",
        "accessToken",
        "Authorization",
        "client_secret",
        "cookie",
        "pin",
    ],
)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"enum": ["hunter2-correct-horsE"]},
        {"const": 1},
        {"pattern": "^x$"},
        {"minLength": 99},
        {"maxLength": 1},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"const": "a"}, {"const": "b"}]},
        {"not": {}},
        False,
    ],
)
def test_a_value_with_a_secret_name_is_never_shown(name: str, schema: Any) -> None:
    for whole, value in (
        ({"properties": {name: schema}}, {name: SECRET}),
        ({"properties": {"a": {"properties": {name: {"items": schema}}}}}, {"a": {name: [SECRET]}}),
        ({"properties": {"a": {"type": "string"}}}, {"a": {name: SECRET}}),
        ({"properties": {"a": {"const": 1}}}, {"a": [{name: SECRET}]}),
    ):
        assert SECRET not in repr(_all(whole, value))


def test_the_tag_of_a_secret_union_is_not_shown_either() -> None:
    branches = [{"properties": {"token": {"const": text}}} for text in ("a", "b")]
    assert SECRET not in repr(_all({"oneOf": branches}, {"token": SECRET}))


def test_a_public_value_is_shown_but_at_most_64_characters_of_it() -> None:
    assert 'not string "abc".' in _of({"type": "integer"}, "abc").message
    assert "x" * 62 in _of({"type": "integer"}, "x" * 500).message
    assert "x" * 65 not in _of({"type": "integer"}, "x" * 500).message


def test_messages_stay_short_for_any_input() -> None:
    violation = _one({"additionalProperties": False}, {"k" * 10_000: 1})
    assert len(violation.message) < 200
    assert len(_one({"additionalProperties": {"type": "string"}}, {"k" * 10_000: 1}).path) <= 256
    many = _of({"enum": [f"option {number}" for number in range(500)]}, "x")
    assert len(many.message) < 600
    assert "the first 20 of 500" in many.message


CIRCLE = {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]}
SQUARE = {"properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["kind", "side"]}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_the_tagged_branch_is_the_one_explained(keyword: str) -> None:
    schema = {"properties": {"shape": {keyword: [CIRCLE, {"$ref": "#/$defs/square"}]}}, "$defs": {"square": SQUARE}}
    violation = _one(schema, {"shape": {"kind": "square", "r": 1}})
    assert (violation.path, violation.keyword) == ("/shape", "required")
    assert violation.expected == {"property": "side", "type": "number"}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_wrong_tag_is_reported_with_all_tags(keyword: str) -> None:
    violation = _one({keyword: [CIRCLE, SQUARE]}, {"kind": "sqare", "side": 1})
    assert (violation.path, violation.keyword) == ("/kind", keyword)
    assert violation.expected == ["circle", "square"]
    assert violation.hint == 'Did you mean "square"?'


def test_alternatives_of_other_types_are_reported_together() -> None:
    violation = _of({"anyOf": [{"type": "integer"}, {"type": "array"}, {"type": "null"}]}, {})
    assert violation.expected == ["integer", "array", "null"]


def test_the_branch_with_the_fewest_errors_is_explained() -> None:
    near = {"type": "object", "properties": {"x": {"properties": {"y": {"type": "integer"}}}}}
    far = {"type": "object", "required": ["p", "q"]}
    assert _one({"anyOf": [far, near, {"type": "string"}]}, {"x": {"y": "z"}}).path == "/x/y"


def test_nested_alternatives_are_followed() -> None:
    inner = {"anyOf": [{"type": "null"}, {"properties": {"n": {"type": "integer"}}, "type": "object"}]}
    assert (
        _one({"anyOf": [{"type": "null"}, {"properties": {"o": inner}, "type": "object"}]}, {"o": {"n": "x"}}).path
        == "/o/n"
    )


def test_too_many_fitting_alternatives_are_named() -> None:
    violation = _of({"oneOf": [{"type": "string"}, {"type": "integer"}, {"maxLength": 9}]}, "x")
    assert "several alternatives" in violation.message
    assert "0, 2" in violation.hint


def test_at_most_five_are_reported_and_the_outermost_first() -> None:
    schema = {
        "properties": {f"p{number}": {"properties": {"x": {"type": "string"}}} for number in range(9)},
        "required": ["must"],
    }
    violations = _all(schema, {f"p{number}": {"x": 1} for number in range(9)})
    assert len(violations) == 5
    assert violations[0].keyword == "required"


def test_items_that_break_the_same_rule_are_reported_once() -> None:
    schema = {"properties": {"ids": {"items": {"type": "integer"}}, "n": {"type": "integer"}}}
    first, second = _all(schema, {"ids": ["a"] * 9, "n": "x"})
    assert (first.path, second.path) == ("/n", "/ids/0")
    assert "8 more items" in second.hint


def test_two_missing_properties_are_two_violations() -> None:
    violations = _all({"required": ["a", "b"]}, {})
    assert [violation.expected for violation in violations] == [{"property": "a"}, {"property": "b"}]


_NAMES = st.sampled_from(["a", "b", "kind", "token", "x"])
_SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "kind", "7", "{}"])
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3))
_LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object", "array", "null", "boolean", "number"]),
        "enum": st.lists(_SCALARS, min_size=1, max_size=3),
        "const": _SCALARS,
        "minimum": st.integers(-2, 2),
        "maxLength": st.integers(0, 2),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "uniqueItems": st.booleans(),
        "maxProperties": st.integers(0, 1),
    },
)


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(_NAMES, inner, max_size=3),
            "items": inner,
            "additionalProperties": inner | st.booleans(),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    )


@_UNHURRIED
@given(st.recursive(_LEAVES, _grow, max_leaves=8), _VALUES)
def test_every_invalid_value_gets_one_to_five_violations_that_are_json(schema: Any, value: Any) -> None:
    compiled = compile_schema(schema)
    violations = compiled.validate(value)
    assert compiled.is_valid(value) is (not violations)
    assert len(violations) <= 5
    for violation in violations:
        assert violation.message
        assert violation.message.isprintable()
        json.dumps(violation.expected, allow_nan=False)
