"""A bounded map that forgets what was used least recently."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by digest. A look-up costs two dictionary operations."""

    def __init__(self, capacity: int, max_weight: int = sys.maxsize) -> None:
        """At most so many values, and at most so much of what `put` says that they weigh."""
        self._capacity = capacity
        self._max_weight = max_weight
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, digest: str) -> Value | None:
        value = self._values.get(digest)
        if value is not None:
            try:
                self._values.move_to_end(digest)
            except KeyError:  # another thread has just forgotten it; the value is as good as before
                return value
        return value

    def put(self, digest: str, value: Value, weight: int = 1) -> None:
        self._weight += weight - self._weights.get(digest, 0)
        self._weights[digest] = weight
        self._values[digest] = value
        while len(self._values) > self._capacity or (self._weight > self._max_weight and len(self._values) > 1):
            forgotten, _ = self._values.popitem(last=False)
            self._weight -= self._weights.pop(forgotten, 0)
