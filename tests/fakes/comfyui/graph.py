"""A prompt as a graph: what runs in which order, and what makes two nodes the same to the cache.

The order is the server's: of the nodes whose inputs are there, first an output node, then one that an output node waits
for, else the first. Two nodes are the same when class, values and everything above them are the same; ids do not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Graph = dict[str, Any]
"""API format: node id to `{class_type, inputs, _meta}`."""


def is_link(value: Any) -> bool:
    """Whether an input is another node's output: `[node id, slot]`."""
    return isinstance(value, list) and len(value) == 2


def links_of(node: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Input, node and slot of each link."""
    return [(name, value[0], value[1]) for name, value in node.get("inputs", {}).items() if is_link(value)]


def signature(graph: Graph, node_id: str, changed: Callable[[dict[str, Any]], str]) -> str:
    """Equal for nodes that bring the same; `changed`: what a node adds of the world outside (a file's digest)."""
    node = graph[node_id]
    inputs = {
        name: ["link", signature(graph, value[0], changed), value[1]] if is_link(value) else value
        for name, value in node.get("inputs", {}).items()
    }
    return json.dumps([node["class_type"], changed(node), inputs], sort_keys=True)


class PendingNodes:
    """The nodes that a prompt still has to run; one is taken at a time."""

    def __init__(
        self, graph: Graph, outputs: Iterable[str], cached: set[str], is_output: Callable[[str], bool]
    ) -> None:
        self._graph = graph
        self._is_output = is_output
        self._waits_for: dict[str, set[str]] = {}
        for node_id in outputs:
            self._add(node_id, cached)

    def _add(self, node_id: str, cached: set[str]) -> None:
        if node_id in self._waits_for:
            return
        above = [] if node_id in cached else [source for _, source, _ in links_of(self._graph[node_id])]
        self._waits_for[node_id] = {source for source in above if source not in cached}
        for source in above:
            if source not in cached:
                self._add(source, cached)

    def take(self) -> str | None:
        """The next node; None at the end."""
        ready = [node_id for node_id, above in self._waits_for.items() if not above]
        if not ready:
            return None
        chosen = next(filter(self._is_output, ready), None) or next(filter(self._feeds_output, ready), ready[0])
        del self._waits_for[chosen]
        for above in self._waits_for.values():
            above.discard(chosen)
        return chosen

    def _feeds_output(self, node_id: str) -> bool:
        return any(node_id in above and self._is_output(below) for below, above in self._waits_for.items())
