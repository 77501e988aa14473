"""A clock that stands still until a test advances it, and a randomness whose answers are chosen."""

from __future__ import annotations

import asyncio
import time


class ManualClock:
    """`domain.ports.Clock`."""

    def __init__(self, now_s: float = 1_000.0, unix_ms: int = 1_700_000_000_000) -> None:
        self._now_s = now_s
        self._unix_ms = unix_ms

    def monotonic_s(self) -> float:
        return self._now_s

    def unix_ms(self) -> int:
        return self._unix_ms

    def advance(self, seconds: float) -> None:
        """Both clocks move on."""
        self._now_s += seconds
        self._unix_ms += round(seconds * 1_000)


class FixedRandomness:
    """`domain.ports.Randomness`: `share` of the way from low to high, and tokens that count."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self._tokens = 0

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.share

    def token_hex(self, size_bytes: int) -> str:
        self._tokens += 1
        return f"{self._tokens:0{2 * size_bytes}x}"


async def next_millisecond() -> None:
    """Until the wall clock shows another one: what is stamped now is older than what is stamped from then on."""
    shown_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= shown_ms:  # noqa: ASYNC110 - a clock has no event
        await asyncio.sleep(0)
