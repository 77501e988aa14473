"""A bounded memory of counters: when it is full, the least recently used idle one is dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

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
