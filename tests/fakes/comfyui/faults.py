"""Faults of the fake, set request by request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum


class Op(Enum):
    """What is asked of the server."""

    SUBMIT = "POST /prompt"
    QUEUE = "GET /queue"
    DELETE = "POST /queue"
    HISTORY = "GET /history"
    JOB = "GET /api/jobs/{id}"
    JOBS = "GET /api/jobs"
    CANCEL = "POST /api/jobs/{id}/cancel"
    INTERRUPT = "POST /interrupt"
    VIEW = "GET /view"
    UPLOAD = "POST /upload/image"
    CLASSES = "GET /object_info"
    STATS = "GET /system_stats"
    FEATURES = "GET /features"
    SOCKET = "GET /ws"
    READ = "any GET but /ws"
    ANY = "anything"


class How(Enum):
    """How a request goes wrong. Each fits any request unless it says otherwise."""

    DROP = "drop"
    """Close the connection; nothing was done."""
    GATEWAY = "gateway"
    """502, or `faults.gateway_status`, of a proxy whose server is away; nothing was done."""
    GAVE_UP = "gave_up"
    """Do what was asked; a proxy answers `faults.gateway_status`."""
    LOSE_ANSWER = "lose_answer"
    """Do what was asked, then close the connection."""
    CUT = "cut"
    """Do what was asked, send half of the answer, then close the connection."""
    ERROR = "error"
    """500; nothing was done."""
    ERROR_AFTER = "error_after"
    """Do what was asked, then answer 500."""
    GARBAGE = "garbage"
    """Do what was asked and answer 200 with a page of HTML."""
    EMPTY = "empty"
    """Do what was asked and answer 200 with nothing."""
    TWICE = "twice"
    """Do what was asked twice, as by a proxy that repeats; the first answer."""
    HOLD = "hold"
    """The event loop stalls: nothing is done or answered before `faults.let_go()`."""
    LATE = "late"
    """Do what was asked at once, and answer only after `faults.let_go()`."""
    HIDE = "hide"
    """HISTORY, JOB, JOBS, QUEUE: answer as if there were nothing, though there is."""
    IGNORE = "ignore"
    """CANCEL, INTERRUPT, DELETE: answer that nothing was to be done (`cancelled: false`, 200), and do nothing."""
    FULL = "full"
    """413; nothing was done."""
    HUGE = "huge"
    """Do what was asked and answer with `faults.huge_bytes` more (valid JSON where the answer is JSON)."""


@dataclass
class Fault:
    op: Op
    how: How
    times: int = 1
    """Requests that go wrong; -1: all."""


_READS = frozenset({
    Op.QUEUE, Op.HISTORY, Op.JOB, Op.JOBS, Op.VIEW, Op.CLASSES, Op.STATS, Op.FEATURES,
})  # fmt: skip


class Faults:
    """Faults in the order in which they are to happen."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._gate = asyncio.Event()
        self.happened: list[tuple[Op, How]] = []
        self.huge_bytes = 64 * 1024 * 1024
        self.gateway_status = 502
        self.held = 0
        """Requests that wait for `let_go` now."""

    def add(self, op: Op, how: How, times: int = 1) -> None:
        """The next `times` requests of this kind go wrong so (-1: all)."""
        self._faults.append(Fault(op, how, times))

    def clear(self) -> None:
        """Nothing goes wrong any more, and what is held goes on."""
        self._faults.clear()
        self.let_go()

    def let_go(self) -> None:
        """What is held now goes on."""
        self._gate.set()
        self._gate = asyncio.Event()

    async def wait(self) -> None:
        """Until `let_go`."""
        await self._gate.wait()

    def next(self, op: Op) -> How | None:
        """What goes wrong with this request, if anything."""
        kinds = {op, Op.ANY} | ({Op.READ} if op in _READS else set())
        for fault in self._faults:
            if fault.op in kinds and fault.times != 0:
                fault.times -= 1
                self.happened.append((op, fault.how))
                return fault.how
        return None
