"""Tools as definitions for a model's tool-calling interface: OpenAI function calling, Anthropic and MCP.

Names are exported so that they can be turned back; the map is made over the whole catalog, so a tool has one exported
name whichever selection is exported. Definitions are ordered by name and equal from run to run. Descriptions are never
cut. Schemas are changed only where an interface refuses them (model_schema.py); MCP asks for an object at the root of
both schemas, so an output schema of another shape is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.tool import Annotations, ToolSpec
from toolhub_service.registry.exported_names import ExportedNames
from toolhub_service.registry.model_schema import object_schema


class Dialect(Enum):
    OPENAI = "OPENAI"
    """`{"type": "function", "function": {name, description, parameters}}`."""
    ANTHROPIC = "ANTHROPIC"
    """`{name, description, input_schema}`."""
    MCP = "MCP"
    """`{name, title, description, inputSchema, outputSchema, annotations}`."""


@dataclass(frozen=True, slots=True)
class Export:
    tools: tuple[JsonObject, ...]
    """Definitions, ordered by the tools' full names."""
    names: Mapping[str, str]
    """From each exported name back to the full name."""
    revision: str


class Exporter:
    """Renders tools of one catalog; the map of names is made anew when the catalog has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._revision = ""
        self._names = ExportedNames(())

    def export(self, dialect: Dialect, specs: Iterable[ToolSpec]) -> Export:
        """Render tools of the catalog. Raises KeyError for a tool that is not in it."""
        names, render = self._current_names(), _RENDERERS[dialect]
        ordered = sorted(specs, key=lambda spec: spec.name)
        return Export(
            tools=tuple(render(spec, names.exported(spec.name)) for spec in ordered),
            names={names.exported(spec.name): spec.name for spec in ordered},
            revision=self._revision,
        )

    def _current_names(self) -> ExportedNames:
        revision = self._catalog.revision
        if revision != self._revision:
            self._names = ExportedNames(spec.name for spec in self._catalog.all())
            self._revision = revision
        return self._names


def mcp_hints(annotations: Annotations) -> dict[str, JsonValue]:
    """All four hints, spelled out: MCP's own defaults are not the hub's."""
    return {
        "readOnlyHint": annotations.read_only,
        "destructiveHint": annotations.destructive and not annotations.read_only,
        "idempotentHint": annotations.idempotent or annotations.read_only,
        "openWorldHint": annotations.open_world,
    }


def _openai(spec: ToolSpec, name: str) -> JsonObject:
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
    """MCP takes combinators at the root, beside `"type": "object"`."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


_RENDERERS: Final[Mapping[Dialect, Callable[[ToolSpec, str], JsonObject]]] = {
    Dialect.OPENAI: _openai,
    Dialect.ANTHROPIC: _anthropic,
    Dialect.MCP: _mcp,
}
