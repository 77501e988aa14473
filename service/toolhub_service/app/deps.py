"""What all wiring functions take: settings, paths, clock, randomness, redactor and telemetry."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass

from toolhub_service.app.paths import Paths
from toolhub_service.app.wiring_telemetry import Observing
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings


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


@dataclass(frozen=True, slots=True)
class Deps:
    settings: Settings
    paths: Paths
    clock: Clock
    randomness: Randomness
    redactor: Redactor
    observing: Observing
