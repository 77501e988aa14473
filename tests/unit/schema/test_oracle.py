"""Verdicts compared with others': python-jsonschema on random schemas, the official suite of two drafts."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.corpora import load_json
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_DRAFTS = {
    "draft7": ("http://json-schema.org/draft-07/schema#", 890),
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", 1230),
}

_NAMES = st.sampled_from(["a", "b", "c"])
_SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 2.0, -1.5]) | st.text("ab1", max_size=4)
)
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=3))
_TYPES = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
_LEAVES = st.booleans() | st.fixed_dictionaries(
    {},
    optional={
        "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "minimum": st.integers(-3, 3),
        "exclusiveMaximum": st.integers(-3, 3),
        "multipleOf": st.integers(1, 3),
        "minLength": st.integers(0, 3),
        "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^(ab)*$"]),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "dependentRequired": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=1), max_size=1),
        "uniqueItems": st.booleans(),
        "maxItems": st.integers(0, 3),
        "minProperties": st.integers(0, 2),
    },
)


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(_NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "prefixItems": some,
            "items": inner,
            "contains": inner,
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "unevaluatedProperties": inner,
            "dependentSchemas": st.dictionaries(_NAMES, inner, max_size=1),
        },
    )


@_UNHURRIED
@given(st.recursive(_LEAVES, _grow, max_leaves=10), _VALUES)
def test_verdicts_agree_with_python_jsonschema_on_random_schemas(schema: Any, value: Any) -> None:
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert compile_schema(schema).is_valid(value) is expected
    assert (compile_schema(schema).validate(value) == ()) is expected


def _leaves_the_document(schema: Any, dialect: str) -> bool:
    """Whether it needs a remote one: one of the suite's own (localhost:1234), or the meta-schema by `$ref`."""
    if isinstance(schema, dict):
        named = [value for key, value in schema.items() if key in ("$ref", "$schema", "$id") and isinstance(value, str)]
        remote = any("localhost:1234" in value for value in named) or _is_meta_schema(schema.get("$ref"), dialect)
        return remote or any(_leaves_the_document(value, dialect) for value in schema.values())
    return isinstance(schema, list) and any(_leaves_the_document(value, dialect) for value in schema)


def _is_meta_schema(reference: Any, dialect: str) -> bool:
    return isinstance(reference, str) and reference.rstrip("#") == dialect.rstrip("#")


@pytest.mark.parametrize("draft", _DRAFTS)
def test_the_official_suite_is_passed_whole(draft: str) -> None:
    """Required tests only; groups that need a remote document are refused or give the right verdict, never fetch."""
    dialect, at_least = _DRAFTS[draft]
    files: dict[str, Any] = load_json(f"json/json_schema_test_suite_{draft}.json.gz")
    groups = [group for name, found in files.items() if "optional" not in name for group in found]
    checked = 0
    for group in groups:
        schema = group["schema"]
        if isinstance(schema, dict):
            schema = {"$schema": dialect, **schema}
        try:
            compiled = compile_schema(schema)
        except SchemaRefused:
            assert _leaves_the_document(group["schema"], dialect), group["description"]
            continue
        for test in group["tests"]:
            assert (compiled.validate(test["data"]) == ()) is test["valid"], (group["description"], test["description"])
            checked += 1
    assert checked >= at_least
