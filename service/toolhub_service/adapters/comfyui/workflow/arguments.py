"""The arguments that an input schema declares, found through `properties`, and which of them may be bound.

ComfyUI interprets every list in a graph as a link, and `{"__value__": …}` as a wrapped list. An argument that could be
either would let a caller rewire the graph, so only certain literals are bound unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from toolhub_service.adapters.comfyui.workflow.graph import name_problem
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused, names_of, step_of

_DEPTH_MAX: Final = 8
_LITERALS: Final = frozenset({"string", "number", "integer", "boolean", "null"})
_CHOICES: Final = ("anyOf", "oneOf")


class Arguments:
    """The arguments that one input schema declares."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.leaves: dict[str, JsonObject] = dict(self._walk(schema, "", 0))
        """Schema of each argument without arguments of its own, by JSON Pointer, in the schema's order."""

    def at(self, pointer: str) -> JsonObject | None:
        """Return the schema of the argument at the pointer; None when none is declared."""
        found: JsonObject | None = self.schema
        for name in names_of(pointer):
            properties = self.follow_reference(found).get("properties") if found is not None else None
            below = properties.get(name) if isinstance(properties, Mapping) else None
            found = below if isinstance(below, Mapping) else None
        return found

    def follow_reference(self, schema: JsonObject) -> JsonObject:
        """Return the schema with its `$ref` followed, if that refers to this document."""
        for _ in range(_DEPTH_MAX):
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            found: Any = self.schema
            for name in names_of(reference[1:]):
                found = found.get(name) if isinstance(found, Mapping) else None
            if not isinstance(found, Mapping):
                return schema
            schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def is_given(self, pointer: str) -> bool:
        """Return whether every valid call has the argument, given or by default."""
        at = self.schema
        for name in names_of(pointer):
            properties = self.follow_reference(at).get("properties")
            below = properties.get(name) if isinstance(properties, Mapping) else None
            if not isinstance(below, Mapping):
                return False
            required = self.follow_reference(at).get("required")
            is_required = isinstance(required, list | tuple) and name in required
            if not is_required and "default" not in self.follow_reference(below):
                return False
            at = below
        return True

    def types(self, schema: JsonObject) -> frozenset[str] | None:
        """Return the types that its values may have; None: any. `allOf` and `not` are ignored, which can only add
        types."""
        schema = self.follow_reference(schema)
        if "const" in schema:
            return frozenset({_type_of(schema["const"])})
        values = schema.get("enum")
        if isinstance(values, list | tuple):
            return frozenset(map(_type_of, values))
        declared = schema.get("type")
        if isinstance(declared, str):
            return frozenset({declared})
        if isinstance(declared, list | tuple):
            return frozenset(map(str, declared))
        for word in _CHOICES:
            branches = schema.get(word)
            if isinstance(branches, list | tuple) and branches:
                found = [self.types(branch) if isinstance(branch, Mapping) else None for branch in branches]
                return None if None in found else frozenset().union(*(types for types in found if types is not None))
        return None

    def is_literal(self, schema: JsonObject) -> bool:
        """Return whether no value of it is an array or an object."""
        types = self.types(schema)
        return types is not None and types <= _LITERALS

    def _walk(self, schema: JsonObject, at: str, depth: int) -> Iterator[tuple[str, JsonObject]]:
        properties = self.follow_reference(schema).get("properties")
        if depth and not (isinstance(properties, Mapping) and properties and depth < _DEPTH_MAX):
            yield at, self.follow_reference(schema)
            return
        for name, below in properties.items() if isinstance(properties, Mapping) else ():
            yield from self._walk(below if isinstance(below, Mapping) else {}, at + step_of(name), depth + 1)


def schema_problems(arguments: Arguments) -> Iterator[str]:
    """Yield what is wrong with the input schema itself, before anything is bound."""
    schema = arguments.schema
    try:
        compile_schema(schema)
    except SchemaRefused as refused:
        yield f"input_schema: it cannot be used: {refused.advice}"
        return
    if schema.get("type") != "object":
        yield 'input_schema: arguments are an object: set `"type": "object"`'
        return
    if "additionalProperties" not in schema and "unevaluatedProperties" not in schema:
        yield ("input_schema: set `additionalProperties: false` to refuse unknown arguments, or `true` to ignore them")
    for pointer, leaf in arguments.leaves.items():
        yield from _leaf_problems(arguments, pointer, leaf)


def _leaf_problems(arguments: Arguments, pointer: str, leaf: JsonObject) -> Iterator[str]:
    name = names_of(pointer)[-1]
    wrong = name_problem(name, 64)
    if wrong:
        yield f"input_schema: argument {pointer[:80]!r}: {wrong}"
    types = arguments.types(leaf)
    if is_secret_name(name) and (types is None or "string" in types):
        yield (
            f"input_schema: argument {pointer}: it looks like a secret, and ComfyUI writes arguments into each "
            "image and its history: set the key in the configuration of the server"
        )
    if "default" in leaf and not _fits(arguments.schema, leaf, leaf["default"]):
        yield f"input_schema: argument {pointer}: its default does not match its own schema; correct one of them"


def _fits(root: JsonObject, schema: JsonObject, value: JsonValue) -> bool:
    """Return whether a value is valid by a part of a valid schema."""
    shared = {word: root[word] for word in ("$schema", "$defs", "definitions") if word in root}
    try:
        return compile_schema({**shared, **schema}).is_valid(value)
    except SchemaRefused:
        return True  # a reference that only the whole document can resolve


def value_at(args: JsonObject, pointer: str) -> JsonValue:
    """Return the argument at the pointer; None when it is absent or null."""
    found: Any = args
    for name in names_of(pointer):
        found = found.get(name) if isinstance(found, Mapping) else None
    return cast("JsonValue", found)


def _type_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, Sequence) else "object"
