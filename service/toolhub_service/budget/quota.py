"""Limits on the total number of calls: within a limit's window, and under one request id."""

from __future__ import annotations

from collections import OrderedDict

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse

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


def refuse_used_up_request(max_tool_calls: int, used: int) -> ToolFailure:
    """The request has no calls left."""
    return refuse(
        ErrorKind.BUDGET_EXCEEDED,
        f"All {max_tool_calls} tool calls of this request are used. Answer with what you have, or start a new "
        "request with a larger budget.max_tool_calls.",
        max_tool_calls=max_tool_calls,
        used_tool_calls=used,
    )
