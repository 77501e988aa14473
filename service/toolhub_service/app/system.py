"""The real clock and the real randomness."""

from __future__ import annotations

import os
import random
import time


class SystemClock:
    """`monotonic_s` is the clock of the asyncio loop; `unix_ms` the wall clock."""

    monotonic_s = staticmethod(time.monotonic)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandomness:
    """Jitter from a fast generator, ids from the kernel."""

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)  # noqa: S311 - jitter, not a secret

    def token_hex(self, size_bytes: int) -> str:
        return os.urandom(size_bytes).hex()
