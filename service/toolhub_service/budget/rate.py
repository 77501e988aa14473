"""A token bucket stored as one number: the time at which it will be full again (GCRA, ITU-T I.371 annex A).

Refill is lazy, nothing ticks. In any span of t seconds at most `burst + rate_per_s * t` calls pass.
"""

from __future__ import annotations

# A shorter wait counts as none: returning a token leaves a rounding error.
_ROUNDING_S = 1e-6


class TokenBucket:
    __slots__ = ("_full_at_s", "_interval_s", "_slack_s")

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._full_at_s = float("-inf")
        self.retune(rate_per_s, burst)

    def retune(self, rate_per_s: float, burst: int) -> None:
        """Change the terms; what has been spent stays spent."""
        self._interval_s = 1.0 / rate_per_s
        self._slack_s = (burst - 1) * self._interval_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may pass; 0 when it may now."""
        wait_s = self._full_at_s - self._slack_s - now_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, now_s: float) -> None:
        """Spend a token; call only after `wait_s` returned 0."""
        self._full_at_s = max(now_s, self._full_at_s) + self._interval_s

    def give_back(self) -> None:
        """Return a token that was not used."""
        self._full_at_s -= self._interval_s

    def is_full(self, now_s: float) -> bool:
        return self._full_at_s <= now_s
