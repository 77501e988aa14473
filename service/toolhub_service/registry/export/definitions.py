"""Tools as definitions for a model's tool-calling interface: OpenAI, Anthropic, Gemini and MCP.

Exported names can be mapped back; the map covers the whole catalog, so a tool has one exported name whichever selection
is exported. Definitions are ordered by name and equal from run to run. Schemas are changed only where an interface
refuses them (`schema_repairs`, `closed_schemas`), and `reading_of` says how arguments are turned back; MCP requires an
object at the root of both schemas, so an output schema of another type is left out. docs/model-forms.md names the
limits of each interface and their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

import msgspec

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.tool import Annotations, ToolSpec
from toolhub_service.registry.export.closed_schemas import GeminiSubset, StrictSubset
from toolhub_service.registry.export.exported_names import DESCRIBE_TOOL, EXPORTED_MAX_CHARS, ExportedNames, plain_name
from toolhub_service.registry.export.model_arguments import Reading
from toolhub_service.registry.export.plan_argument import with_plan_argument
from toolhub_service.registry.export.schema_repairs import (
    DOTTED_NAMES,
    PLAIN_NAMES,
    NameRule,
    accepted_names,
    cut_description,
    object_schema,
    rename,
    repair,
)
from toolhub_service.registry.export.stubs import FunctionName, function_names


class Dialect(Enum):
    OPENAI = "OPENAI"
    """`{"type": "function", "function": {name, description, parameters}}`."""
    OPENAI_STRICT = "OPENAI_STRICT"
    """The same with `strict`: every property is required, and null stands for what is left out."""
    ANTHROPIC = "ANTHROPIC"
    """`{name, description, input_schema}`."""
    GEMINI = "GEMINI"
    """`{name, description, parameters}`, a FunctionDeclaration."""
    MCP = "MCP"
    """`{name, title, description, inputSchema, outputSchema, annotations}`."""


OPENAI_DESCRIPTION_MAX_CHARS: Final = 1_024
_CUT: Final = f"(Cut: call {plain_name(DESCRIBE_TOOL)} for the rest.)"
_NAME_RULES: Final[Mapping[Dialect, NameRule]] = {
    Dialect.ANTHROPIC: DOTTED_NAMES,
    Dialect.MCP: DOTTED_NAMES,  # its clients hand the schema to their model's interface as it is
    Dialect.GEMINI: PLAIN_NAMES,
}
_READINGS: Final[Mapping[Dialect, Reading]] = {
    # Its calls look like those of the strict form, which the caller may not know to have been exported.
    Dialect.OPENAI: Reading(drops_unfit_nulls=True),
    Dialect.OPENAI_STRICT: Reading(drops_nulls=True, reads_texts=True, reads_fitting_texts=True),
    Dialect.GEMINI: Reading(drops_unfit_nulls=True, reads_texts=True, reads_fitting_texts=True, reads_members=True),
}


def reading_of(dialect: Dialect, schema: JsonObject) -> Reading:
    """Return how arguments for a definition of this form are turned back."""
    names = {short: name for name, short in renamed_properties(dialect, schema).items()}
    return _READINGS.get(dialect, Reading())._replace(names=names)


def renamed_properties(dialect: Dialect, schema: JsonObject) -> dict[str, str]:
    """Return the exported name of each property whose own name the form's interface refuses."""
    rule = _NAME_RULES.get(dialect)
    return {} if rule is None else accepted_names(schema, rule)


class Export(msgspec.Struct, frozen=True):
    tools: tuple[JsonObject, ...]
    """Definitions, ordered by the tools' full names."""
    names: Mapping[str, str]
    """Maps each exported name back to the full name."""
    revision: str


# Most definitions kept: a strict schema takes a tenth of a millisecond to write.
_RENDERED_MAX: Final = 16_384


def _needs_none(_: ToolSpec) -> bool:
    return False


class Exporter:
    """Renders tools of one catalog; the map of names is rebuilt when the catalog has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._revision = ""
        self._names = ExportedNames(())
        self._functions: Mapping[str, FunctionName] = {}
        self._rendered: dict[tuple[Dialect, str, bool], tuple[ToolSpec, JsonObject]] = {}
        """Definitions by form, name and whether they have the argument for a plan, with the tool that each was made
        of."""

    def export(
        self, dialect: Dialect, specs: Iterable[ToolSpec], may_need_plan: Callable[[ToolSpec], bool] = _needs_none
    ) -> Export:
        """Render tools of the catalog, those that may need a plan with the argument for it. Raises KeyError for a tool
        that is not in it."""
        names = self._current_names()
        ordered = sorted(specs, key=lambda spec: spec.name)
        shown = {spec.name: begin_name(dialect, names.exported_name(spec.name)) for spec in ordered}
        return Export(
            tools=tuple(
                self.definition(dialect, shown[spec.name], spec, may_need_plan=may_need_plan(spec)) for spec in ordered
            ),
            names={short: name for name, short in shown.items()},
            revision=self._revision,
        )

    def definition(self, dialect: Dialect, name: str, spec: ToolSpec, *, may_need_plan: bool = False) -> JsonObject:
        """Render a tool under any name, whether it is in the catalog or not; with `may_need_plan` it has the argument
        for a plan. The definition is shared: do not change it."""
        known = self._rendered.get((dialect, name, may_need_plan))
        # By identity: the catalog keeps one object as long as the tool is unchanged.
        if known is not None and known[0] is spec:
            return known[1]
        if len(self._rendered) >= _RENDERED_MAX:
            self._rendered.clear()
        shown = replace(spec, input_schema=with_plan_argument(spec.input_schema)) if may_need_plan else spec
        definition = _RENDERERS[dialect](shown, name)
        self._rendered[dialect, name, may_need_plan] = (spec, definition)
        return definition

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


def describe_briefly(spec: ToolSpec) -> ToolSpec:
    """Return the tool with a description that every interface takes, for a model that has no DESCRIBE_TOOL."""
    if len(spec.description) <= OPENAI_DESCRIPTION_MAX_CHARS:
        return spec
    return replace(spec, description=cut_description(spec.description, OPENAI_DESCRIPTION_MAX_CHARS, "(Cut.)"))


def openai_definition(spec: ToolSpec, name: str) -> dict[str, Any]:
    """Return a tool under its exported name, as OpenAI-compatible endpoints accept it."""
    parameters = repair(object_schema(spec.input_schema))
    return {
        "type": "function",
        "function": {"name": name, "description": _for_openai(spec.description), "parameters": parameters},
    }


def _openai_strict(spec: ToolSpec, name: str) -> JsonObject:
    plain = openai_definition(spec, name)
    parameters = StrictSubset(repair(spec.input_schema)).parameters()
    strict = {"strict": False} if parameters is None else {"parameters": parameters, "strict": True}
    return {**plain, "function": {**plain["function"], **strict}}


def _for_openai(description: str) -> str:
    return cut_description(description, OPENAI_DESCRIPTION_MAX_CHARS, _CUT)


def begin_name(dialect: Dialect, name: str) -> str:
    """Return the name as its form's interface lets it begin: for Gemini with a letter or `_`."""
    is_begun = dialect is not Dialect.GEMINI or PLAIN_NAMES.accepted.match(name)
    return name if is_begun else f"_{name}"[:EXPORTED_MAX_CHARS]


def _anthropic(spec: ToolSpec, name: str) -> JsonObject:
    schema = rename_for(Dialect.ANTHROPIC, spec, repair(object_schema(spec.input_schema)))
    return {"name": name, "description": spec.description, "input_schema": schema}


def _gemini(spec: ToolSpec, name: str) -> JsonObject:
    definition: dict[str, JsonValue] = {"name": name, "description": spec.description}
    parameters = GeminiSubset(rename_for(Dialect.GEMINI, spec, repair(spec.input_schema))).parameters()
    if parameters and parameters["properties"]:  # an object without properties is refused
        definition["parameters"] = parameters
    return definition


def _mcp(spec: ToolSpec, name: str) -> JsonObject:
    definition: dict[str, JsonValue] = {
        "name": name,
        "title": spec.name,
        "description": spec.description,
        "inputSchema": rename_for(Dialect.MCP, spec, repair(make_root_object(spec.input_schema))),
        "annotations": mcp_hints(spec.annotations),
    }
    if spec.output_schema.get("type") == "object":
        definition["outputSchema"] = spec.output_schema
    # Title, icons and `_meta` are the source's words for clients; so are hints that the operator leaves to it.
    for place, shown in (spec.presentation or {}).items():
        definition[place] = shown
        if place == "annotations" and isinstance(shown, Mapping):
            definition[place] = {**mcp_hints(spec.annotations), **shown}
    return definition


def rename_for(dialect: Dialect, spec: ToolSpec, schema: JsonObject) -> JsonObject:
    return rename(schema, renamed_properties(dialect, spec.input_schema))


def make_root_object(schema: JsonObject) -> JsonObject:
    """MCP allows combinators at the root, beside `"type": "object"`, and wants them kept (SEP-2106)."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


_RENDERERS: Final[Mapping[Dialect, Callable[[ToolSpec, str], JsonObject]]] = {
    Dialect.OPENAI: openai_definition,
    Dialect.OPENAI_STRICT: _openai_strict,
    Dialect.ANTHROPIC: _anthropic,
    Dialect.GEMINI: _gemini,
    Dialect.MCP: _mcp,
}
