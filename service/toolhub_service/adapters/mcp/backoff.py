"""When to reconnect: exponential with full jitter (Brooker, "Exponential Backoff And Jitter").

The first reconnect is immediate; a waiting caller may bring the next one forward, but not to less than `FLOOR_S` after
the last; a connection that lasted `LASTED_S` resets the count.
"""

from __future__ import annotations

import logging

from toolhub_service.domain.ports import Randomness

FLOOR_S = 0.1
FIRST_S = 0.5
CAP_S = 30.0
LASTED_S = 20.0
_EXPONENT_MAX = 16


class Backoff:
    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._failures = 0

    def count_failure(self) -> float:
        """Count a failure. Return the seconds until the next attempt."""
        ceiling_s = min(CAP_S, FIRST_S * 2.0 ** min(self._failures, _EXPONENT_MAX))
        self._failures += 1
        return max(FLOOR_S, self._randomness.uniform(0.0, ceiling_s))

    def after_loss(self, for_s: float) -> float:
        """Count a lost connection. Return the seconds until the next attempt; 0 after one that had lasted a while."""
        if for_s >= LASTED_S:
            self._failures = 0
        if self._failures:
            return self.count_failure()
        self._failures = 1
        return 0.0


for _name in ("client", "httpcore2", "httpx2", "mcp"):
    # These loggers write what servers send, and URLs with their queries.
    logging.getLogger(_name).setLevel(logging.CRITICAL)
