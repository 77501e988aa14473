"""How far a prompt has come, by what the server's WebSocket says of its nodes.

Nodes to run are those of the graph less those whose results were there; a running node counts by its own value of max.
The same event may come twice, late or not at all: what was reached is never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolhub_service.adapters.shortening import one_line
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.progress import Progress

UNIT: Final = "nodes"
_NODES_MAX: Final = 10_000
_MOST: Final = 1e12
_WORD_MAX_CHARS: Final = 80
_NODE_ID: Final = re.compile(r"[A-Za-z0-9_:.-]{1,64}")


class NodeProgress:
    """Of one prompt. `changed` is told of each step."""

    def __init__(self, graph: JsonObject, changed: Callable[[Progress], None]) -> None:
        self._graph = graph
        self._changed = changed
        self._cached: set[str] = set()
        self._finished: set[str] = set()
        self._running = ""
        self._share = 0.0

    @property
    def is_heard(self) -> bool:
        """Whether anything was heard of its nodes."""
        return bool(self._running or self._finished)

    @property
    def total(self) -> int:
        """Nodes to run; 0: everything was there."""
        return len(self._graph) - len(self._cached)

    def progress(self, message: str = "") -> Progress:
        step = min(len(self._finished) + self._share, float(self.total))
        return Progress(step, float(self.total), UNIT, message or self._running or "begins")

    def ended(self, message: str) -> Progress:
        """Every node is done."""
        return Progress(float(self.total), float(self.total), UNIT, message)

    def hear(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Take an event; whether the server has ended the prompt with it.

        That is `executing` without a node: `execution_success` and its like come before the history has the prompt.
        """
        if kind == "execution_cached":
            self._cached |= _nodes(data.get("nodes")) & self._graph.keys()
        elif kind == "progress_state":
            self._take_states(data.get("nodes"))
        elif kind == "progress":
            self._take_share(str(data.get("node")), data.get("value"), data.get("max"))
        elif kind == "executing" and isinstance(data.get("node"), str):
            self._begin(data["node"])
        else:
            return kind == "executing"
        self._changed(self.progress())
        return False

    def _take_states(self, nodes: Any) -> None:
        if not isinstance(nodes, Mapping):
            return
        for node, said in list(nodes.items())[:_NODES_MAX]:
            state = said.get("state") if isinstance(said, Mapping) else None
            if state == "finished" and node in self._graph and node not in self._cached:
                self._finished.add(node)
                self._share = 0.0
            elif state == "running":
                self._begin(node)
                self._take_share(node, said.get("value"), said.get("max"))

    def _begin(self, node: str) -> None:
        running = self._name(node)
        if running != self._running:
            self._running, self._share = running, 0.0

    def _take_share(self, node: str, value: Any, most: Any) -> None:
        if node in self._finished or not isinstance(value, int | float) or not isinstance(most, int | float):
            return
        if 0 <= value <= most and 0 < most < _MOST:
            self._share = max(self._share, min(value / most, 0.99))

    def _name(self, node: str) -> str:
        body = self._graph.get(node)
        if not isinstance(body, Mapping):
            return f"node {node}" if _NODE_ID.fullmatch(node) else "a node"
        meta = body.get("_meta")
        title = meta.get("title") if isinstance(meta, Mapping) else None
        own = f" “{one_line(title, _WORD_MAX_CHARS)}”" if isinstance(title, str) and title else ""
        return f"{body['class_type']}{own}"


def _nodes(said: Any) -> set[str]:
    return {node for node in said[:_NODES_MAX] if isinstance(node, str)} if isinstance(said, list) else set()
