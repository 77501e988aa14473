"""The counters behind a verdict's limits: a bucket, a quota and slots for each limit id, shared by equal ids.

Where hubs count rate and quota together (shared.py), only the slots are kept here.
"""

from __future__ import annotations

import math

from toolhub_service.budget.concurrency import Slots
from toolhub_service.budget.quota import WindowQuota
from toolhub_service.budget.rate import TokenBucket
from toolhub_service.budget.recent import Recent
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.shared_counts import Scarce
from toolhub_service.domain.verdict import Limit

_MINUTES_FROM_S = 120.0


class Counter:
    """What has been spent of one limit."""

    __slots__ = ("_only_slots", "bucket", "limit", "quota", "slots")

    def __init__(self, limit: Limit, *, only_slots: bool = False) -> None:
        """`only_slots`: rate and quota are counted elsewhere."""
        self.limit = limit
        self._only_slots = only_slots
        rate_per_s, quota = (None, None) if only_slots else (limit.rate_per_s, limit.quota)
        self.bucket = TokenBucket(rate_per_s, limit.burst) if rate_per_s else None
        self.quota = WindowQuota(quota, limit.quota_window_s) if quota is not None else None
        self.slots = Slots(limit.concurrency) if limit.concurrency else None

    def retune(self, limit: Limit) -> None:
        """Follow a changed policy; what has been spent stays spent where the limit still has that part."""
        fresh = Counter(limit, only_slots=self._only_slots)
        if self.bucket and fresh.bucket and limit.rate_per_s:
            self.bucket.retune(limit.rate_per_s, limit.burst)
        else:
            self.bucket = fresh.bucket
        if self.quota and limit.quota is not None:
            self.quota.quota, self.quota.window_s = limit.quota, limit.quota_window_s
        else:
            self.quota = fresh.quota
        if self.slots and limit.concurrency:
            self.slots.limit = limit.concurrency
        else:
            self.slots = fresh.slots
        self.limit = limit

    def check(self, now_s: float) -> None:
        """Raises ToolFailure RATE_LIMITED, with `retry_after_s`, when rate or quota is used up."""
        if self.bucket and (wait_s := self.bucket.wait_s(now_s)) > 0:
            raise limited(self.limit, Scarce.RATE, wait_s)
        if self.quota and (wait_s := self.quota.wait_s(now_s)) > 0:
            raise limited(self.limit, Scarce.QUOTA, wait_s)

    def take(self, now_s: float) -> float:
        """Spend rate and quota, after `check`. Returns what `give_back` wants."""
        if self.bucket:
            self.bucket.take(now_s)
        return self.quota.take(now_s) if self.quota else 0.0

    def give_back(self, opened_at_s: float) -> None:
        if self.bucket:
            self.bucket.give_back()
        if self.quota:
            self.quota.give_back(opened_at_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether a new counter would say the same."""
        return (
            (self.bucket is None or self.bucket.is_full(now_s))
            and (self.quota is None or self.quota.is_unused(now_s))
            and (self.slots is None or self.slots.is_idle)
        )


class Counters:
    """Every limit that was asked for lately."""

    __slots__ = ("_only_slots", "_recent")

    def __init__(self, max_limits: int, *, only_slots: bool = False) -> None:
        self._only_slots = only_slots
        self._recent: Recent[Counter] = Recent(max_limits, Counter.is_idle)

    def __len__(self) -> int:
        return len(self._recent)

    def of(self, limits: tuple[Limit, ...], now_s: float) -> tuple[Counter, ...]:
        """The counters of a verdict's limits, in their order. Raises ToolFailure RATE_LIMITED when memory is full."""
        return tuple([self._of(limit, now_s) for limit in limits])

    def _of(self, limit: Limit, now_s: float) -> Counter:
        counter = self._recent.get(limit.id)
        if counter is None:
            counter = Counter(limit, only_slots=self._only_slots)
            if not self._recent.add(limit.id, counter, now_s):
                raise _refusal(limit, "the hub is counting as many limits as it can", 1.0)
        elif counter.limit is not limit and counter.limit != limit:
            counter.retune(limit)
        return counter


def limited(limit: Limit, scarce: Scarce, wait_s: float) -> ToolFailure:
    """Rate or quota is used up."""
    if scarce is Scarce.RATE:
        return _refusal(limit, "the calls come too fast", wait_s, rate_per_s=limit.rate_per_s)
    return _refusal(limit, "the quota is used up", wait_s, quota=limit.quota)


def _refusal(limit: Limit, why: str, wait_s: float, **details: float | None) -> ToolFailure:
    return ToolFailure(
        ToolError(
            kind=ErrorKind.RATE_LIMITED,
            message=f"Limit {limit.id} refuses: {why}. Wait {_shown(wait_s)}, then send the call again unchanged.",
            retry_after_s=wait_s,
            details={"limit": limit.id, **details},
        )
    )


def _shown(wait_s: float) -> str:
    """Such as `0.25 seconds`, `10 seconds`, `60 minutes`; never less than it is."""
    return f"{wait_s:.3g} seconds" if wait_s < _MINUTES_FROM_S else f"{math.ceil(wait_s / 60)} minutes"
