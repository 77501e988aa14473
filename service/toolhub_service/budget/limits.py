"""The counters behind a verdict's limits: a bucket, a quota and slots for each limit id, shared by equal ids.

Where hubs count rate and quota together, only the slots are counted here.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from toolhub_service.budget.concurrency import Slots
from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors.failure import LONGEST_WAIT_S, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, SharedCounts, Taken

# A bounded memory of counters: when it is full, the least recently used idle one is dropped.

Value = TypeVar("Value")

# Entries examined for one to drop, oldest first.
_EVICTION_SCAN = 64


class Recent(OrderedDict[str, Value]):
    """Least recently used first: a user of an entry moves it to the end."""

    # A dictionary itself, because every call looks up its upstream: a method in between would be one more function
    # call.

    def __init__(self, max_entries: int, is_idle: Callable[[Value, float], bool]) -> None:
        """`is_idle(value, now_s)` returns whether dropping the value changes no later answer."""
        super().__init__()
        self._max_entries = max_entries
        self._is_idle = is_idle

    def add(self, key: str, value: Value, now_s: float) -> bool:
        """Add a new entry; return False when there is no room for it."""
        if len(self) >= self._max_entries and not self._make_room(now_s):
            return False
        self[key] = value
        return True

    def _make_room(self, now_s: float) -> bool:
        for key, _ in zip(self, range(_EVICTION_SCAN), strict=False):
            if self._is_idle(self[key], now_s):
                del self[key]
                return True
        return False


# A token bucket kept as one number: the time at which it will be full again (GCRA, ITU-T I.371 annex A).
#
# Refill is lazy, nothing ticks. In any span of t seconds at most `burst + rate_per_s * t` calls pass.

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


# Limits on the total number of calls: within a limit's window, and under one request id.

RequestKey = tuple[str, str]
"""Principal and request id."""


class WindowQuota:
    """At most `quota` calls in a window that opens with the first call after the last one closed."""

    __slots__ = ("_opened_at_s", "_used", "quota", "window_s")

    def __init__(self, quota: int, window_s: float) -> None:
        self.quota = quota
        self.window_s = window_s
        self._opened_at_s = float("-inf")
        self._used = 0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a call may pass, 0 when it may now. A quota of 0 lets none pass: the window is
        returned."""
        if now_s - self._opened_at_s >= self.window_s:
            return 0.0 if self.quota > 0 else self.window_s
        return 0.0 if self._used < self.quota else self._opened_at_s + self.window_s - now_s

    def take(self, now_s: float) -> float:
        """Count a call, and return when its window opened, for `give_back`."""
        if now_s - self._opened_at_s >= self.window_s:
            self._opened_at_s = now_s
            self._used = 0
        self._used += 1
        return self._opened_at_s

    def give_back(self, opened_at_s: float) -> None:
        """Subtract a call, unless its window has closed since."""
        if self._opened_at_s == opened_at_s:
            self._used -= 1

    def is_unused(self, now_s: float) -> bool:
        return self._used == 0 or now_s - self._opened_at_s >= self.window_s


class RequestCalls:
    """Calls under each request id; the least recently used are forgotten first."""

    __slots__ = ("_counts", "_max_requests")

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._counts: OrderedDict[RequestKey, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: RequestKey) -> int:
        return self._counts.get(key, 0)

    def take(self, key: RequestKey) -> None:
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1
        counts.move_to_end(key)
        if len(counts) > self._max_requests:
            counts.popitem(last=False)

    def give_back(self, key: RequestKey) -> None:
        count = self._counts.get(key, 0)
        if count > 1:
            self._counts[key] = count - 1
        else:
            self._counts.pop(key, None)


def all_used(max_tool_calls: int, used: int) -> ToolFailure:
    """The request has no calls left."""
    return refuse(
        ErrorKind.BUDGET_EXCEEDED,
        f"All {max_tool_calls} tool calls of this request are used. Answer with what you have, or start a new "
        "request with a larger budget.max_tool_calls.",
        max_tool_calls=max_tool_calls,
        used_tool_calls=used,
    )


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
            raise limited(self.limit, ExhaustedLimit.RATE, wait_s)
        if self.quota and (wait_s := self.quota.wait_s(now_s)) > 0:
            raise limited(self.limit, ExhaustedLimit.QUOTA, wait_s)

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


def limited(limit: Limit, scarce: ExhaustedLimit, wait_s: float) -> ToolFailure:
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
        return f"Wait {_shown(wait_s)}, then send the call again unchanged."
    return (
        f"It lets calls pass again in {_shown(wait_s)}. Do not wait for that: continue without this call, or tell the "
        "user when it will be possible. A job waits by itself, if its deadline is later."
    )


def _shown(wait_s: float) -> str:
    """Return a text such as `0.25 seconds`, `10 seconds`, `60 minutes`, `24 hours`; minutes and hours are rounded
    up."""
    if wait_s < _MINUTES_FROM_S:
        return f"{wait_s:.3g} seconds"
    return f"{math.ceil(wait_s / 60)} minutes" if wait_s < _HOURS_FROM_S else f"{math.ceil(wait_s / 3_600)} hours"


# Counters shared by all hubs that use one store: rate, quota and the calls of a request.
#
# A hub without a shared store never uses these. One with it asks the store once per call, and only for calls with such
# a limit: all counters in one request, taken completely or not at all. A call that does not run now (a dry run, a
# submission) is only checked, so that it has nothing to return. A store that does not answer refuses the call: nobody
# else knows what has been spent.

REQUEST_WINDOW_S = 86_400.0
"""Seconds for which the calls of a request are counted, from its first one: as long as a budget may last."""


class Due:
    """What one call takes of the shared counters. Call `pay` once, then `give_back` at most once."""

    __slots__ = ("_counts", "_limits", "_max_tool_calls", "_spend", "_taken")

    def __init__(
        self, counts: SharedCounts, limits: tuple[Limit, ...], max_tool_calls: int | None, spend: bool
    ) -> None:
        """`max_tool_calls` is set when the first limit is the request's."""
        self._counts = counts
        self._limits = limits
        self._max_tool_calls = max_tool_calls
        self._spend = spend
        self._taken = Taken()

    async def pay(self, timeout_s: float) -> None:
        """Raises ToolFailure RATE_LIMITED, BUDGET_EXCEEDED or TOOL_UNAVAILABLE, and has taken nothing then."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._counts.take(self._limits, spend=self._spend)
        except TimeoutError:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                "The shared counters of this call's limits could not be read before its deadline, so nothing "
                "happened. Call again with more time.",
            ) from None
        if isinstance(answer, Taken):
            self._taken = answer
        elif self._max_tool_calls is not None and answer.limit == self._limits[0]:
            raise all_used(self._max_tool_calls, self._max_tool_calls)
        else:
            raise limited(answer.limit, answer.scarce, answer.wait_s)

    async def give_back(self) -> None:
        """Return what was taken when the call does not run. If the store has become unreachable it stays counted: never
        too few."""
        taken, self._taken = self._taken, Taken()
        if taken.limits and self._spend:
            try:
                await self._counts.give_back(taken)
            except ToolFailure:
                return


def due_of(counts: SharedCounts, call: Call, request: RequestKey | None, limits: tuple[Limit, ...]) -> Due | None:
    """Return what the call takes of shared counters; None when it has no limit that hubs count together."""
    shared = tuple([limit for limit in limits if limit.rate_per_s or limit.quota is not None])
    max_tool_calls = call.context.budget.max_tool_calls if request else None
    if request and max_tool_calls is not None:
        shared = (_of_request(request, max_tool_calls), *shared)
    return Due(counts, shared, max_tool_calls, call.mode is Mode.EXECUTE) if shared else None


def _of_request(request: RequestKey, max_tool_calls: int) -> Limit:
    """Return the id of a request's limit; no limit of a policy has such an id, because those begin with a name."""
    principal, request_id = request
    return Limit(
        f"|request|{len(principal)}|{principal}|{request_id}", quota=max_tool_calls, quota_window_s=REQUEST_WINDOW_S
    )
