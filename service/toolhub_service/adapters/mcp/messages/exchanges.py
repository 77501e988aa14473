"""Requests whose callers may stop waiting: what is under way for them then ends, wherever it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, TypeVar

import httpx2

Answer = TypeVar("Answer")

_EXCHANGE: Final = "toolhub-exchange"
"""The header by which `RequestSender` identifies a request to the HTTP transport, which removes it."""


class RequestCancelled(Exception):
    """Nobody waits for the answer any more."""


class Exchange:
    """The POST of one request, valid while somebody waits for its answer."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._is_cancelled = False

    async def wait(self, part: Callable[[], Awaitable[Answer]]) -> Answer:
        """Wait for a part of the exchange. Raises RequestCancelled."""
        # A part that is ready never suspends, so a cancel scope would not end it, and a server that floods would
        # continue.
        if self._is_cancelled:
            raise RequestCancelled
        try:
            async with asyncio.timeout(None) as self._scope:
                return await part()
        except TimeoutError:
            if self._is_cancelled:
                raise RequestCancelled from None
            raise
        finally:
            self._scope = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())


class _Open(Exchange):
    """An exchange that ends with the task that waits for it: nobody else can cancel it."""

    async def wait(self, part: Callable[[], Awaitable[Answer]]) -> Answer:
        return await part()


OPEN: Final = _Open()


class Exchanges:
    """The exchanges of one connection whose callers still wait."""

    # In 2025-11-25 a cancellation is a separate message (`notifications/cancelled`), and the SDK leaves the POST of the
    # cancelled request open until the server answers it. With a server that never does, every call that ends at its
    # deadline would leak a socket and a task. The message is not a reliable signal: the SDK drops it when the
    # connection has no room for it within 5 s. So the sender names its request and removes the name when it stops
    # waiting.

    def __init__(self) -> None:
        self._names = count(1)
        self._waited: dict[str, Exchange] = {}

    @contextmanager
    def name_exchange(self) -> Iterator[dict[str, str]]:
        """Yield the header to send with one request, whose exchange is cancelled when the context ends."""
        name, exchange = str(next(self._names)), Exchange()
        self._waited[name] = exchange
        try:
            yield {_EXCHANGE: name}
        finally:
            del self._waited[name]
            exchange.cancel()

    def begin(self, request: httpx2.Request) -> Exchange:
        """Return the exchange of this request; a cancelled one when nobody waits for it any more."""
        name = request.headers.pop(_EXCHANGE, "") or request.extensions.get(_EXCHANGE, "")
        if not name:
            return OPEN
        request.extensions = {**request.extensions, _EXCHANGE: name}  # which a redirected request inherits
        exchange = self._waited.get(name)
        if exchange is None:
            exchange = Exchange()
            exchange.cancel()
        return exchange
