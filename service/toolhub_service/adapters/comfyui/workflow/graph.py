"""A graph as ComfyUI exports it for its API: `{node id: {class_type, inputs}}`, where a list `[node id, slot]` is a
link.

The server answers a malformed graph with a bare 500 and accepts some graphs that fail only at run time, so the
structure is validated here. Cycles are found by Kahn's algorithm; nothing recurses, because the depth is limited when
the text is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.foreign_text import is_hidden
from toolhub_service.guards.secret_names import is_secret_name

NODES_MAX: Final = 2_000
GRAPH_MAX_BYTES: Final = 4 * 1024 * 1024
GRAPH_MAX_DEPTH: Final = 32
INPUT_NAME_MAX_CHARS: Final = 128
_NODE_ID: Final = re.compile(r"[A-Za-z0-9_:.-]{1,64}")
_CLASS_MAX_CHARS: Final = 200
# Names that are special in JavaScript, in which the editor is written.
_PROTOTYPE: Final = frozenset({"__proto__", "prototype", "constructor"})
_PROBLEMS_MAX: Final = 20
_HOW_TO_EXPORT = "open it in ComfyUI and use Workflow → Export (API)"


def is_link(value: JsonValue) -> bool:
    """Return whether an input is taken from another node; ComfyUI interprets every list as a link."""
    return isinstance(value, list | tuple)


def is_api_format(value: object) -> bool:
    """Return whether it looks like a graph for the API, valid or not."""
    return isinstance(value, Mapping) and any(
        isinstance(node, Mapping) and "class_type" in node for node in value.values()
    )


def is_editor_format(value: object) -> bool:
    """Return whether it is the editor's own format, with positions and colours."""
    # Checked here, because a server answers it with a bare 500.
    return isinstance(value, Mapping) and isinstance(value.get("nodes"), list) and "links" in value


def name_problem(name: str, max_chars: int = INPUT_NAME_MAX_CHARS) -> str:
    """Return why it cannot name an argument, an input or an output; empty when it can."""
    if not name or len(name) > max_chars:
        return f"a name has 1 to {max_chars} characters"
    if any(map(is_hidden, name)) or name != name.strip() or "\n" in name or "\t" in name:
        return "it has invisible characters; type it again"
    if name in _PROTOTYPE or name in (".", ".."):
        return "it means something else to programs; choose another name"
    return ""


def graph_problems(graph: JsonValue) -> tuple[str, ...]:
    """Return why the graph cannot be sent, a sentence or two for each problem, at most twenty; empty when it can."""
    whole = _not_a_graph(graph)
    if whole or not isinstance(graph, Mapping):
        return (whole,)
    shapes = [problem for node, body in graph.items() for problem in _node_problems(node, body)]
    if shapes:
        return tuple(shapes[:_PROBLEMS_MAX])
    links = [*_link_problems(graph)]
    return tuple(links[:_PROBLEMS_MAX] or _cycle_problems(graph))


def links_of(node: JsonValue) -> Iterator[tuple[str, str, int]]:
    """Yield (input, source node, slot) of each link into a node of a valid graph."""
    inputs = _inputs(node)
    for name, value in inputs.items():
        if is_link(value):
            yield name, value[0], value[1]


def literals_of(node: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yield (input, value) of each input of a node that is not a link."""
    return ((name, value) for name, value in _inputs(node).items() if not is_link(value))


def _inputs(node: JsonValue) -> Mapping[str, Any]:
    inputs = node.get("inputs") if isinstance(node, Mapping) else None
    return inputs if isinstance(inputs, Mapping) else {}


def _not_a_graph(graph: JsonValue) -> str:
    """Return why no server would run it as a graph; empty when one would."""
    if is_editor_format(graph):
        return f"it is in the format of the editor, which a server does not run: {_HOW_TO_EXPORT}"
    if not isinstance(graph, Mapping):
        return f"it is not a JSON object of nodes: {_HOW_TO_EXPORT}"
    if is_api_format(graph.get("prompt")):
        return "it is a complete request: keep only the value of `prompt`"
    if not graph:
        return f"it has no nodes: {_HOW_TO_EXPORT}"
    if len(graph) > NODES_MAX:
        return f"it has {len(graph):,} nodes; the limit is {NODES_MAX:,}"
    return ""


def _node_problems(node: str, body: JsonValue) -> Iterator[str]:
    if _NODE_ID.fullmatch(node) is None or name_problem(node):
        yield f"node {node[:64]!r}: an id has 1 to 64 letters, digits and `_:.-`"
        return
    class_type = body.get("class_type") if isinstance(body, Mapping) else None
    if not isinstance(class_type, str) or not isinstance(body, Mapping):
        yield f"node {node}: it has no `class_type`: {_HOW_TO_EXPORT}"
        return
    if name_problem(class_type, _CLASS_MAX_CHARS):
        yield f"node {node}: {class_type[:64]!r} cannot be a class: {name_problem(class_type, _CLASS_MAX_CHARS)}"
    inputs = body.get("inputs")
    if not isinstance(inputs, Mapping):
        yield f"node {node} ({class_type}): it has no `inputs`: {_HOW_TO_EXPORT}"
        return
    for name, value in inputs.items():
        yield from _input_problems(f"/{node}/inputs/{name[:64]}", name, value)


def _input_problems(where: str, name: str, value: JsonValue) -> Iterator[str]:
    wrong = name_problem(name)
    if wrong:
        yield f"{where!r}: {wrong}"
    if isinstance(value, list | tuple) and not _is_well_formed(value):
        yield f"{where}: a list must be a link, `[node id, slot]`; ComfyUI reads no other"
    if isinstance(value, str) and value and is_secret_name(name):
        yield (
            f"{where}: it looks like a secret, and ComfyUI writes the graph into each image: empty it, and set the "
            "key in the configuration of the server"
        )


def _is_well_formed(link: list[Any] | tuple[Any, ...]) -> bool:
    return len(link) == 2 and isinstance(link[0], str) and type(link[1]) is int and link[1] >= 0


def _link_problems(graph: JsonObject) -> Iterator[str]:
    for node, body in graph.items():
        for name, origin, _ in links_of(body):
            if origin not in graph:
                wrong = f"it is linked to node {origin[:64]!r}, which does not exist"
                yield f"/{node}/inputs/{name}: {wrong}: {_HOW_TO_EXPORT}"


def _cycle_problems(graph: JsonObject) -> list[str]:
    """Remove nodes that wait for no other, repeatedly, and report the remaining ones as a cycle."""
    needs = Counter({node: sum(1 for _ in links_of(body)) for node, body in graph.items()})
    feeds: dict[str, list[str]] = {node: [] for node in graph}
    for node, body in graph.items():
        for _, origin, _ in links_of(body):
            feeds[origin].append(node)
    ready = [node for node, count in needs.items() if not count]
    done = 0
    while ready:
        done += 1
        for fed in feeds[ready.pop()]:
            needs[fed] -= 1
            if not needs[fed]:
                ready.append(fed)
    if done == len(graph):
        return []
    left = [node for node, count in needs.items() if count]
    return [f"nodes {', '.join(left[:10])}: they depend on each other in a cycle; remove the cycle"]
