"""Input schemas as model interfaces accept them: changed only where a request would otherwise be refused.

OpenAI and Anthropic refuse a whole request when one tool's schema is not `"type": "object"` at its root or has `oneOf`,
`anyOf` or `allOf` there (OpenAI also `enum`, `const` and `not`). Such a root becomes one object schema with the
properties of all branches, required where every branch requires them (for allOf: where any does); a reference at the
root gives way to its target. A property is shown as the branches that name it define it, which is what a model needs
to know; nothing is required that the original does not require, and the hub judges calls by the original. Below the
root nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.domain.json import JsonObject, JsonValue

_UNIONS: Final = ("anyOf", "oneOf")
_MAX_DEPTH: Final = 8
"""References and nested branches that are followed."""
_REFUSED: Final = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not"})


def object_schema(schema: JsonObject) -> JsonObject:
    """The schema with an object at its root and no combinator beside it; the same object when it already is one."""
    if schema.get("type") == "object" and "properties" in schema and _REFUSED.isdisjoint(schema):
        return schema
    kept = {key: value for key, value in _dereferenced(schema, schema).items() if key not in _REFUSED}
    properties, required = _merged(schema, schema)
    flat: dict[str, JsonValue] = {**kept, "type": "object", "properties": properties}
    if required:
        flat["required"] = sorted(required)
    return flat


def _dereferenced(schema: JsonObject, root: JsonObject) -> JsonObject:
    """The schema with a reference within the document replaced by its target; siblings of the reference win."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: JsonValue = root
        for step in reference[2:].split("/"):
            target = _mapping(target).get(step.replace("~1", "/").replace("~0", "~"))
        schema = {**_mapping(target), **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _merged(schema: JsonObject, root: JsonObject, depth: int = 0) -> tuple[dict[str, JsonValue], set[str]]:
    """All properties of a schema and its branches, and those that are required whichever branch applies."""
    schema = _dereferenced(schema, root)
    properties = dict(_mapping(schema.get("properties")))
    required = {name for name in _sequence(schema.get("required")) if isinstance(name, str)}
    if depth > _MAX_DEPTH:
        return properties, required
    for branch in _branches(schema, "allOf"):
        more, needed = _merged(branch, root, depth + 1)
        _add(properties, more)
        required |= needed
    for keyword in _UNIONS:
        unions = [_merged(branch, root, depth + 1) for branch in _branches(schema, keyword)]
        for more, _ in unions:
            _add(properties, more)
        if unions:
            required |= set.intersection(*(needed for _, needed in unions))
    return properties, required


def _add(properties: dict[str, JsonValue], more: Mapping[str, JsonValue]) -> None:
    """Two definitions of one property are both shown: either may be the one that applies."""
    for name, definition in more.items():
        known = properties.setdefault(name, definition)
        if known != definition:
            options = list(_sequence(_mapping(known).get("anyOf"))) or [known]
            properties[name] = {"anyOf": options if definition in options else [*options, definition]}


def _branches(schema: JsonObject, keyword: str) -> list[JsonObject]:
    return [branch for branch in _sequence(schema.get(keyword)) if isinstance(branch, Mapping)]


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
