"""The work that the scripted job server does: it moves on when it is looked at, or with the clock."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Work:
    """What a job shall do; the body of POST /jobs."""

    steps: int = 2
    """How often it is looked at until it is done; or steps of its `seconds`."""
    seconds: float = 0.0
    """More than 0: it takes so long for any caller."""
    holds: bool = False
    """Whether it stays where it is until it is let go."""
    fails: bool = False
    result: Any = None
    stops_after: int = 1
    """How often it is looked at, once it was asked to stop, until it has."""


@dataclass
class RemoteTask:
    id: str
    key: str
    work: Work
    began_s: float
    step: int = 0
    stops_after: int | None = None
    """Set once it was asked to stop and heeds it."""
    state: str = "running"

    @property
    def has_ended(self) -> bool:
        return self.state in {"succeeded", "failed", "cancelled"}

    def look(self, let_go: bool) -> dict[str, Any]:
        """Move on, and notify."""
        if not self.has_ended:
            self._move(let_go)
        state = {"id": self.id, "key": self.key, "state": self.state, "step": self.step, "total": self.work.steps}
        return state | {"message": f"step {self.step}"}

    def stop(self) -> None:
        if self.stops_after is None:
            self.stops_after = self.work.stops_after
            self.state = "cancelling"

    def _move(self, let_go: bool) -> None:
        if self.stops_after is not None:
            self.stops_after -= 1
            if self.stops_after < 0:
                self.state = "cancelled"
        elif self.work.seconds > 0:
            self._reach(int(self.work.steps * (time.monotonic() - self.began_s) / self.work.seconds))
        elif let_go or not self.work.holds:
            self._reach(self.step + 1)

    def _reach(self, step: int) -> None:
        self.step = min(step, self.work.steps)
        if self.step >= self.work.steps:
            self.state = "failed" if self.work.fails else "succeeded"


@dataclass
class Memory:
    """All tasks that the server knows, and all effects that there ever were."""

    tasks: dict[str, RemoteTask] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    """How often work was begun, by key: what really happened, which no restart undoes."""
    honours_keys: bool = False
    """Whether a key that is known already begins nothing."""
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def take(self, key: str, work: Work) -> RemoteTask:
        known = self.of(key) if self.honours_keys else []
        if known:
            return known[0]
        self.effects[key] += 1
        task = RemoteTask(f"r-{next(self._ids)}", key, work, time.monotonic())
        self.tasks[task.id] = task
        return task

    def of(self, key: str) -> list[RemoteTask]:
        return [task for task in self.tasks.values() if task.key == key]
