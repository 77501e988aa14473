"""A token bucket of processor time for the reads of a source that changes, or announces changes, all the time.

Work starts at once until it has used `ALLOWANCE_S`; from then on it takes at most `SHARE` of one processor. The more
reads cost, the less often they run; a source that is cheap, or rarely read, never waits.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Share of one processor for all reads of one source."""
ALLOWANCE_S: Final = 0.1
"""Processor time that a source may use before it must wait."""


class CpuShare:
    """The processor time that one source, or one principal, may use."""

    def __init__(self, *, share: float = SHARE, allowance_s: float = ALLOWANCE_S) -> None:
        self._share = share
        self._allowance_s = allowance_s
        self._used_s = 0.0
        self._at_s = 0.0

    def charge(self, cpu_s: float, now_s: float) -> None:
        """Charge used time; `now_s` is on the clock of `due_s`, a monotonic one."""
        self._used_s = max(self._used_s - (now_s - self._at_s) * self._share, 0.0) + cpu_s
        self._at_s = now_s

    @property
    def due_s(self) -> float:
        """Return when the next piece of work may start."""
        return self._at_s + max(self._used_s - self._allowance_s, 0.0) / self._share
