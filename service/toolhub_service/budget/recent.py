"""A bounded memory of counters: at its bound, the least recently used one that means nothing any more makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")

_LOOKED_AT = 64
"""Entries considered for one that makes room, oldest first."""


class Recent(Generic[Value]):
    __slots__ = ("_entries", "_is_idle", "_max_entries")

    def __init__(self, max_entries: int, is_idle: Callable[[Value, float], bool]) -> None:
        """`is_idle(value, now_s)`: whether forgetting the value changes no later answer."""
        self._entries: OrderedDict[str, Value] = OrderedDict()
        self._max_entries = max_entries
        self._is_idle = is_idle

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._entries.values())

    def get(self, key: str) -> Value | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def add(self, key: str, value: Value, now_s: float) -> bool:
        """Remember a new entry; False when there is no room for it."""
        if len(self._entries) >= self._max_entries and not self._make_room(now_s):
            return False
        self._entries[key] = value
        return True

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def _make_room(self, now_s: float) -> bool:
        for key, _ in zip(self._entries, range(_LOOKED_AT), strict=False):
            if self._is_idle(self._entries[key], now_s):
                del self._entries[key]
                return True
        return False
