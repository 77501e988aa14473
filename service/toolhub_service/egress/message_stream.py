"""A connection that passes one response at a time to the HTTP parser, never a byte beyond it (`framing.py`).

What follows a complete response stays outside of httpcore and marks the connection as readable, upon which httpcore
drops it. A peer that ends early is distinguished here from an answer that is not HTTP.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from toolhub_service.aio.turnstile import pass_turnstile
from toolhub_service.egress.breakage import WIRE_ERRORS, Breakage, WireError, wire_error
from toolhub_service.egress.closings import Closings
from toolhub_service.egress.framing import HttpFraming

_RECEIVE_MAX_BYTES = 256 * 1024  # as much as asyncio reads at once, so that nothing waits unseen below


class MessageStream(httpcore.AsyncNetworkStream):
    """The socket of one connection. Between a request's first byte and `body_follows` it reads a head."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, address: str, closings: Closings) -> None:
        self.address = address
        """The literal address of the connection."""
        self._inner = inner
        self._closings = closings
        self._is_tls = False
        self._framing = HttpFraming()
        self._is_waiting = True
        self._is_spent = False

    def body_follows(self, method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that the last head was the final one, and how its body is framed."""
        self._framing.body_follows(method, status, headers)

    def stop_waiting(self) -> None:
        """Until the next request, read only data that has arrived; more data makes the connection unusable."""
        self._is_waiting = False

    async def check_for_excess(self) -> None:
        """After a response, mark the connection as unusable if TLS holds more data, which the socket does not show."""
        # Without TLS httpcore detects further data at the socket itself.
        if not self._is_tls or self._framing.has_bytes:
            return
        try:
            await self._inner.read(1, timeout=0)
        except httpcore.ReadTimeout:
            return
        # A connection that breaks here is unusable, as one with excess bytes is.
        except (httpcore.ReadError, OSError):
            pass
        self._is_spent = True

    # httpcore.AsyncNetworkStream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  httpcore's signature
        """Return the next bytes of the current response. Raises WireError."""
        framing = self._framing
        if not framing.has_bytes:
            arrived = await self._receive(timeout)
            if not arrived:
                if framing.ends_with_connection:
                    return b""
                raise self._broken_error()
            framing.feed(arrived)
        if framing.costs_a_turn:
            await pass_turnstile()
        return framing.next_piece(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  likewise
        if not buffer:
            return
        self._is_waiting = True
        self._framing.begin()
        try:
            await self._inner.write(buffer, timeout)
        except OSError as error:
            raise httpcore.WriteError from error

    async def aclose(self) -> None:
        """Begin to close; never suspends, so that a cancelled call cannot stop while it closes several."""
        self._is_spent = True
        self._closings.begin(self._inner.aclose())

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  likewise
    ) -> MessageStream:
        try:
            inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except httpcore.ConnectError as error:
            is_refused = isinstance(error.__cause__, ssl.SSLError)
            raise WireError(Breakage.UNTRUSTED if is_refused else Breakage.UNREACHABLE) from None
        except BaseException:  # httpcore closes it after an error, but not after a cancellation
            await self.aclose()
            raise
        secured = MessageStream(inner, self.address, self._closings)
        secured._is_tls = True
        return secured

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and (self._framing.has_bytes or self._is_spent):
            return True
        return self._inner.get_extra_info(info)

    async def _receive(self, timeout_s: float | None) -> bytes:
        try:
            return await self._inner.read(_RECEIVE_MAX_BYTES, timeout_s if self._is_waiting else 0)
        except WIRE_ERRORS as error:
            broken = wire_error(error)
            raise broken if broken.breakage is Breakage.SILENT and self._is_waiting else self._broken_error() from None
        except OSError:
            raise self._broken_error() from None

    def _broken_error(self) -> WireError:
        return WireError(Breakage.BROKEN, on_kept=self._framing.is_in_head and self._framing.answers > 0)
