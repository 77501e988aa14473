"""Idle connections, by origin and by the networks that may be reached.

The second half of the key is what makes reuse safe: a connection to an address that one rule opened is never handed to
a request whose rules would not have allowed to dial it. Newest first, so that surplus ones grow old and go.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from toolhub_service.guards.urls import JudgedUrl
from toolhub_service.tools.egress.connection import HttpConnection

Key = tuple[str, str, int, tuple[str, ...]]


class IdleConnections:
    """Connections that wait for the next request. Descriptors are bounded by `idle_max`."""

    def __init__(
        self,
        *,
        idle_max: int = 128,
        idle_per_origin_max: int = 16,
        keep_alive_s: float = 15.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle: dict[Key, list[tuple[float, HttpConnection]]] = {}
        self._count = 0
        self._idle_max = idle_max
        self._idle_per_origin_max = idle_per_origin_max
        self._keep_alive_s = keep_alive_s
        self._monotonic_s = monotonic_s
        self._is_closed = False

    def take(self, url: JudgedUrl) -> HttpConnection | None:
        """A connection on which this URL may be requested now; None when there is none."""
        key = _key(url)
        idle = self._idle.get(key)
        while idle:
            expires_at_s, connection = idle.pop()
            self._count -= 1
            if not idle:
                del self._idle[key]
            if connection.usable and expires_at_s > self._monotonic_s():
                return connection
            connection.close()
        return None

    def give(self, url: JudgedUrl, connection: HttpConnection) -> None:
        """Keep a finished connection for the next request, or close it when there are enough."""
        if self._count >= self._idle_max:
            self._drop_expired()
        key = _key(url)
        is_full = self._count >= self._idle_max or len(self._idle.get(key, ())) >= self._idle_per_origin_max
        if self._is_closed or is_full:
            connection.close()
            return
        self._idle.setdefault(key, []).append((self._monotonic_s() + self._keep_alive_s, connection))
        self._count += 1

    def close(self) -> None:
        """Close every idle connection; those in use are closed when they are given back."""
        self._is_closed = True
        for idle in self._idle.values():
            for _, connection in idle:
                connection.close()
        self._idle.clear()
        self._count = 0

    def _drop_expired(self) -> None:
        now_s = self._monotonic_s()
        for key, idle in list(self._idle.items()):
            for _, connection in (entry for entry in idle if entry[0] <= now_s or not entry[1].usable):
                connection.close()
            self._idle[key] = [entry for entry in idle if entry[0] > now_s and entry[1].usable]
            self._count -= len(idle) - len(self._idle[key])
            if not self._idle[key]:
                del self._idle[key]


def _key(url: JudgedUrl) -> Key:
    return url.scheme, url.host, url.port, url.opened
