"""What `toolhub workflows check` reports of a workflow: the tool it becomes, and everything wrong with it.

Nothing is asked of a server: each kind makes definitions with the maker that its sources use, so that what passes the
check is what a hub takes. Secrets are not looked up: `toolhub sources check` says which are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolhub_service.domain.json import JsonObject, JsonValue

_VALUES_MAX: Final = 6
_TEXT_MAX_CHARS: Final = 60
_ARGUMENTS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class WorkflowTool:
    """The tool that a workflow becomes."""

    name: str
    """Full; of a template without a source its own name."""
    kind: str
    place: str
    """File, or path in sources.yaml."""
    version: str = ""
    description: str = ""
    mode: str = ""
    """`sync`, `async` or `job`."""
    capabilities: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name to what it takes, in a few words."""
    results: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else tells it from others: digests, where it is called."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkflowReport:
    tools: tuple[WorkflowTool, ...]
    problems: tuple[str, ...] = ()
    """Of what did not even become a tool, each with its place."""
    notes: tuple[str, ...] = ()
    """What cannot be told without a server."""

    @property
    def ok(self) -> bool:
        return not self.problems and not any(tool.problems for tool in self.tools)


def summary_of(schema: JsonObject) -> dict[str, str]:
    """Top-level arguments, such as `{"width": "integer 1 … 4096, required"}`, fifty at most."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
    named = properties.items() if isinstance(properties, Mapping) else ()
    return {name: ", ".join(_words(part, is_required=name in needed)) for name, part in [*named][:_ARGUMENTS_MAX]}


def _words(schema: JsonValue, *, is_required: bool) -> Iterator[str]:
    part = schema if isinstance(schema, Mapping) else {}
    yield _kind(part)
    if is_required:
        yield "required"
    if "default" in part:
        yield f"else {_shown(part['default'])}"


def _kind(schema: JsonObject) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        more = f" or {len(values) - _VALUES_MAX} more" if len(values) > _VALUES_MAX else ""
        return " | ".join(map(_shown, values[:_VALUES_MAX])) + more
    if schema.get("format") == "hub-artifact":
        return "artifact id"
    kind = schema.get("type")
    name = kind if isinstance(kind, str) else "/".join(map(str, kind)) if isinstance(kind, Sequence) else "anything"
    return " ".join(filter(None, (name, _range(schema))))


def _range(schema: JsonObject) -> str:
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if lowest is None and highest is None:
        return ""
    return f"{'' if lowest is None else f'{lowest} '}…{'' if highest is None else f' {highest}'}"


def _shown(value: JsonValue) -> str:
    text = " ".join(str(value).split()) if isinstance(value, str) else repr(value)
    return text if len(text) <= _TEXT_MAX_CHARS else f"{text[: _TEXT_MAX_CHARS - 1]}…"
