"""A JSON Schema in the words of a table: types, bounds, defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tables import code

Schema = Mapping[str, Any]

_RANGES = (
    ("", "minimum", "maximum"),
    ("length ", "minLength", "maxLength"),
    ("items ", "minItems", "maxItems"),
    ("properties ", "minProperties", "maxProperties"),
)


def told_type(schema: Schema) -> str:
    """`string`, `array of Entry`, `"a"` or `"b"`; `any` where the schema does not say."""
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(told_type(branch) for branch in schema["anyOf"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and schema.get("items"):
        return f"array of {told_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {told_type(schema['additionalProperties']) or 'any'}"
    return str(kind)


def told_bounds(schema: Schema) -> str:
    """`1 … 100`, `length ≤ 40`, `> 0`; empty where there are none."""
    bare = main_branch(schema)
    told = [f"> {bare['exclusiveMinimum']:,}"] if "exclusiveMinimum" in bare else []
    told += [_range(label, bare.get(low), bare.get(high)) for label, low, high in _RANGES]
    told += [f"pattern {code(bare['pattern'])}"] if "pattern" in bare else []
    return ", ".join(part for part in told if part)


def main_branch(schema: Schema) -> Schema:
    """The schema itself, or of `anyOf` the branch that is not null."""
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    return {**branches[0], **schema} if branches else schema


def told_default(schema: Schema, *, required: bool) -> str:
    if required:
        return "required"
    return code(json.dumps(schema["default"], ensure_ascii=False)) if "default" in schema else ""


def _range(label: str, low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None or (label and not low):
        return f"{label}≤ {high:,}" if high is not None else ""
    return f"{label}≥ {low:,}" if high is None else f"{label}{low:,} … {high:,}"
