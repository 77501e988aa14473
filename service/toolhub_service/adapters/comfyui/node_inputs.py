"""Where in a graph a sidecar's pointer leads: to one literal input of one node, of the class the author saw there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from toolhub_service.adapters.comfyui.graph import is_link
from toolhub_service.adapters.comfyui.template import NodeInput
from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.json_pointer import names_of

_SHOWN_MAX = 5
_AGAIN = "the graph was exported again and its nodes were renumbered"


class Misplaced(ValueError):
    """A pointer does not lead to a literal input as it should; the message says why and what to do."""


def input_of(graph: JsonObject, pointer: str, expect_class: str = "") -> NodeInput:
    """`/3/inputs/seed` in a sound graph; `expect_class` empty: of any class. Raises Misplaced."""
    steps = names_of(pointer)
    if len(steps) != 3 or steps[1] != "inputs":
        raise Misplaced(f"{pointer} is no input: write `/<node id>/inputs/<name>`")
    node, _, name = steps
    inputs = node_of(graph, node, expect_class)["inputs"]
    if name not in inputs:
        near = difflib.get_close_matches(name, inputs, n=1)
        advice = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(list(inputs)[:_SHOWN_MAX]) or 'none'}"
        raise Misplaced(f"{pointer}: node {node} has no input `{name[:64]}` in this graph; {advice}")
    if is_link(inputs[name]):
        raise Misplaced(
            f"{pointer} is a link from node {inputs[name][0]}, and no argument may take its place: name that node's "
            "input, or unlink it in ComfyUI and export again"
        )
    return NodeInput(node, name, pointer)


def node_of(graph: JsonObject, node: str, expect_class: str = "") -> Mapping[str, Any]:
    """Raises Misplaced when there is no such node, or it is of another class."""
    body = graph.get(node)
    if not isinstance(body, Mapping):
        raise Misplaced(f"there is no node {node[:64]}{_since(graph, expect_class)}")
    if expect_class and body["class_type"] != expect_class:
        raise Misplaced(
            f"node {node} is of class {body['class_type']}, not {expect_class}{_since(graph, expect_class)}"
        )
    return body


def _since(graph: JsonObject, expect_class: str) -> str:
    """What the nodes of that class are called now."""
    found = [node for node, body in graph.items() if isinstance(body, Mapping) and body["class_type"] == expect_class]
    if not found:
        return f": {_AGAIN}, or the node was taken out"
    return f": {_AGAIN}; {expect_class} is now {' or '.join(found[:_SHOWN_MAX])}"
