"""Makes the graph that is sent from a template and a call's arguments.

Only declared places are written, each of which is a literal input; nodes, classes and links stay as exported. Forced
values are written last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.comfyui.workflow.arguments import value_at
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
from toolhub_service.schema.canonical_json import digest, dumps

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


def bind_graph(
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
    forced = {one.target: _fill_names(one, names) for one in template.forced}
    chosen = dict(_caller_values(template.bindings, args, uploads))
    graph = _write_inputs(template.graph, {**chosen, **drawn, **forced})
    return BoundGraph(
        graph,
        digest(graph),
        {place.pointer: seed for place, seed in drawn.items()},
        {place.pointer: str(value) for place, value in forced.items() if place.input == PREFIX_INPUT},
    )


def _caller_values(
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


def _fill_names(forced: Forced, names: Mapping[str, str]) -> Literal:
    return (
        _PLACEHOLDER.sub(lambda found: _name(names[found[1]]), forced.value)
        if isinstance(forced.value, str)
        else forced.value
    )


def _name(name: str) -> str:
    if _HARMLESS.fullmatch(name) is None:
        raise ValueError("a placeholder is part of a file path: letters, digits, `_` and `-` only")
    return name


def _write_inputs(graph: JsonObject, values: Mapping[NodeInput, Literal]) -> JsonObject:
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
