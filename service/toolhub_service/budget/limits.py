"""The counters behind a verdict's limits: a bucket, a quota and slots for each limit id, shared by equal ids.

Where hubs count rate and quota together, only the slots are counted here.
"""

from __future__ import annotations

import math

from toolhub_service.budget.concurrency import Slots
from toolhub_service.budget.quota import WindowQuota
from toolhub_service.budget.rate import TokenBucket
from toolhub_service.budget.recent import Recent
from toolhub_service.domain.errors.failure import LONGEST_WAIT_S, ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.verdict import ExhaustedLimit, Limit

_MINUTES_FROM_S, _HOURS_FROM_S = 120.0, 5_400.0


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
        """Apply a changed policy; what has been spent stays spent where the limit still has that part."""
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
            raise refuse_over_limit(self.limit, ExhaustedLimit.RATE, wait_s)
        if self.quota and (wait_s := self.quota.wait_s(now_s)) > 0:
            raise refuse_over_limit(self.limit, ExhaustedLimit.QUOTA, wait_s)

    def take(self, now_s: float) -> float:
        """Spend rate and quota, after `check`; return the argument for `give_back`."""
        if self.bucket:
            self.bucket.take(now_s)
        return self.quota.take(now_s) if self.quota else 0.0

    def give_back(self, opened_at_s: float) -> None:
        if self.bucket:
            self.bucket.give_back()
        if self.quota:
            self.quota.give_back(opened_at_s)

    def is_idle(self, now_s: float) -> bool:
        """Return whether it behaves like a new counter."""
        return (
            (self.bucket is None or self.bucket.is_full(now_s))
            and (self.quota is None or self.quota.is_unused(now_s))
            and (self.slots is None or self.slots.is_idle)
        )


class Counters:
    """The recently used limits."""

    __slots__ = ("_only_slots", "_recent")

    def __init__(self, max_limits: int, *, only_slots: bool = False) -> None:
        self._only_slots = only_slots
        self._recent: Recent[Counter] = Recent(max_limits, Counter.is_idle)

    def __len__(self) -> int:
        return len(self._recent)

    def of(self, limits: tuple[Limit, ...], now_s: float) -> tuple[Counter, ...]:
        """Return the counters of a verdict's limits, in their order. Raises ToolFailure RATE_LIMITED when memory is
        full."""
        return tuple([self._of(limit, now_s) for limit in limits])

    def _of(self, limit: Limit, now_s: float) -> Counter:
        counter = self._recent.get(limit.id)
        if counter is None:
            counter = Counter(limit, only_slots=self._only_slots)
            if not self._recent.add(limit.id, counter, now_s):
                raise _refusal(limit, "the hub cannot count more limits at once", 1.0)
            return counter
        self._recent.move_to_end(limit.id)
        if counter.limit is not limit and counter.limit != limit:
            counter.retune(limit)
        return counter


def refuse_over_limit(limit: Limit, scarce: ExhaustedLimit, wait_s: float) -> ToolFailure:
    """The refusal when rate or quota is used up."""
    if scarce is ExhaustedLimit.RATE:
        return _refusal(limit, "the calls come too fast", wait_s, rate_per_s=limit.rate_per_s)
    return _refusal(limit, "the quota is used up", wait_s, quota=limit.quota)


def _refusal(limit: Limit, why: str, wait_s: float, **details: float | None) -> ToolFailure:
    is_long = wait_s > LONGEST_WAIT_S
    return ToolFailure(
        ToolError(
            kind=ErrorKind.RATE_LIMITED,
            message=f"Limit {limit.id} refuses: {why}. {_advice(wait_s)}",
            retry_after_s=wait_s,
            details={"limit": limit.id, **details, **({"passes_in_s": math.ceil(wait_s)} if is_long else {})},
        )
    )


def _advice(wait_s: float) -> str:
    """Return what a caller should do: nobody who works on a task waits for hours."""
    if wait_s <= LONGEST_WAIT_S:
        return f"Wait {format_wait(wait_s)}, then send the call again unchanged."
    return (
        f"It lets calls pass again in {format_wait(wait_s)}. Do not wait for that: continue without this call, or tell "
        "the user when it will be possible. A job waits by itself, if its deadline is later."
    )


def format_wait(wait_s: float) -> str:
    """Return a text such as `0.25 seconds`, `10 seconds`, `60 minutes`, `24 hours`; minutes and hours are rounded
    up."""
    if wait_s < _MINUTES_FROM_S:
        return f"{wait_s:.3g} seconds"
    return f"{math.ceil(wait_s / 60)} minutes" if wait_s < _HOURS_FROM_S else f"{math.ceil(wait_s / 3_600)} hours"
