"""How fast nodes run: at once, on a scale, or one at a time as the test releases them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.comfyui.pulse import ChangeSignal


@dataclass(frozen=True)
class RunningNode:
    """A node that has said `executing` and has not finished."""

    prompt_id: str
    node_id: str
    class_type: str
    graph: dict[str, Any] = field(repr=False, hash=False)


Holds = Callable[[RunningNode], bool]


class Pace:
    """Nodes that are held wait, inside their execution, for a step each."""

    def __init__(self, pulse: ChangeSignal) -> None:
        self._pulse = pulse
        self._holds: list[Holds] = []
        self._steps = 0
        self.node_s = 0.0
        """How long a node that is not held takes."""
        self.held: RunningNode | None = None
        """The node that waits now: there is at most one, as the server runs one prompt at a time."""

    def hold(self, which: str | Holds | None = None) -> None:
        """Hold nodes of a class, nodes that a function picks, or (None) every node."""
        if callable(which):
            self._holds.append(which)
        else:
            self._holds.append(lambda node: which in {None, node.class_type})

    def release(self) -> None:
        """Nothing is held any more, and what waits goes on."""
        self._holds.clear()
        self._steps = 0
        self._wake()

    def step(self, nodes: int = 1) -> None:
        """Let so many held nodes go on: the one that waits, then those that come."""
        self._steps += nodes
        self._wake()

    def _wake(self) -> None:
        # at once, so that nobody takes the node that is about to go on for one that waits
        self.held = None
        self._pulse.beat()

    async def take_time(self, node: RunningNode) -> None:
        if not any(holds(node) for holds in self._holds):
            await asyncio.sleep(self.node_s)
            return
        self.held = node
        self._pulse.beat()
        try:
            await self._pulse.until(lambda: self._steps > 0 or not self._holds, timeout_s=None)
            self._steps = max(0, self._steps - 1)
        finally:
            self.held = None
            self._pulse.beat()
