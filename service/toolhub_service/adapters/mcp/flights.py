"""Requests under way by HTTP that can be given up, so that a cancelled one gives its socket back.

In the older era a cancellation is a message of its own (`notifications/cancelled`), and the SDK leaves the request's
POST open until the server answers it. A server that never does would turn every call that ends at its deadline into a
socket and a task that stay.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Final, TypeVar

Answer = TypeVar("Answer")

_ID: Final = rb'(\d{1,18}|"[^"\\]{1,64}")'
_REQUEST: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":' + _ID + rb',"method":')
_CANCELLATION: Final = re.compile(
    rb'\{"jsonrpc":"2\.0","method":"notifications/cancelled","params":\{"requestId":' + _ID
)
"""As the SDK writes them; what is written in another way is not given up."""


class GivenUp(Exception):
    """Nobody waits for the answer any more."""


class Flight:
    """One request, until its answer has been read."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._is_over = False

    async def wait(self, part: Awaitable[Answer]) -> Answer:
        """A part of its way. Raises GivenUp."""
        try:
            async with asyncio.timeout(0 if self._is_over else None) as self._scope:
                return await part
        except TimeoutError:
            if self._is_over:
                raise GivenUp from None
            raise
        finally:
            self._scope = None

    def give_up(self) -> None:
        self._is_over = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())


class Flights:
    """Those of one connection."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, content: bytes) -> tuple[bytes, Flight]:
        """What is sent; `end` takes the key back."""
        found = _REQUEST.match(content)
        key, flight = found[1] if found else b"", Flight()
        if key:
            self._under_way[key] = flight
        return key, flight

    def end(self, key: bytes, flight: Flight) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]

    def heed(self, content: bytes) -> None:
        """Give up what this message, which was sent, cancels."""
        found = _CANCELLATION.match(content)
        flight = self._under_way.get(found[1]) if found else None
        if flight is not None:
            flight.give_up()
