"""How often one source may be read, whoever asks for it: readings are the work of a stranger, done beside callers.

A token bucket of processor time: readings go ahead at once until they have cost `ALLOWANCE_S`; from then on they take
at most `SHARE` of one processor. A source that changes all the time, or announces that it has, is read ever less often
the more its readings cost; one that is cheap to read, or read seldom, never waits.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Of one processor, for all readings of one source."""
ALLOWANCE_S: Final = 0.1
"""Of processor time that a source may have had before it must wait."""


class FairShare:
    """Of one source."""

    def __init__(self, *, share: float = SHARE, allowance_s: float = ALLOWANCE_S) -> None:
        self._share = share
        self._allowance_s = allowance_s
        self._used_s = 0.0
        self._at_s = 0.0

    def charge(self, cpu_s: float, now_s: float) -> None:
        """`now_s` is on the clock of `due_s`, a monotonic one."""
        self._used_s = max(self._used_s - (now_s - self._at_s) * self._share, 0.0) + cpu_s
        self._at_s = now_s

    @property
    def due_s(self) -> float:
        """When the next reading may begin."""
        return self._at_s + max(self._used_s - self._allowance_s, 0.0) / self._share
