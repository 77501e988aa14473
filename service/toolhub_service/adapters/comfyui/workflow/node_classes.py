"""Checks a template against what a server reports (GET /object_info): classes, inputs, bounds, choices, output nodes.

The server's own check is weak (it converts text, accepts literals where it needs links, ignores unknown inputs) and
runs only during a call, so this check runs when the template is read. Where a server reports less, or in an unknown
form, it finds no problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from toolhub_service.adapters.comfyui.workflow.arguments import Arguments
from toolhub_service.adapters.comfyui.workflow.graph import links_of, literals_of
from toolhub_service.adapters.comfyui.workflow.node_inputs import InputSpec, literal_mismatch, mismatch, read_input_spec
from toolhub_service.adapters.comfyui.workflow.template import NodeInput, Template, Transform
from toolhub_service.domain.json import JsonObject, JsonValue

_PROBLEMS_MAX: Final = 20
_KINDS: Final = ("required", "optional")


def problems_with(template: Template, object_info: JsonObject) -> tuple[str, ...]:
    """Return why this server cannot run it as intended, a sentence or two for each problem, at most twenty; empty when
    it can.

    `object_info`: class name to its description, as the server answers; it may hold the template's classes only.
    """
    missing = sorted(name for name in template.node_classes if not isinstance(object_info.get(name), Mapping))
    if missing:
        return (f"the server has no class {', '.join(missing[:10])}: install its custom node, or remove it",)
    return tuple(dict.fromkeys([*_ServerCheck(template, object_info).problems()]))[:_PROBLEMS_MAX]


class _ServerCheck:
    """Checks one template against the node classes of one server."""

    def __init__(self, template: Template, object_info: JsonObject) -> None:
        self._template = template
        self._info = {name: cast("Mapping[str, Any]", object_info[name]) for name in template.node_classes}
        self._arguments = Arguments(template.input_schema)
        self._terms = {
            name: {key: read_input_spec(told) for key, told in declared_inputs(described).items()}
            for name, described in self._info.items()
        }
        self._forced = {one.target: one.value for one in template.forced}
        self._replaced = {seed.target for seed in template.seeds}
        self._replaced |= {each.target for each in template.bindings if self._arguments.is_given(each.source)}
        """Inputs whose value every call replaces."""

    def problems(self) -> Iterator[str]:
        for node, body in self._template.graph.items():
            yield from self._node_problems(node, body)
        for binding in self._template.bindings:
            yield from self._bound_problems(binding.source, binding.target, binding.transform)
        for seed in self._template.seeds:
            yield from self._drawn_problems(seed.target, seed.maximum)
            if seed.source:
                yield from self._bound_problems(seed.source, seed.target, Transform.NONE)
        for output in self._template.outputs:
            node_class = self._template.class_of(output.node)
            if self._info[node_class].get("output_node") is False:
                yield (
                    f"output {output.name}: node {output.node} ({node_class}) is no output node, so it produces no "
                    "file: name one that saves or previews"
                )

    def _node_problems(self, node: str, body: JsonValue) -> Iterator[str]:
        node_class = self._template.class_of(node)
        given = dict(literals_of(body))
        linked = {name: (origin, slot) for name, origin, slot in links_of(body)}
        for name in declared_inputs(self._info[node_class], "required"):
            if name not in given and name not in linked and not _has_part(name, {*given, *linked}):
                yield f"node {node} ({node_class}) lacks the input `{name}` of this server: export it again"
        for name, (origin, slot) in linked.items():
            made = self._info[self._template.class_of(origin)].get("output")
            if isinstance(made, list | tuple) and slot >= len(made):
                yield f"/{node}/inputs/{name}: node {origin} has {len(made)} outputs, and this takes number {slot + 1}"
        for name, value in given.items():
            yield from self._literal_problems(NodeInput(node, name, f"/{node}/inputs/{name}"), value)

    def _literal_problems(self, place: NodeInput, value: JsonValue) -> Iterator[str]:
        """Yield the problems of a value in the graph, which matters only where not every call replaces it."""
        terms = self._terms_at(place)
        if terms is None or place in self._replaced:
            return
        if terms.is_link:
            yield f"{place.pointer}: the node takes {'/'.join(terms.types)} by a link, and a literal stands there"
        elif not terms.is_upload:
            wrong = literal_mismatch(self._forced.get(place, value), terms)
            if wrong:
                yield f"{place.pointer}: {wrong}"

    def _bound_problems(self, source: str, place: NodeInput, transform: Transform) -> Iterator[str]:
        node_class = self._template.class_of(place.node)
        if not self._has_input(place):
            yield f"{place.pointer}: {node_class} has no input `{place.input}` on the server: export the graph again"
            return
        terms = self._terms_at(place)
        if terms is None:
            return
        if terms.is_link:
            yield f"{place.pointer}: the node takes {'/'.join(terms.types)} by a link; no argument can be put there"
            return
        if transform is Transform.UPLOAD:
            if not {"STRING", "COMBO", "*"} & {*terms.types}:
                yield f"{place.pointer}: the node takes {'/'.join(terms.types)}, not the name of an upload"
            return
        schema: JsonObject = {"type": "string"} if transform is Transform.JSON else self._arguments.at(source) or {}
        if terms.is_upload and "enum" not in schema:
            yield (
                f"{place.pointer} opens a file of the server, and a name of the caller's choice opens anybody's: say "
                f"`format: hub-artifact` of {source} and `transform: upload`, or list the names with `enum`"
            )
        elif not terms.is_upload:
            wrong = mismatch(schema, self._arguments, terms)
            if wrong:
                yield f"argument {source} allows more than {place.pointer}: {wrong}"

    def _drawn_problems(self, place: NodeInput, maximum: int) -> Iterator[str]:
        terms = self._terms_at(place)
        if not self._has_input(place):
            node_class = self._template.class_of(place.node)
            yield f"{place.pointer}: {node_class} has no input `{place.input}` on the server: export the graph again"
        elif terms is not None and terms.maximum is not None and maximum > terms.maximum:
            yield f"seed {place.pointer}: the node takes less: say `maximum: {int(terms.maximum)}`"

    def _terms_at(self, place: NodeInput) -> InputSpec | None:
        return self._terms[self._template.class_of(place.node)].get(place.input)

    def _has_input(self, place: NodeInput) -> bool:
        """Return whether the node has the input. Inputs that a node adds dynamically are named `<input>.<part>`; the
        server does not describe the parts."""
        known = self._terms[self._template.class_of(place.node)]
        return not known or place.input in known or place.input.partition(".")[0] in known


def declared_inputs(described: JsonValue, *kinds: str) -> dict[str, JsonValue]:
    """Return the inputs in a class's description, of these kinds or of both (`required`, `optional`)."""
    inputs = described.get("input") if isinstance(described, Mapping) else None
    parts = [inputs.get(kind) for kind in kinds or _KINDS] if isinstance(inputs, Mapping) else []
    return {name: value for part in parts if isinstance(part, Mapping) for name, value in part.items()}


def _has_part(name: str, given: set[str]) -> bool:
    return any(other.startswith(f"{name}.") for other in given)
