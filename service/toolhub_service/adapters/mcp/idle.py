"""The limit for a call that neither answers nor reports progress, beside the deadline of the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class IdleLimit:
    """Of one call: renewed by each report of progress, and suspended while its server waits for a person."""

    __slots__ = ("_scope", "limit_s")

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: 0 for no limit."""
        self.limit_s = limit_s
        self._scope: asyncio.Timeout | None = None

    @asynccontextmanager
    async def enforce(self) -> AsyncIterator[None]:
        """Raises TimeoutError when the limit has passed: what runs inside is cancelled."""
        if not self.limit_s:
            yield
            return
        try:
            async with asyncio.timeout(self.limit_s) as self._scope:
                yield
        finally:
            self._scope = None

    def renew(self) -> None:
        """Begin to count anew."""
        self._set(asyncio.get_running_loop().time() + self.limit_s)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Do not count while the context is active."""
        self._set(None)
        try:
            yield
        finally:
            self.renew()

    def _set(self, when_s: float | None) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(when_s)
