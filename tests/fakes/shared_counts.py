"""Counts as one process keeps them for itself, behind the port of those that hubs share: what these must agree with."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.budget.limits import Counter, Counters
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, Refused, Taken


class FakeSharedCounts:
    """Implements `SharedCounts`. `away` set: what every question meets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counters = Counters(1_000)
        self.away: ToolFailure | None = None
        self.asked = 0

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        self._ask()
        now_s = self._clock.unix_ms() / 1_000
        counters = self._counters.of(tuple(limits), now_s)
        for counter in counters:
            if (refused := _refused(counter, now_s)) is not None:
                return refused
        if not spend:
            return Taken()
        return Taken(tuple(limits), tuple(repr(counter.take(now_s)).encode() for counter in counters))

    async def give_back(self, taken: Taken) -> None:
        self._ask()
        counters = self._counters.of(taken.limits, self._clock.unix_ms() / 1_000)
        for counter, opened_at_s in zip(counters, taken.marks, strict=True):
            counter.give_back(float(opened_at_s))

    def _ask(self) -> None:
        self.asked += 1
        if self.away is not None:
            raise self.away


def _refused(counter: Counter, now_s: float) -> Refused | None:
    try:
        counter.check(now_s)
    except ToolFailure as failure:
        scarce = ExhaustedLimit.RATE if "rate_per_s" in failure.error.details else ExhaustedLimit.QUOTA
        return Refused(counter.limit, scarce, failure.error.retry_after_s or 0.0)
    return None
