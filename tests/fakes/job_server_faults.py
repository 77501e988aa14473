"""Faults of the scripted job server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Op(Enum):
    """What is asked of the server."""

    START = "start"
    FIND = "find"
    STATUS = "status"
    CANCEL = "cancel"
    RESULT = "result"


class How(Enum):
    """How a request goes wrong. Each fits any request unless it says otherwise."""

    DROP = "drop"
    """Close the connection; nothing was done."""
    LOSE_ANSWER = "lose_answer"
    """Do what was asked, then close the connection."""
    CUT = "cut"
    """Do what was asked, send half of the answer, then close the connection."""
    GARBAGE = "garbage"
    """Do what was asked and answer 200 with what is not JSON."""
    ERROR = "error"
    """500; nothing was done."""
    ERROR_AFTER = "error_after"
    """Do what was asked, then 500."""
    BUSY = "busy"
    """503 with Retry-After: 0; nothing was done."""
    REFUSE = "refuse"
    """403; nothing was done."""
    HOLD = "hold"
    """Do what was asked and answer only when the server is let go."""
    LATE = "late"
    """START: close the connection, and take the job only once it has been looked for in vain."""
    HIDE = "hide"
    """FIND, STATUS: answer as if there were no such job, though there is."""
    FORGET = "forget"
    """STATUS, RESULT: forget the job, then answer."""
    RESTART = "restart"
    """Forget every job, then answer."""
    IGNORE = "ignore"
    """CANCEL: confirm, and go on to the end all the same."""


@dataclass
class Fault:
    op: Op
    how: How
    times: int = 1
    """Requests that go wrong; -1: all."""


class Script:
    """Faults in the order in which they are to happen."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, op: Op, how: How, times: int = 1) -> None:
        self._faults.append(Fault(op, how, times))

    def clear(self) -> None:
        self._faults.clear()

    def next(self, op: Op) -> How | None:
        """What goes wrong with this request, if anything."""
        for fault in self._faults:
            if fault.op is op and fault.times != 0:
                fault.times -= 1
                return fault.how
        return None
