"""What can go wrong with a request to n8n, on demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

FOREVER = -1


class How(Enum):
    """How a request goes wrong. `done` means that what was asked is done, and an execution begun."""

    DROP = "drop"
    """The connection closes; nothing is done."""
    LOSE_ANSWER = "lose_answer"
    """Done; the connection closes without an answer."""
    LATER = "later"
    """The connection closes, and it is done only once the fault is let go: not there at first sight, and yet it is."""
    STALL = "stall"
    """Nothing is done until the fault is let go; then all is well."""
    HOLD = "hold"
    """Done; the answer comes once the fault is let go (a read timeout while the execution goes on)."""
    EMPTY = "empty"
    """Done; 200 with an empty body."""
    ERROR = "error"
    """500 with a page of HTML; nothing is done."""
    ERROR_AFTER = "error_after"
    """Done; 500 with a page of HTML."""
    BAD_GATEWAY = "bad_gateway"
    """502, or `status`, of a proxy before n8n; nothing is done."""
    GAVE_UP = "gave_up"
    """It is done, and a proxy before n8n answers `status` without waiting for it."""
    BUSY = "busy"
    """503 with Retry-After; nothing is done."""
    LIMITED = "limited"
    """429 with Retry-After; nothing is done."""
    UNAUTHORIZED = "unauthorized"
    """401 `unauthorized`, as after a key was revoked; nothing is done."""
    NO_ROUTE = "no_route"
    """404 `not found`, as an older version answers; nothing is done."""
    CUT = "cut"
    """Done; half of the answer, then the connection closes."""
    TRUNCATED = "truncated"
    """Done; a whole answer whose JSON is cut in half."""
    WRONG_TYPE = "wrong_type"
    """Done; the right body as text/html."""
    GARBAGE = "garbage"
    """Done; 200 with a page of HTML."""
    HUGE = "huge"
    """Done; 200 with a JSON string of `size_bytes`, sent in pieces."""
    DRIP = "drip"
    """Done; the answer byte for byte, `every_s` apart, until the fault is let go."""
    TWICE = "twice"
    """Done twice, as by a proxy that repeats; the first answer."""
    FORGET = "forget"
    """All executions that have ended are pruned, then it is done."""


@dataclass
class Fault:
    """One thing that goes wrong, `times` times."""

    path: str
    """Shell pattern over the path, such as `/webhook/*` or `/api/v1/executions/*`."""
    how: How
    method: str = ""
    """Empty: any."""
    times: int = 1
    """FOREVER: until `over()`."""
    skip: int = 0
    """So many fitting requests go well before."""
    retry_after: str = "1"
    status: int = 502
    size_bytes: int = 64 * 1_024 * 1_024
    every_s: float = 0.005
    hits: int = 0
    is_let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def let_go(self) -> None:
        self.is_let_go.set()

    def over(self) -> None:
        """No request goes wrong by it any more."""
        self.times = 0

    def takes(self, method: str, path: str) -> bool:
        """Whether this request goes wrong by it."""
        if self.times == 0 or self.method not in {"", method} or not fnmatchcase(path, self.path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= self.times > 0
        self.hits += 1
        return True


class Faults:
    """In the order in which they were added; the first that fits applies."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def next(self, method: str, path: str) -> Fault | None:
        return next((fault for fault in self._faults if fault.takes(method, path)), None)

    def clear(self) -> None:
        """All is well again; what was held goes on."""
        for fault in self._faults:
            fault.let_go()
        self._faults.clear()
