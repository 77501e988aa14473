from __future__ import annotations

import socket
from typing import Any

import pytest

from toolhub_service.schema import compiled
from toolhub_service.schema.compiled import BoundedCache, check_schema, compile_schema
from toolhub_service.schema.references import MAX_SCHEMA_BYTES, SchemaRefused


def _refusal(schema: Any) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as caught:
        compile_schema(schema)
    return caught.value


def test_a_valid_value_has_no_violations_and_an_invalid_one_has() -> None:
    schema = compile_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert schema.validate({"n": 1}) == ()
    assert schema.is_valid({"n": 1})
    assert [violation.keyword for violation in schema.validate({})] == ["required"]
    assert not schema.is_valid({})


def test_equal_schemas_are_compiled_once_in_any_order_of_their_members() -> None:
    assert compile_schema({"type": "string", "maxLength": 3}) is compile_schema({"maxLength": 3, "type": "string"})
    assert compile_schema({"maxLength": 4}) is not compile_schema({"maxLength": 5})


def test_the_callers_schema_can_change_later_without_effect() -> None:
    source: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    schema = compile_schema(source)
    source["properties"]["a"]["type"] = "integer"
    assert schema.is_valid({"a": "text"})
    assert not schema.is_valid({"a": 1})


@pytest.mark.parametrize("accepting", [True, {}])
def test_the_open_schema_accepts_everything(accepting: Any) -> None:
    assert compile_schema(accepting).validate({"a": [1, None]}) == ()


def test_the_closed_schema_accepts_nothing() -> None:
    assert [violation.keyword for violation in compile_schema(False).validate({})] == ["falseSchema"]


@pytest.mark.parametrize(
    ("dialect", "items_meaning_tuple"),
    [
        ("http://json-schema.org/draft-04/schema#", True),
        ("http://json-schema.org/draft-06/schema#", True),
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/draft-07/schema", True),
        ("https://json-schema.org/draft/2019-09/schema", True),
    ],
)
def test_the_declared_draft_is_honoured(dialect: str, items_meaning_tuple: bool) -> None:
    schema = compile_schema({"$schema": dialect, "items": [{"type": "string"}]})
    assert schema.is_valid(["a", 1]) is items_meaning_tuple
    assert not schema.is_valid([1])


def test_the_default_draft_is_2020_12() -> None:
    schema = compile_schema({"prefixItems": [{"type": "string"}], "items": False})
    assert schema.is_valid(["a"])
    assert not schema.is_valid(["a", "b"])
    assert _refusal({"items": [{"type": "string"}]}).reason == "invalid"


def test_format_is_an_annotation_in_every_draft() -> None:
    for dialect in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        assert compile_schema({"$schema": dialect, "format": "email"}).is_valid("no address")


@pytest.mark.parametrize("dialect", ["http://evil.example/schema", "draft-07", "urn:x"])
def test_an_unknown_dialect_is_refused(dialect: str) -> None:
    assert _refusal({"$schema": dialect}).reason in ("dialect", "invalid")


@pytest.mark.parametrize(
    "reference",
    [
        "http://127.0.0.1:9/schema.json",
        "https://example.org/schema.json#/a",
        "file:///etc/passwd",
        "ftp://example.org/x",
        "data:application/json,{}",
        "//example.org/x",
        "other.json",
        "../other.json#/a",
        "/etc/passwd",
        "other.json#frag",
        "#/nowhere",
        "#unknown-anchor",
        "http://[broken",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_reference_out_of_the_document_is_refused(keyword: str, reference: str) -> None:
    for schema in (
        {keyword: reference},
        {"properties": {"a": {"items": {keyword: reference}}}},
        {"anyOf": [{}, {keyword: reference}]},
        {"$id": "http://example.net/own", "not": {keyword: reference}},
    ):
        assert _refusal(schema).reason == "reference"


@pytest.mark.promise("bounds.schemas")
def test_no_connection_is_ever_opened_for_a_reference() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        for schema in ({"$ref": address}, {"$schema": address}, {"$id": address, "$ref": "other"}):
            _refusal(schema)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_references_inside_the_document_are_followed() -> None:
    schema = compile_schema(
        {
            "$id": "http://example.net/root.json",
            "$defs": {
                "by/pointer~": {"type": "integer"},
                "anchored": {"$anchor": "here", "type": "string"},
                "resource": {"$id": "sub.json", "type": "boolean"},
            },
            "properties": {
                "a": {"$ref": "#/$defs/by~1pointer~0"},
                "b": {"$ref": "#here"},
                "c": {"$ref": "sub.json"},
                "d": {"$ref": "http://example.net/root.json#here"},
            },
        }
    )
    assert schema.is_valid({"a": 1, "b": "x", "c": True, "d": "y"})
    for wrong in ({"a": "x"}, {"b": 1}, {"c": 1}, {"d": 1}):
        assert not schema.is_valid(wrong)


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(?!a)b", "(?<=a)b", "(?<!a)b", r"(a)\1", "(", "[", "a{1,1000000}", "(a{1,1000}){1,1000}"]
)
def test_a_pattern_that_is_not_linear_or_is_too_large_is_refused(pattern: str) -> None:
    assert _refusal({"properties": {"a": {"pattern": pattern}}}).reason == "pattern"
    assert _refusal({"patternProperties": {pattern: {}}}).reason == "pattern"


def test_patterns_that_are_too_large_together_are_refused() -> None:
    def patterns(count: int, text: str) -> dict[str, Any]:
        return {"properties": {f"p{number}": {"pattern": f"{text}{number}"} for number in range(count)}}

    assert _refusal(patterns(400, "a{1,1000}")).reason == "pattern"
    assert compile_schema(patterns(400, r"^\d{4}-\d{2}-\d{2}$|^")).is_valid({"p1": "2026-11-21"})


@pytest.mark.promise("bounds.regex-linear")
def test_catastrophic_patterns_take_linear_time() -> None:
    for pattern in ("^(a+)+$", "^(a|a)*$", "^(a|aa)+$", r"^(\w+\s?)*$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y"):
        assert not compile_schema({"pattern": pattern}).is_valid("a" * 50_000 + "!\n")


def test_integers_are_compared_exactly() -> None:
    schema = compile_schema({"properties": {"n": {"maximum": 2**70}}})
    assert schema.is_valid({"n": 2**70})
    assert not schema.is_valid({"n": 2**70 + 1})
    exact = compile_schema({"const": 2**53 + 1})
    assert exact.is_valid(2**53 + 1)
    assert not exact.is_valid(2**53)


@pytest.mark.parametrize("schema", [{"type": "strin"}, {"required": "a"}, {"minimum": "1"}, {"exclusiveMinimum": True}])
def test_an_invalid_schema_is_refused_with_its_place(schema: dict[str, Any]) -> None:
    refused = _refusal({"properties": {"a": schema}})
    assert refused.reason == "invalid"
    assert "/properties/a/" in refused.advice


@pytest.mark.parametrize("schema", [[], 1, "x", None, {"const": float("nan")}, {"enum": [object()]}])
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    assert _refusal(schema).reason == "invalid"


def test_size_and_depth_of_a_schema_are_bounded() -> None:
    assert _refusal({"description": "x" * MAX_SCHEMA_BYTES}).reason == "too_large"
    deep: Any = {}
    for _ in range(100):
        deep = {"not": deep}
    assert _refusal(deep).reason == "too_deep"
    for _ in range(5000):
        deep = {"not": deep}
    assert _refusal(deep).reason == "invalid"


def test_a_value_that_is_not_json_is_a_violation_and_no_exception() -> None:
    schema = compile_schema({"properties": {"a": {"type": "string"}}})
    value: Any = {"a": object()}
    assert [violation.keyword for violation in schema.validate(value)] == ["type"]
    assert not schema.is_valid(value)


@pytest.mark.parametrize("levels", [65, 1000, 200_000])
def test_a_deep_value_is_refused_before_the_engine_recurses(levels: int) -> None:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"c": value}
    schema = compile_schema({"properties": {"c": {"$ref": "#"}}})
    assert [violation.keyword for violation in schema.validate(value)] == ["depth"]
    assert not schema.is_valid(value)
    while value:
        value = value.pop("c", None)


def test_a_value_at_the_depth_bound_is_checked() -> None:
    value: Any = {}
    for _ in range(63):
        value = {"c": value}
    assert compile_schema({"properties": {"c": {"$ref": "#"}}}).validate(value) == ()


def test_a_schema_once_found_good_is_not_compiled_again_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many large schemas has pushed the first compiled ones out before it is published."""
    monkeypatch.setattr(compiled, "_cache", BoundedCache(1))
    first, second = {"type": "string", "title": "first"}, {"type": "string", "title": "second"}
    standing = compile_schema(first), compile_schema(second)
    check_schema(first)
    assert compile_schema(second) is standing[1]
    assert compile_schema(first) is not standing[0]


def test_a_schema_that_cannot_be_compiled_is_refused_at_every_check() -> None:
    for _ in range(2):
        with pytest.raises(SchemaRefused):
            check_schema({"type": "no such type"})


def test_the_least_recently_used_schema_is_forgotten() -> None:
    cache: BoundedCache[int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_a_value_can_be_replaced() -> None:
    cache: BoundedCache[int] = BoundedCache(1)
    cache.put("a", 1)
    cache.put("a", 2)
    assert (cache.get("a"), len(cache)) == (2, 1)


def test_heavy_values_push_others_out_and_weigh_once() -> None:
    cache: BoundedCache[int] = BoundedCache(100, max_weight=10)
    for _ in range(5):
        cache.put("a", 1, 4)
    cache.put("b", 2, 6)
    assert len(cache) == 2
    cache.put("c", 3, 1)
    assert [cache.get(name) for name in "abc"] == [None, 2, 3]
    cache.put("d", 4, 50)
    assert [cache.get(name) for name in "abcd"] == [None, None, None, 4]
    cache.put("e", 5, 1)
    assert [cache.get(name) for name in "de"] == [None, 5]
