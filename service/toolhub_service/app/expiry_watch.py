"""What time does to a serving hub: certificates that expire soon, and a clock that is behind what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from toolhub_service.app.certificates import LiveCertificates, Validity
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.domain.ports import Clock

_DAY_S: Final = 86_400.0
STAGES_DAYS: Final = (14, 3, 1, 0)
"""Days before the end of a certificate at which it is reported, once each; 0: it has expired."""
_STAGE_SHARE_MAX: Final = 1 / 3
# Clocks of several hubs on one log differ by less; a clock that was set back differs by more.
CLOCK_TOLERANCE_S: Final = 2.0
_CLOCK_EVERY_S: Final = 60.0


def expiry_stage(validity: Validity, now_s: float) -> int | None:
    """Return the days of the last stage that it has reached; None before the first.

    A stage that is more than a third of its whole life is none: a certificate of an hour would always be in it.
    """
    left_s, life_s = validity.end_s - now_s, validity.end_s - validity.begin_s
    reached = [days for days in STAGES_DAYS if left_s <= days * _DAY_S and days * _DAY_S <= life_s * _STAGE_SHARE_MAX]
    return min(reached, default=None)


class ExpiryWatch:
    """Reports each certificate in force 14, 3 and 1 days ahead of its end, and at its end."""

    def __init__(self, certificates: LiveCertificates, observing: Observing, clock: Clock) -> None:
        self._certificates = certificates
        self._observing = observing
        self._clock = clock
        self._reported: dict[str, tuple[float, int]] = {}
        """(end, days of the stage) by name."""

    def check(self) -> None:
        """Call it every few seconds: a stage is reported once."""
        now_s = self._clock.unix_ms() / 1_000
        for name, validity in self._certificates.validities.items():
            stage = expiry_stage(validity, now_s)
            if stage is not None and self._reported.get(name) != (validity.end_s, stage):
                self._reported[name] = validity.end_s, stage
                self._observing.certificate_expires(name, validity.end_s, has_expired=stage == 0)


def clock_behind_s(newest_unix_ms: int, now_unix_ms: int) -> float:
    """Return how far the clock is behind the newest audit event; 0 within what clocks of several hubs may differ."""
    behind_s = (newest_unix_ms - now_unix_ms) / 1_000
    return behind_s if behind_s > CLOCK_TOLERANCE_S else 0.0


class ClockWatch:
    """Compares the clock with the newest audit event: at the start, then once a minute.

    A clock that was set back makes keys, approvals and certificates live longer, and puts events in a wrong order.
    """

    def __init__(self, newest_unix_ms: Callable[[], int], observing: Observing, clock: Clock) -> None:
        """`newest_unix_ms` reads the log, in a thread."""
        self._newest_unix_ms = newest_unix_ms
        self._observing = observing
        self._clock = clock
        self._next_s = 0.0
        self._is_behind = False

    async def check(self) -> None:
        """Call it every few seconds."""
        if (now_s := self._clock.monotonic_s()) < self._next_s:
            return
        self._next_s = now_s + _CLOCK_EVERY_S
        newest_unix_ms = await asyncio.to_thread(self._newest_unix_ms)
        behind_s = clock_behind_s(newest_unix_ms, self._clock.unix_ms())
        self._observing.clock_compared(behind_s, newest_unix_ms, is_new=bool(behind_s) and not self._is_behind)
        self._is_behind = bool(behind_s)
