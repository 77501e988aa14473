"""From a template and a call's arguments to the graph that is sent.

Only declared places are written, each of which is a literal input; nodes, classes and links stay as exported. Forced
values are written last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolhub_service.adapters.comfyui.arguments import value_at
from toolhub_service.adapters.comfyui.template import (
    PLACEHOLDERS,
    PREFIX_INPUT,
    Binding,
    BoundGraph,
    Forced,
    NodeInput,
    Template,
    Transform,
    Upload,
)
from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema.canonical_json import digest, dumps

Literal = None | bool | int | float | str
_PLACEHOLDER: Final = re.compile("{(" + "|".join(PLACEHOLDERS) + ")}")
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def uploads_of(template: Template, args: JsonObject) -> tuple[Upload, ...]:
    """Which artifacts must be uploaded first; each artifact once."""
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
    """`args` are valid and complete. `uploads`: artifact id to the name that the server gave; `seeds` draws one below
    2^53; `names`: `tenant` and `job_id`, of letters, digits, `_` and `-` only.

    Raises ToolFailure INVALID_INPUT for a value that would be more than a literal (a list is a link to ComfyUI).
    """
    drawn = dict(_seeds(template, args, seeds))
    forced = {one.target: _filled(one, names) for one in template.forced}
    said = dict(_given(template.bindings, args, uploads))
    graph = _written(template.graph, {**said, **drawn, **forced})
    return BoundGraph(
        graph,
        digest(graph),
        {place.pointer: seed for place, seed in drawn.items()},
        {place.pointer: str(value) for place, value in forced.items() if place.input == PREFIX_INPUT},
    )


def _given(
    bindings: tuple[Binding, ...], args: JsonObject, uploads: Mapping[str, str]
) -> Iterator[tuple[NodeInput, Literal]]:
    """What the caller chose; an argument that is absent or null leaves what the graph says."""
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
    """The schema has made sure of it; should it ever not, no caller rewires a graph."""
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
        raise ValueError("what fills a placeholder stands in a file's path: letters, digits, `_` and `-` only")
    return name


def _written(graph: JsonObject, values: Mapping[NodeInput, Literal]) -> JsonObject:
    """The graph with these inputs; the nodes that are not touched are shared with it."""
    made: dict[str, Any] = dict(graph)
    changed: dict[str, dict[str, JsonValue]] = {}
    for place, value in values.items():
        if place.node not in changed:
            node = made[place.node]
            changed[place.node] = dict(node["inputs"])
            made[place.node] = {**node, "inputs": changed[place.node]}
        changed[place.node][place.input] = value
    return made
