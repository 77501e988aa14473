"""Wakes one thread that waits: a lock that whoever rings releases, all C where `threading.Condition` is Python."""

from __future__ import annotations

import threading
from contextlib import suppress


class Bell:
    """Rung before anybody waits, it is heard by the next wait; rung twice, once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._lock.release()

    def hush(self) -> None:
        """Forget that it was rung."""
        self._lock.acquire(blocking=False)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it was rung; False after `timeout_s`, of which None is for ever."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
