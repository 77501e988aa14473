"""The arguments that an input schema declares, found through `properties`, and which of them may be bound.

ComfyUI interprets every list in a graph as a link, and `{"__value__": …}` as a wrapped list. An argument that could be
either would let a caller rewire the graph, so only certain literals are bound unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from toolhub_service.adapters.comfyui.workflow.graph import name_problem
from toolhub_service.adapters.comfyui.workflow.template import (
    PLACEHOLDERS,
    PREFIX_INPUT,
    Binding,
    Forced,
    NodeInput,
    Template,
    Transform,
)
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_patterns import is_secret_name
from toolhub_service.schema.canonical_json import digest, dumps
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
            properties = self.resolved(found).get("properties") if found is not None else None
            below = properties.get(name) if isinstance(properties, Mapping) else None
            found = below if isinstance(below, Mapping) else None
        return found

    def resolved(self, schema: JsonObject) -> JsonObject:
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
            properties = self.resolved(at).get("properties")
            below = properties.get(name) if isinstance(properties, Mapping) else None
            if not isinstance(below, Mapping):
                return False
            required = self.resolved(at).get("required")
            is_required = isinstance(required, list | tuple) and name in required
            if not is_required and "default" not in self.resolved(below):
                return False
            at = below
        return True

    def types(self, schema: JsonObject) -> frozenset[str] | None:
        """Return the types that its values may have; None: any. `allOf` and `not` are ignored, which can only add
        types."""
        schema = self.resolved(schema)
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
        properties = self.resolved(schema).get("properties")
        if depth and not (isinstance(properties, Mapping) and properties and depth < _DEPTH_MAX):
            yield at, self.resolved(schema)
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


# From a template and a call's arguments to the graph that is sent.
#
# Only declared places are written, each of which is a literal input; nodes, classes and links stay as exported. Forced
# values are written last.

Literal = None | bool | int | float | str
_PLACEHOLDER: Final = re.compile("{(" + "|".join(PLACEHOLDERS) + ")}")
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class Upload:
    """An artifact that must be on the server before the graph is sent."""

    pointer: str
    """JSON Pointer of the argument."""
    artifact_id: str


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """The graph that is sent."""

    graph: JsonObject
    sha256: str
    """Hex digest of its canonical JSON."""
    seeds: Mapping[str, int]
    """By pointer into the graph, given or drawn, for the record."""
    prefixes: Mapping[str, str]
    """Forced file name prefixes, by pointer into the graph."""


def required_uploads(template: Template, args: JsonObject) -> tuple[Upload, ...]:
    """Return the artifacts that must be uploaded first, each once."""
    found: dict[str, Upload] = {}
    for binding in template.bindings:
        given = value_at(args, binding.source) if binding.transform is Transform.UPLOAD else None
        if isinstance(given, str):
            found.setdefault(given, Upload(binding.source, given))
    return tuple(found.values())


def bound(
    template: Template,
    args: JsonObject,
    *,
    uploads: Mapping[str, str],
    seeds: Callable[[], int],
    names: Mapping[str, str],
) -> BoundGraph:
    """Return the graph with the arguments bound. `args` are valid and complete. `uploads`: names on the server by
    artifact id; `seeds` draws one below 2^53; `names`: `tenant` and `job_id`, of letters, digits, `_` and `-` only.

    Raises ToolFailure INVALID_INPUT for a value that is not a literal (ComfyUI interprets a list as a link).
    """
    drawn = dict(_seeds(template, args, seeds))
    forced = {one.target: _filled(one, names) for one in template.forced}
    chosen = dict(_given(template.bindings, args, uploads))
    graph = _written(template.graph, {**chosen, **drawn, **forced})
    return BoundGraph(
        graph,
        digest(graph),
        {place.pointer: seed for place, seed in drawn.items()},
        {place.pointer: str(value) for place, value in forced.items() if place.input == PREFIX_INPUT},
    )


def _given(
    bindings: tuple[Binding, ...], args: JsonObject, uploads: Mapping[str, str]
) -> Iterator[tuple[NodeInput, Literal]]:
    """Yield the caller's values; an argument that is absent or null keeps the graph's value."""
    for binding in bindings:
        value = value_at(args, binding.source)
        if value is None:
            continue
        if binding.transform is Transform.JSON:
            yield binding.target, dumps(value).decode()
        elif binding.transform is Transform.UPLOAD:
            yield binding.target, uploads[_literal(binding.source, value)]  # type: ignore[index]  # its schema says text
        else:
            yield binding.target, _literal(binding.source, value)


def _seeds(template: Template, args: JsonObject, draw: Callable[[], int]) -> Iterator[tuple[NodeInput, int]]:
    shared: dict[str, int] = {}
    for seed in template.seeds:
        given = value_at(args, seed.source) if seed.source else None
        if given is not None:
            yield seed.target, int(_literal(seed.source, given))  # type: ignore[arg-type]  # its schema says integer
            continue
        number = shared.get(seed.source) if seed.source else None
        number = draw() if number is None else number
        if seed.source:
            shared[seed.source] = number
        yield seed.target, number % (seed.maximum + 1)


def _literal(source: str, value: JsonValue) -> Literal:
    """Return the value if it is a literal. The schema ensures that; this check keeps callers from rewiring the graph
    should it fail."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise refuse(ErrorKind.INVALID_INPUT, f"{source} must be text, a number or a boolean.")


def _filled(forced: Forced, names: Mapping[str, str]) -> Literal:
    return (
        _PLACEHOLDER.sub(lambda found: _name(names[found[1]]), forced.value)
        if isinstance(forced.value, str)
        else forced.value
    )


def _name(name: str) -> str:
    if _HARMLESS.fullmatch(name) is None:
        raise ValueError("a placeholder is part of a file path: letters, digits, `_` and `-` only")
    return name


def _written(graph: JsonObject, values: Mapping[NodeInput, Literal]) -> JsonObject:
    """Return the graph with these inputs; it shares the unchanged nodes."""
    made: dict[str, Any] = dict(graph)
    changed: dict[str, dict[str, JsonValue]] = {}
    for place, value in values.items():
        if place.node not in changed:
            node = made[place.node]
            changed[place.node] = dict(node["inputs"])
            made[place.node] = {**node, "inputs": changed[place.node]}
        changed[place.node][place.input] = value
    return made
