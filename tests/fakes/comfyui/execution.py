"""One prompt's run: node by node, with the messages, the cache and the interrupts of the real server.

Recorded order of a node: `progress_state` (running), `executing`, the look for an interrupt, the work, `executed` (if
it shows something), `progress_state` (finished). A cached node is passed over; a cached output node says `executed`
with what it showed last time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.comfyui.files import Folders
from tests.fakes.comfyui.graph import PendingNodes, is_link, signature
from tests.fakes.comfyui.node_class import BrokenNode, NodeClass, NodeResult
from tests.fakes.comfyui.pace import Pace, RunningNode
from tests.fakes.comfyui.png import Picture, encoded
from tests.fakes.comfyui.sockets import Sockets
from tests.fakes.comfyui.versions import Version
from tests.fakes.comfyui.work_queue import Entry, Item


class RunInterrupted(Exception):
    """Somebody asked the running prompt to stop."""


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class ServerState:
    """What all runs of a server's life share."""

    version: Version
    classes: dict[str, NodeClass]
    folders: Folders
    sockets: Sockets
    pace: Pace
    break_node: Callable[[str], None]
    """Called with the class before a node works; raises what a test wants."""
    shown_instead: Callable[[str, dict[str, list[Any]]], dict[str, list[Any]]]
    """Class and what its node shows to what it shall be said to show."""
    cache: dict[str, NodeResult] = field(default_factory=dict)
    interrupted: bool = False
    previews: bool = False
    client_id: str | None = None
    """Of the running prompt."""
    last_node: str | None = None
    """The node that executes, as sent to a client that reconnects."""


class Run:
    """Implements `node_class.Bench` for the node that works."""

    def __init__(self, state: ServerState, item: Item) -> None:
        self._state = state
        self._number, self._id, self._graph, self._extra, self._wanted = item
        self._item = item
        self._client: str | None = self._extra.get("client_id")
        self._messages: list[list[Any]] = []
        self._progress: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, NodeResult] = {}
        self._shown: dict[str, dict[str, list[Any]]] = {}
        self._executed: list[str] = []
        self._now = ""

    async def finish(self) -> Entry:
        """Everything up to and with the last message of the run; its history entry."""
        state = self._state
        state.interrupted, state.client_id, state.last_node = False, self._client, None
        self._publish("execution_start", {})
        keys = {node_id: signature(self._graph, node_id, state.folders.changed) for node_id in self._valid()}
        cached = {node_id for node_id, key in keys.items() if key in state.cache}
        state.cache = {key: ran for key, ran in state.cache.items() if key in keys.values()}
        self._publish("execution_cached", {"nodes": [node_id for node_id in self._graph if node_id in cached]})
        self._outputs = {node_id: state.cache[keys[node_id]] for node_id in cached}
        succeeded = await self._all_nodes(keys, cached)
        state.last_node = None
        return self._entry(succeeded)

    def _valid(self) -> list[str]:
        """Nodes of the accepted branches; a dropped branch may not even have inputs."""
        found: list[str] = []
        waiting = list(self._wanted)
        while waiting:
            if (node_id := waiting.pop()) not in found:
                found.append(node_id)
                waiting += [value[0] for value in self._graph[node_id]["inputs"].values() if is_link(value)]
        return found

    async def _all_nodes(self, keys: dict[str, str], cached: set[str]) -> bool:
        to_run = PendingNodes(self._graph, self._wanted, cached, lambda node_id: self._class(node_id).is_output)
        while (node_id := to_run.take()) is not None:
            if node_id in cached:
                self._show(node_id, self._outputs[node_id])
                self._advance(node_id, "finished", 1, 1)
                continue
            try:
                ran = await self._one_node(node_id)
            except RunInterrupted:
                self._publish("execution_interrupted", self._where(node_id))
                return False
            except (BrokenNode, RuntimeError, TypeError, ValueError, KeyError, OSError) as broken:
                self._publish("execution_error", self._where(node_id) | self._why(node_id, broken))
                return False
            self._outputs[node_id] = self._state.cache[keys[node_id]] = ran
            self._executed.append(node_id)
        self._publish("execution_success", {})
        return True

    async def _one_node(self, node_id: str) -> NodeResult:
        state, kind = self._state, self._class(node_id)
        self._now = node_id
        self._advance(node_id, "running", 0.0, 1.0)
        state.last_node = node_id
        self._send("executing", {"node": node_id, "display_node": node_id, "prompt_id": self._id})
        self._look_for_interrupt()
        await state.pace.take_time(RunningNode(self._id, node_id, kind.name, self._graph))
        state.break_node(kind.name)
        ran = await kind.run(self._inputs(node_id), self)
        if ran.ui is not None:
            ran = NodeResult(ran.outputs, state.shown_instead(kind.name, ran.ui))
        self._show(node_id, ran)
        self._advance(node_id, "finished", 1.0, 1.0)
        return ran

    def _inputs(self, node_id: str) -> dict[str, Any]:
        """Values, and what the links bring; an optional input that is not given is the class's default."""
        given = self._graph[node_id]["inputs"]
        return {
            name: self._outputs[value[0]].outputs[value[1]] if is_link(value) else value
            for name, value in given.items()
        }

    def _class(self, node_id: str) -> NodeClass:
        return self._state.classes[self._graph[node_id]["class_type"]]

    def _look_for_interrupt(self) -> None:
        if self._state.interrupted:
            self._state.interrupted = False
            raise RunInterrupted

    # what nodes may do

    def save(self, picture: Picture, prefix: str, kind: str) -> list[dict[str, str]]:
        texts = {"prompt": self._graph, **self._extra.get("extra_pnginfo", {})}
        return self._state.folders.save(picture, prefix, kind, texts)

    def load(self, name: str) -> Picture:
        return self._state.folders.load(name)

    async def progress(self, value: int, of: int, preview: Picture | None = None) -> None:
        self._look_for_interrupt()
        self._advance(self._now, "running", float(value), float(of))
        data = {"value": value, "max": of, "prompt_id": self._id, "node": self._now}
        self._state.sockets.send("progress", data, self._client)
        if preview is not None and self._state.previews:
            about = {"node_id": self._now, "prompt_id": self._id, "image_type": "image/png"}
            self._state.sockets.send_preview(encoded(preview), about, self._client)
        node = RunningNode(self._id, self._now, self._class(self._now).name, self._graph)
        await self._state.pace.take_time(node)

    # what is told

    def _publish(self, kind: str, data: dict[str, Any]) -> None:
        """To the history, and to the client that submitted."""
        payload = {"prompt_id": self._id, **data, "timestamp": now_ms()}
        self._messages.append([kind, payload])
        self._send(kind, payload)

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        if self._client is not None:
            self._state.sockets.send(kind, data, self._client)

    def _show(self, node_id: str, ran: NodeResult) -> None:
        if ran.ui is not None:
            self._shown[node_id] = ran.ui
            about = {"node": node_id, "display_node": node_id, "output": ran.ui, "prompt_id": self._id}
            self._send("executed", about)

    def _advance(self, node_id: str, state: str, value: float, of: float) -> None:
        """All nodes so far, each time: to the client, or to everybody when the prompt has none."""
        self._progress[node_id] = {
            "value": value,
            "max": of,
            "state": state,
            "node_id": node_id,
            "prompt_id": self._id,
            "display_node_id": node_id,
            "parent_node_id": None,
            "real_node_id": node_id,
        }
        state_of_all = {"prompt_id": self._id, "nodes": dict(self._progress)}
        self._state.sockets.send("progress_state", state_of_all, self._client)

    def _where(self, node_id: str) -> dict[str, Any]:
        return {"node_id": node_id, "node_type": self._class(node_id).name, "executed": self._executed[::-1]}

    def _why(self, node_id: str, broken: Exception) -> dict[str, Any]:
        frames = [*self._state.version.frames, (self._class(node_id).run.__name__, 1)]
        given: dict[str, list[Any]] = {
            name: [value if isinstance(value, int | float | str) else repr(value)]
            for name, value in self._inputs(node_id).items()
        }
        if self._class(node_id).hidden:
            given |= {"prompt": [str(self._graph)], "extra_pnginfo": [self._extra.get("extra_pnginfo")]}
        return {
            "exception_message": str(broken),
            "exception_type": broken.kind if isinstance(broken, BrokenNode) else type(broken).__name__,
            "traceback": [f'  File "/opt/comfyui/execution.py", line {line}, in {name}' for name, line in frames],
            "current_inputs": given,
            "current_outputs": list(self._graph),
        }

    def _entry(self, succeeded: bool) -> Entry:
        status = {"status_str": "success" if succeeded else "error", "completed": succeeded}
        meta = {
            node_id: {"node_id": node_id, "display_node": node_id, "parent_node": None, "real_node_id": node_id}
            for node_id in self._shown
        }
        shown = dict(self._shown)
        return {
            "prompt": list(self._item),
            "outputs": shown,
            "status": status | {"messages": self._messages},
            "meta": meta,
        }
