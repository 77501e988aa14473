"""When to try to connect again: exponential with full jitter (Brooker, "Exponential Backoff And Jitter").

The first try is at once. A caller that waits may hurry the next one, but not to less than `FLOOR_S` after the last.
A connection that stood for `STOOD_S` starts the count anew.
"""

from __future__ import annotations

from toolhub_service.domain.ports import Randomness

FLOOR_S = 0.1
FIRST_S = 0.5
CAP_S = 30.0
STOOD_S = 20.0
_EXPONENT_MAX = 16


class Backoff:
    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._failures = 0

    def failed(self) -> float:
        """Count a failure; seconds until the next try."""
        ceiling_s = min(CAP_S, FIRST_S * 2.0 ** min(self._failures, _EXPONENT_MAX))
        self._failures += 1
        return max(FLOOR_S, self._randomness.uniform(0.0, ceiling_s))

    def stood(self, for_s: float) -> float:
        """A connection was lost after so many seconds; seconds until the next try, 0 when it had stood for a while."""
        if for_s >= STOOD_S:
            self._failures = 0
        if self._failures:
            return self.failed()
        self._failures = 1
        return 0.0
