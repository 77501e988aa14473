"""A recording of ComfyUI as it is read for a replay: the requests sent, and the events received by then.

Two traps of the recorder are undone here. It kept request bodies by reference and changed some of them later: the graph
that was sent is the one that the server shows in its queue or history. And it wrote a request down when the answer was
there: what was heard by then may have come after it was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests import fixtures

Event = dict[str, Any]
VERSIONS = ("0.3.64", "0.33.0")
_ROUNDING_S = 0.0003
_INTERRUPTS = ("/interrupt", "/cancel")


@dataclass(frozen=True)
class Recording:
    """One file: events in the order in which they were written down."""

    version: str
    name: str
    events: list[Event]

    @cached_property
    def graphs(self) -> dict[tuple[str, float], dict[str, Any]]:
        """By prompt_id and number: the graphs that the server showed."""
        return {(item[1], item[0]): item[2] for item in _items([event.get("response") for event in self.events])}

    def body(self, index: int) -> Any:
        """The JSON that was sent with a POST /prompt, with its own graph."""
        event = self.events[index]
        body, answer = event["body"], event["response"]
        if isinstance(body, dict) and (graph := self.graphs.get((answer.get("prompt_id"), answer.get("number")))):
            return body | {"prompt": graph}
        return body

    def changed_bodies(self) -> list[int]:
        """Requests whose recorded body is not what was sent."""
        https = [index for index, event in enumerate(self.events) if event["kind"] == "http"]
        return [index for index in https if self.body(index) != self.events[index]["body"]]

    def received_before(self, index: int) -> int:
        """The index before which every message had been heard when this event began."""
        event = self.events[index]
        if event["kind"] != "http":
            return index
        if event["path"].endswith(_INTERRUPTS) and (late := self.late_interrupt(index)) is not None:
            return late
        began_s = event["t"] - event["ms"] / 1000 + _ROUNDING_S
        late_ones = (
            at for at in range(index) if self.events[at]["kind"] == "ws_recv" and self.events[at]["t"] > began_s
        )
        return next(late_ones, index)

    def late_interrupt(self, index: int) -> int | None:
        """Just after the message that the node before the interrupted one executes.

        An interrupt takes effect when the busy event loop gets to it, up to a third of a second after it was sent; an
        interrupted run shows by its last node when that was.
        """
        seen: list[int] = []
        for at, event in enumerate(self.events):
            kind = event["data"]["type"] if event["kind"] == "ws_recv" else ""
            if kind == "executing":
                seen.append(at + 1)
            if at > index and kind == "execution_interrupted":
                return seen[-2]
            if at > index and event["kind"] == "http" and event["path"] == "/prompt":
                return None
        return None


def whole_answer(event: Event) -> Any:
    """What was answered; of an `/object_info` that was cut, its first class."""
    answer = event["response"]
    if not isinstance(answer, dict) or "_truncated" not in answer:
        return answer
    head = answer["head"]
    name = head[2 : head.index('"', 2)]
    return {name: json.JSONDecoder().raw_decode(head, head.index("{", 1))[0]}


def _items(value: Any) -> Iterator[list[Any]]:
    """Queue items anywhere in an answer: `[number, prompt_id, graph, extra_data, outputs]`."""
    if isinstance(value, list) and len(value) == 5 and isinstance(value[1], str) and isinstance(value[2], dict):
        yield value
    elif isinstance(value, list | dict):
        for each in value if isinstance(value, list) else value.values():
            yield from _items(each)


def recordings(version: str) -> list[Recording]:
    """All of one version, in the order in which they were made on one server."""
    folder = fixtures.path("comfyui", "transcripts", f"v{version}")
    return [
        Recording(version, path.stem, json.loads(path.read_text("utf-8"))["events"])
        for path in sorted(folder.glob("*.json"))
    ]
