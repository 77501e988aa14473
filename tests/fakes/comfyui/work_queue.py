"""What waits, what runs and what has ended.

Pending prompts are a `heapq` of whole tuples, as in the real server, with its bug: two items of the same number and id
make Python compare the graphs, which cannot be compared. So such a delete answers 500 after it has removed one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from tests.fakes.comfyui.pulse import ChangeSignal

Item = tuple[float, str, dict[str, Any], dict[str, Any], list[str]]
"""`(number, prompt_id, graph, extra_data, outputs to run)`, lowest number first."""
Entry = dict[str, Any]
"""One prompt's history: prompt, outputs, status, meta."""


class WorkQueue:
    """`told`: called after every change, to broadcast `status`."""

    def __init__(self, pulse: ChangeSignal, on_change: Callable[[], None], history_cap: int) -> None:
        self._pulse = pulse
        self._on_change = on_change
        self._cap = history_cap
        self.pending: list[Item] = []
        """In heap order, which is how GET /queue shows it."""
        self.running: Item | None = None
        self.history: dict[str, Entry] = {}

    @property
    def remaining(self) -> int:
        return len(self.pending) + (self.running is not None)

    @property
    def status(self) -> dict[str, Any]:
        """What `status` messages and GET /prompt carry."""
        return {"exec_info": {"queue_remaining": self.remaining}}

    def _changed(self) -> None:
        self._on_change()
        self._pulse.beat()

    def put(self, item: Item) -> None:
        """Raises: TypeError by the heap bug; the item is in nonetheless."""
        heapq.heappush(self.pending, item)
        self._changed()

    async def take(self) -> Item:
        """The next to run. Raises: TypeError by the heap bug, which ends the real server's worker, too."""
        await self._pulse.until(lambda: bool(self.pending), timeout_s=None)
        self.running = heapq.heappop(self.pending)
        self._changed()
        return self.running

    def done(self, item: Item, entry: Entry) -> None:
        """It has ended: into the history, whose oldest makes room."""
        self.running = None
        if len(self.history) >= self._cap:
            self.history.pop(next(iter(self.history)))
        self.history[item[1]] = entry
        self._changed()

    def delete(self, prompt_id: str) -> bool:
        """One pending item of that id. Raises: TypeError by the heap bug, after it was removed."""
        for index, item in enumerate(self.pending):
            if item[1] == prompt_id:
                self.pending.pop(index)
                heapq.heapify(self.pending)
                self._changed()
                return True
        return False

    def clear(self) -> None:
        """Nothing is pending any more."""
        self.pending.clear()
        self._changed()

    def page(self, max_items: int | None, offset: int) -> dict[str, Entry]:
        """GET /history: from `offset` (-1: the last `max_items`)."""
        entries = list(self.history.items())
        start = len(entries) - max_items if offset < 0 and max_items is not None else max(0, offset)
        return dict(entries[max(0, start) :][:max_items])
