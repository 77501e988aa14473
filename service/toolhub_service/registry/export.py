"""Tools as definitions for a model's tool-calling interface: OpenAI function calling, Anthropic and MCP.

Exported names can be mapped back; the map covers the whole catalog, so a tool has one exported name whichever selection
is exported. Definitions are ordered by name and equal from run to run. Descriptions are never cut. Schemas are changed
only where an interface refuses them (`object_schema`); MCP requires an object at the root of both schemas, so an output
schema of another type is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.tool import Annotations, ToolSpec
from toolhub_service.registry.stubs import FunctionName, function_names

# Input schemas as model interfaces accept them: changed only where a request would otherwise be refused.
#
# OpenAI and Anthropic refuse a whole request when one tool's schema is not `"type": "object"` at its root or has
# `oneOf`, `anyOf` or `allOf` there (OpenAI also `enum`, `const` and `not`). Such a root becomes one object schema with
# the properties of all branches, required where every branch requires them (for allOf: where any does); a reference at
# the root is replaced by its target. A property is shown as the branches that name it define it, which is what a model
# needs to know; nothing is required that the original does not require, and the hub validates calls against the
# original. Nothing below the root is changed.

_UNIONS: Final = ("anyOf", "oneOf")
# Limits for references and nested branches that are followed.
_MAX_DEPTH: Final = 8
_REFUSED: Final = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not"})


def object_schema(schema: JsonObject) -> JsonObject:
    """Return the schema with an object at its root and no combinator beside it; the same object when it already is
    one."""
    if schema.get("type") == "object" and "properties" in schema and _REFUSED.isdisjoint(schema):
        return schema
    kept = {key: value for key, value in _dereferenced(schema, schema).items() if key not in _REFUSED}
    properties, required = _merged(schema, schema)
    flat: dict[str, JsonValue] = {**kept, "type": "object", "properties": properties}
    if required:
        flat["required"] = sorted(required)
    return flat


def _dereferenced(schema: JsonObject, root: JsonObject) -> JsonObject:
    """Return the schema with a reference within the document replaced by its target; siblings of the reference win."""
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


# Names that every model interface accepts, and the map back from them.
#
# Interfaces accept `^[a-zA-Z0-9_-]{1,64}$`, so `core/fs.readText` becomes `core__fs_readText`: the slash gives two
# underscores, a dot one. A name that would be too long is cut and ends in eight digits of its own sha256; so does every
# one of several names that would collide, with more digits where eight do not distinguish them. The outcome depends on
# the set of names only, never on their order.

EXPORTED_MAX_CHARS: Final = 64
MCP_MAX_CHARS: Final = 60
"""Cursor counts the server's name, too; Claude Code allows 64."""
_SUFFIX_DIGITS: Final = (8, 16, 32)
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class ExportedNames:
    """A two-way map over a set of tool names, of at most `max_chars` characters each."""

    def __init__(
        self,
        names: Iterable[str],
        max_chars: int = EXPORTED_MAX_CHARS,
        *,
        unprefixed: Iterable[str] = (),
        reserved: Collection[str] = (),
    ) -> None:
        """`unprefixed` are exported without their namespace, unless that name is another tool's or one of `reserved`.

        Their prefixed names are accepted, too.
        """
        self._exported = {name: plain_name(name, max_chars) for name in names}
        for digits in _SUFFIX_DIGITS:
            uses = Counter(self._exported.values())
            for name, short in self._exported.items():
                if uses[short] > 1:
                    self._exported[name] = _marked(name, digits, max_chars)
        self._original = {exported: name for name, exported in self._exported.items()}
        bare = {name: _spelled(name.partition("/")[2]) for name in unprefixed}
        uses = Counter([*bare.values(), *self._original, *reserved])
        # Neither tool gets a name that both could have: a server must not take over the name of another's tool.
        self.prefixed = tuple(
            sorted(name for name, short in bare.items() if uses[short] > 1 or not 0 < len(short) <= max_chars)
        )
        """The ones of `unprefixed` that keep their prefix."""
        short_names = {name: short for name, short in bare.items() if name not in set(self.prefixed)}
        self._exported |= short_names
        self._original |= {short: name for name, short in short_names.items()}

    def exported(self, name: str) -> str:
        """Return the exported name of a tool of the set. Raises KeyError for another one."""
        return self._exported[name]

    def original(self, exported: str) -> str | None:
        """Return the tool behind an exported name; None when there is none."""
        return self._original.get(exported)


def tools_by_exported_name(tools: Iterable[str]) -> dict[str, str]:
    """Return each tool by every name that a model interface or an MCP client may have been given for it.

    The names do not depend on the other tools. A name that may mean two tools is left out.
    """
    found: dict[str, str] = {}
    shared = set()
    for tool in tools:
        lengths = (EXPORTED_MAX_CHARS, MCP_MAX_CHARS)
        marked = (_marked(tool, digits, length) for digits in _SUFFIX_DIGITS for length in lengths)
        for name in {*(plain_name(tool, length) for length in lengths), *marked}:
            if found.setdefault(name, tool) != tool:
                shared.add(name)
    return {name: tool for name, tool in found.items() if name not in shared}


def plain_name(name: str, max_chars: int = EXPORTED_MAX_CHARS) -> str:
    """Return the exported name of a tool whose name collides with no other."""
    short = _spelled(name)
    return short if len(short) <= max_chars else _marked(name, _SUFFIX_DIGITS[0], max_chars)


def _spelled(name: str) -> str:
    return _FOREIGN.sub("_", name.replace("/", "__"))


def _marked(name: str, digits: int, max_chars: int) -> str:
    suffix = hashlib.sha256(name.encode()).hexdigest()[:digits]
    return f"{_spelled(name)[: max_chars - digits - 1]}_{suffix}"


class Dialect(Enum):
    OPENAI = "OPENAI"
    """`{"type": "function", "function": {name, description, parameters}}`."""
    ANTHROPIC = "ANTHROPIC"
    """`{name, description, input_schema}`."""
    MCP = "MCP"
    """`{name, title, description, inputSchema, outputSchema, annotations}`."""


class Export(msgspec.Struct, frozen=True):
    tools: tuple[JsonObject, ...]
    """Definitions, ordered by the tools' full names."""
    names: Mapping[str, str]
    """Maps each exported name back to the full name."""
    revision: str


class Exporter:
    """Renders tools of one catalog; the map of names is rebuilt when the catalog has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._revision = ""
        self._names = ExportedNames(())
        self._functions: Mapping[str, FunctionName] = {}

    def export(self, dialect: Dialect, specs: Iterable[ToolSpec]) -> Export:
        """Render tools of the catalog. Raises KeyError for a tool that is not in it."""
        names, render = self._current_names(), _RENDERERS[dialect]
        ordered = sorted(specs, key=lambda spec: spec.name)
        return Export(
            tools=tuple(render(spec, names.exported(spec.name)) for spec in ordered),
            names={names.exported(spec.name): spec.name for spec in ordered},
            revision=self._revision,
        )

    def definition(self, dialect: Dialect, name: str, spec: ToolSpec) -> JsonObject:
        """Render a tool under another name, whether it is in the catalog or not."""
        return _RENDERERS[dialect](spec, name)

    def functions(self) -> Mapping[str, FunctionName]:
        """Return the function name in programs of each tool of the catalog."""
        self._current_names()
        return self._functions

    def _current_names(self) -> ExportedNames:
        revision = self._catalog.revision
        if revision != self._revision:
            self._names = ExportedNames(spec.name for spec in self._catalog.all())
            self._functions = function_names(spec.name for spec in self._catalog.all())
            self._revision = revision
        return self._names


def mcp_hints(annotations: Annotations) -> dict[str, JsonValue]:
    """Return all four hints explicitly, because MCP's defaults differ from the hub's."""
    return {
        "readOnlyHint": annotations.read_only,
        "destructiveHint": annotations.destructive and not annotations.read_only,
        "idempotentHint": annotations.idempotent or annotations.read_only,
        "openWorldHint": annotations.open_world,
    }


def openai_definition(spec: ToolSpec, name: str) -> dict[str, Any]:
    """Return a tool under its exported name, as OpenAI-compatible endpoints accept it."""
    parameters = object_schema(spec.input_schema)
    return {"type": "function", "function": {"name": name, "description": spec.description, "parameters": parameters}}


def _anthropic(spec: ToolSpec, name: str) -> JsonObject:
    return {"name": name, "description": spec.description, "input_schema": object_schema(spec.input_schema)}


def _mcp(spec: ToolSpec, name: str) -> JsonObject:
    definition: dict[str, JsonValue] = {
        "name": name,
        "title": spec.name,
        "description": spec.description,
        "inputSchema": _rooted(spec.input_schema),
        "annotations": mcp_hints(spec.annotations),
    }
    if spec.output_schema.get("type") == "object":
        definition["outputSchema"] = spec.output_schema
    return definition


def _rooted(schema: JsonObject) -> JsonObject:
    """MCP allows combinators at the root, beside `"type": "object"`."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


_RENDERERS: Final[Mapping[Dialect, Callable[[ToolSpec, str], JsonObject]]] = {
    Dialect.OPENAI: openai_definition,
    Dialect.ANTHROPIC: _anthropic,
    Dialect.MCP: _mcp,
}
