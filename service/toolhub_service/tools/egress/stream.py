"""One TCP or TLS connection as bytes: read what has arrived, write, close at once.

Received bytes wait in a buffer that stops the socket at 256 KiB (backpressure). A connection that is `quiet` has
neither ended nor received anything unasked: only such a one may carry another request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from toolhub_service.tools.egress.breakage import Breakage, WireError

_BUFFER_MAX_BYTES = 256 * 1024


class Stream(asyncio.Protocol):
    """The socket of one connection. One reader at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._ended = False
        self._reset = False
        self._paused = False
        self._reader: asyncio.Future[None] | None = None

    @property
    def quiet(self) -> bool:
        """Whether the connection stands and nothing unasked has arrived on it."""
        return not self._ended and not self._received

    def write(self, data: bytes) -> None:
        """Queue bytes; bounded by the size of one request, hence without backpressure."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    async def read(self, timeout_s: float) -> bytes:
        """What has arrived; empty when the peer has ended in good order. Raises WireError SILENT or BROKEN."""
        if not self._received and not self._ended:
            await self._arrival(timeout_s)
        if not self._received and self._reset:
            raise WireError(Breakage.BROKEN)
        data = bytes(self._received)
        self._received.clear()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the descriptor without waiting for the peer."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    async def _arrival(self, timeout_s: float) -> None:
        reader = self._reader = self._loop.create_future()
        alarm = self._loop.call_later(timeout_s, self._wake, WireError(Breakage.SILENT))
        try:
            await reader
        finally:
            alarm.cancel()
            self._reader = None

    def _wake(self, error: WireError | None = None) -> None:
        if self._reader is None or self._reader.done():
            return
        if error is None:
            self._reader.set_result(None)
        else:
            self._reader.set_exception(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= _BUFFER_MAX_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._reset = exc is not None
        self._wake()


Connect = Callable[[str, int, ssl.SSLContext | None, str | None], Awaitable[Stream]]
"""(literal address, port, TLS context or None, name to verify or None) → connection. Raises OSError, ssl.SSLError."""


async def connect(address: str, port: int, tls: ssl.SSLContext | None, server_name: str | None) -> Stream:
    """Open a connection to a literal address: no name is ever resolved here."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(Stream, address, port, ssl=tls, server_hostname=server_name)
    return stream
