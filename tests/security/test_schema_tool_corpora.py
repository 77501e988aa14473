"""Schemas of thousands of public tools: all compile but the invalid ones, and defaults keep valid calls valid."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.corpora import FOLDER
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.defaults import compile_defaults
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH, SchemaRefused


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    files = sorted(FOLDER.glob("search/*/tools.jsonl.gz"))
    if not files:
        pytest.skip(f"no search/*/tools.jsonl.gz in {FOLDER}: set TEST_CORPORA to the folder that holds it")
    for path in files:
        for line in gzip.decompress(path.read_bytes()).splitlines():
            tool = json.loads(line)
            if tool.get("input_schema") is not None:
                yield f"{path.parent.name}/{tool['name']}", tool["input_schema"]


def _sample(schema: dict[str, Any], depth: int = 6) -> Any:
    """A plain value for a tool's schema: required properties, and objects wherever one is declared."""
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        wanted = set(schema.get("required", ())) | {
            name for name, child in properties.items() if child.get("type") in ("object", "array")
        }
        return {name: _sample(properties.get(name, {}), depth - 1) for name in sorted(wanted)} if depth else {}
    if kind == "array":
        return [_sample(schema.get("items") or {}, depth - 1)] * max(1, schema.get("minItems", 1)) if depth else []
    number = max(schema.get("minimum", 1), 1)
    samples = {"string": "x" * schema.get("minLength", 1), "integer": number, "number": number, "boolean": True}
    return samples.get(str(kind))


def test_every_tool_schema_compiles_unless_it_is_invalid_itself() -> None:
    compiled = 0
    for name, schema in _schemas():
        try:
            bound = compile_schema(schema).bound
        except SchemaRefused as refused:
            with pytest.raises(jsonschema.SchemaError):
                jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
            print(name, refused)
        else:
            assert bound.max_depth == MAX_INSTANCE_DEPTH, name
            compiled += 1
    assert compiled > 3000


def test_defaults_are_filled_and_keep_a_valid_call_valid() -> None:
    filled_calls = 0
    for name, document in _schemas():
        schema = compile_schema(document)
        plan = compile_defaults(schema)
        args = _sample(document)
        if plan.is_empty or not isinstance(args, dict) or not schema.is_valid(args):
            continue
        before = json.dumps(args)
        completed, filled = plan.fill(args)
        assert json.dumps(args) == before, name
        assert schema.validate(completed) == (), name
        assert (completed is args) is (not filled), name
        assert plan.fill(completed) == (completed, ()), name
        filled_calls += bool(filled)
    assert filled_calls > 500
