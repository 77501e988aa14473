"""Input schemas for interfaces that know a subset of JSON Schema: OpenAI's strict mode and Gemini.

Both want every object with its properties, no references, and none of most keywords (docs/model-forms.md has each rule
and its source). A schema is written anew: references and `allOf` are put in, a branch of null becomes "may be null",
bounds that cannot be said are told in the description. What has no form at all, such as an object of any names, is a
text that holds its JSON. `model_arguments` turns the arguments back; the hub validates them against the original.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.registry.export.schema_repairs import (
    MAX_DEPTH,
    branches,
    dereference,
    mapping,
    merge_branches,
    object_schema,
    sequence,
)

_LEVELS_MAX: Final = 5
"""Nested objects and arrays of the strict mode."""
_PROPERTIES_MAX: Final = 100
_PLACES_MAX: Final = 2_000
"""Subschemas that are written: references that are put in could make millions of a few."""
_ENUM_VALUES_MAX: Final = 250
_CHARS_MAX: Final = 15_000
"""Of the names of properties and the members of enumerations together."""
_SCALARS: Final = ("string", "integer", "number", "boolean")
# Told in the description, because a model should know them although the interface does not.
_TOLD: Final = (
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format minItems maxItems "
    "uniqueItems default"
).split()
_TOLD_MAX_CHARS: Final = 80
_TEXT_OF: Final = {
    "object": "An object, written as a text of JSON.",
    "array": "A list, written as a text of JSON.",
    "": "A text; or an object or a list, written as a text of JSON.",
}


class Subset(ABC):
    """Writes one schema in a subset. Subclasses say how it spells types and null."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._properties_left = _PROPERTIES_MAX
        self._chars_left = _CHARS_MAX
        self._places_left = _PLACES_MAX
        self._values_left = 2 * _ENUM_VALUES_MAX

    def parameters(self) -> dict[str, Any] | None:
        """Return the schema of all arguments; None when the subset cannot say which there may be."""
        root = object_schema(self._root)
        properties = mapping(root["properties"])
        has_free_names = "patternProperties" in root or mapping(root.get("additionalProperties"))
        is_told = self._take(properties) and not (has_free_names and not properties)
        return self.object(root, 1) if is_told else None

    # How the subset is spelled

    @abstractmethod
    def type_keyword(self, kind: str) -> dict[str, Any]: ...

    @abstractmethod
    def nullable(self, schema: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def null(self) -> dict[str, Any]: ...

    @abstractmethod
    def enum(self, values: Sequence[JsonValue]) -> dict[str, Any]: ...

    @abstractmethod
    def object(self, node: JsonObject, level: int) -> dict[str, Any]: ...

    # The walk

    def schema(self, value: JsonValue, level: int) -> dict[str, Any]:
        """Return a place of the arguments in the subset; `level`: of the object or array that it would be."""
        self._places_left -= 1
        if not isinstance(value, Mapping) or self._places_left < 0:
            return self._any()
        node = _flat(value, self._root)
        written = self._write_type(node, level)
        return self._describe_bounds(written, node)

    def _write_type(self, node: JsonObject, level: int) -> dict[str, Any]:
        values = [node["const"]] if "const" in node else sequence(node.get("enum"))
        scalars = [value for value in values if not isinstance(value, Mapping | list | tuple)]
        if scalars and len(scalars) == len(values):
            return self._enum(scalars)
        if "properties" not in node:
            for keyword in ("anyOf", "oneOf"):
                if options := sequence(node.get(keyword)):
                    shared = {key: node[key] for key in ("type", "items") if key in node}
                    return self._union([{**shared, **mapping(option)} for option in options], level)
        kinds = node.get("type")
        listed = [kinds] if isinstance(kinds, str) else [kind for kind in sequence(kinds) if isinstance(kind, str)]
        if listed:
            written = [self._of_kind(kind, node, level) for kind in listed if kind != "null"]
            return self._join_options(written, can_be_null="null" in listed)
        if "properties" in node:
            return self._of_kind("object", node, level)
        return self._of_kind("array", node, level) if "items" in node or "prefixItems" in node else self._any()

    def _of_kind(self, kind: str, node: JsonObject, level: int) -> dict[str, Any]:
        if kind in _SCALARS:
            return self.type_keyword(kind)
        if level > _LEVELS_MAX:
            return self._text_of(kind)
        if kind == "array":
            return {**self.type_keyword("array"), "items": self._items(node, level + 1)}
        properties, _ = merge_branches(node, self._root)
        return self.object(node, level) if properties and self._take(properties) else self._text_of("object")

    def _take(self, properties: Mapping[str, JsonValue]) -> bool:
        """Return whether so many properties may still be told."""
        self._properties_left -= len(properties)
        self._chars_left -= sum(map(len, properties))
        return self._properties_left >= 0 and self._chars_left >= 0

    def _items(self, node: JsonObject, level: int) -> dict[str, Any]:
        items = node.get("items")
        prefix = sequence(node.get("prefixItems")) or (() if isinstance(items, Mapping) else sequence(items))
        if not prefix:
            return self.schema(items, level)
        rest = items if isinstance(items, Mapping) else node.get("additionalItems")
        return self._union([*prefix, rest] if isinstance(rest, Mapping) and rest else prefix, level)

    def _union(self, options: Sequence[JsonValue], level: int) -> dict[str, Any]:
        nodes = [_flat(option, self._root) if isinstance(option, Mapping) else {} for option in options]
        present = [node for node in nodes if node.get("type") != "null" and node.get("const", 0) is not None]
        written = [self.schema(node, level) for node in present]
        return self._join_options(written, can_be_null=len(present) < len(nodes))

    def _join_options(self, written: Sequence[dict[str, Any]], *, can_be_null: bool) -> dict[str, Any]:
        options: list[dict[str, Any]] = []
        for found in written:
            for each in found["anyOf"] if found.keys() == {"anyOf"} else [found]:
                if each not in options:
                    options.append(each)
        if not options:
            return self.null()
        union = options[0] if len(options) == 1 else {"anyOf": options}
        return self.nullable(union) if can_be_null else union

    def _enum(self, values: Sequence[JsonValue]) -> dict[str, Any]:
        present = [value for value in values if value is not None]
        if not present:
            return self.null()
        self._values_left -= len(present)
        self._chars_left -= sum(len(text_of_member(value)) for value in present)
        if len(present) <= _ENUM_VALUES_MAX and self._values_left >= 0 and self._chars_left >= 0:
            written = self.enum(present)
        else:
            written = self._join_options([self.type_keyword(kind) for kind in map(_kind, present)], can_be_null=False)
        return self.nullable(written) if len(present) < len(values) else written

    def _any(self) -> dict[str, Any]:
        return {"anyOf": [self._text_of(""), self.type_keyword("number"), self.type_keyword("boolean")]}

    def _text_of(self, kind: str) -> dict[str, Any]:
        return {**self.type_keyword("string"), "description": _TEXT_OF[kind]}

    def _describe_bounds(self, written: dict[str, Any], node: JsonObject) -> dict[str, Any]:
        own = node.get("description")
        bounds = [f"{key}: {text}" for key in _TOLD if key in node and (text := bound_text(node[key]))]
        parts = [own if isinstance(own, str) else "", written.get("description", "")]
        parts.append(f"({', '.join(bounds)})" if bounds else "")
        told = " ".join(dict.fromkeys(filter(None, parts)))
        return self.with_description(written, told) if told else written

    def with_description(self, schema: dict[str, Any], text: str) -> dict[str, Any]:
        return {**schema, "description": text}

    def properties_of(self, node: JsonObject, level: int) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Return the properties of an object in the subset, and the required ones."""
        properties, required = merge_branches(node, self._root)
        written = {name: self.schema(child, level + 1) for name, child in properties.items()}
        return written, required & properties.keys()


class StrictSubset(Subset):
    """OpenAI's strict mode: all properties required, null for what may be left out, nothing else allowed."""

    def type_keyword(self, kind: str) -> dict[str, Any]:
        return {"type": kind}

    def null(self) -> dict[str, Any]:
        return {"type": "null"}

    def nullable(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "anyOf" in schema:
            has_null = any("null" in (option.get("type"), *sequence(option.get("type"))) for option in schema["anyOf"])
            return schema if has_null else {**schema, "anyOf": [*schema["anyOf"], self.null()]}
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if "null" in kinds:
            return schema
        enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return {**schema, "type": [*kinds, "null"], **enum}

    def enum(self, values: Sequence[JsonValue]) -> dict[str, Any]:
        kinds = list(dict.fromkeys(map(_kind, values)))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}

    def object(self, node: JsonObject, level: int) -> dict[str, Any]:
        properties, required = self.properties_of(node, level)
        shown = {name: child if name in required else self.nullable(child) for name, child in properties.items()}
        return {"type": "object", "properties": shown, "required": list(shown), "additionalProperties": False}


class GeminiSubset(Subset):
    """Gemini's `Schema`: types in capitals, `nullable`, and texts as the only values of `enum`."""

    def type_keyword(self, kind: str) -> dict[str, Any]:
        return {"type": kind.upper()}

    def null(self) -> dict[str, Any]:
        return {"type": "STRING", "nullable": True}

    # Vertex AI wants nothing beside `anyOf`: what is said of all options is said in each.

    def nullable(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "anyOf" in schema:
            return {"anyOf": [{**option, "nullable": True} for option in schema["anyOf"]]}
        return {**schema, "nullable": True}

    def with_description(self, schema: dict[str, Any], text: str) -> dict[str, Any]:
        if "anyOf" not in schema:
            return super().with_description(schema, text)
        first, *rest = schema["anyOf"]
        own = first.get("description", "")
        return {"anyOf": [{**first, "description": f"{text} {own}".strip()}, *rest]}

    def enum(self, values: Sequence[JsonValue]) -> dict[str, Any]:
        texts = [text_of_member(value) for value in values]
        if "" in texts:  # an empty one is refused
            return {**self.type_keyword("string"), "description": f"One of {bound_text(values) or 'its values'}."}
        return {**self.type_keyword("string"), "format": "enum", "enum": texts}

    def object(self, node: JsonObject, level: int) -> dict[str, Any]:
        properties, required = self.properties_of(node, level)
        written: dict[str, Any] = {**self.type_keyword("object"), "properties": properties}
        if required:
            written["required"] = [name for name in properties if name in required]
        return written


def json_text(value: JsonValue) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def text_of_member(value: JsonValue) -> str:
    """Return a member of an enumeration as a text: itself, or its JSON."""
    return value if isinstance(value, str) else json_text(value)


def _flat(schema: JsonObject, root: JsonObject, depth: int = 0) -> JsonObject:
    """Return the schema with its reference and its `allOf` put in; what stands first wins."""
    node = dereference(schema, root)
    parts = branches(node, "allOf")
    if not parts or depth > MAX_DEPTH:
        return node
    flat: dict[str, JsonValue] = {key: value for key, value in node.items() if key != "allOf"}
    for part in parts:
        flat = {**_flat(part, root, depth + 1), **flat}
    properties, required = merge_branches(node, root)
    if properties:
        flat |= {"properties": properties, "required": sorted(required)}
    return flat


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def bound_text(value: JsonValue) -> str:
    """Return the JSON of a bound; empty for a long one."""
    text = json_text(value)
    return text if len(text) <= _TOLD_MAX_CHARS else ""
