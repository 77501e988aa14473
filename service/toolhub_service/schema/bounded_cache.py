"""A bounded map that forgets what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by digest. A look-up costs two dictionary operations."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, Value] = OrderedDict()

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

    def put(self, digest: str, value: Value) -> None:
        self._values[digest] = value
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)
