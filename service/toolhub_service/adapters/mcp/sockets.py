"""From requests to sockets: httpcore2's pool over asyncio's own transports, as a transport of httpx2.

httpx2's own transport goes through anyio, whose scopes and checkpoints cost as much as the parsing, and hands head and
body of a request to the kernel one after the other, so that the server wakes up twice. Here a request is held until
its response is waited for, and leaves in one piece.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import httpcore2
import httpx2

READ_AHEAD_BYTES: Final = 256 * 1024
"""Received and not taken yet, after which the socket is not read."""
_NOT_SENT: Final = {
    httpcore2.ConnectError: httpx2.ConnectError,
    httpcore2.ConnectTimeout: httpx2.ConnectTimeout,
    httpcore2.PoolTimeout: httpx2.PoolTimeout,
    httpcore2.UnsupportedProtocol: httpx2.UnsupportedProtocol,
}
_BROKEN: Final = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)


class SocketTransport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 on kept connections. Raises httpx2.TransportError; ConnectError and the like when nothing was sent."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        connections_max: int,
        idle_max: int,
        keep_alive_s: float,
        options: Iterable[httpcore2.SOCKET_OPTION] = (),
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=connections_max,
            max_keepalive_connections=idle_max,
            keepalive_expiry=keep_alive_s,
            socket_options=list(options),
            network_backend=_Network(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        asked = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await self._pool.handle_async_request(asked)
        except (*_NOT_SENT, *_BROKEN) as error:
            raise _told(error) from error
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.aiter_stream():
                yield piece
        except _BROKEN as error:
            raise _told(error) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Network(httpcore2.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> _Connection:
        try:
            async with asyncio.timeout(timeout):
                transport, received = await _dialled(host, port, timeout)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout from error
        except OSError as error:
            raise httpcore2.ConnectError from error
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return _Connection(transport, received)


async def _dialled(host: str, port: int, timeout_s: float | None) -> tuple[asyncio.Transport, _Received]:
    """The first address that takes the connection, in the system's order, each with its share of the time.

    asyncio's own race of addresses loses a socket when it is cancelled in the wrong turn of the loop.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for left in range(len(found) - 1, 0, -1):
        share_s = None if timeout_s is None else timeout_s / (left + 2)
        with suppress(OSError):  # TimeoutError is one.
            async with asyncio.timeout(share_s):
                return await _dialled_at(found[-1 - left][4])
    return await _dialled_at(found[-1][4])


async def _dialled_at(address: Any) -> tuple[asyncio.Transport, _Received]:
    return await asyncio.get_running_loop().create_connection(_Received, address[0], address[1])


class _Connection(httpcore2.AsyncNetworkStream):
    def __init__(self, transport: asyncio.Transport, received: _Received) -> None:
        self._transport = transport
        self._received = received
        self._held: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._held.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """What came, however much that is; empty at the end. The deadline of the call bounds the wait."""
        if self._held:
            if self._received.is_over:
                raise httpcore2.ConnectError  # A kept connection that the server has closed: nothing was sent.
            self._transport.write(b"".join(self._held))
            self._held.clear()
        return await self._received.taken()

    async def aclose(self) -> None:
        self._transport.abort()
        await asyncio.sleep(0)  # Only then is the socket closed.

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                self._transport,
                self._received,
                ssl_context,
                server_hostname=server_hostname,
                ssl_handshake_timeout=timeout,
            )
        except OSError as error:
            self._transport.abort()
            raise httpcore2.ConnectError from error
        except BaseException:
            self._transport.abort()
            raise
        if secured is None:
            raise httpcore2.ConnectError
        self._received.transport = secured
        return _Connection(secured, self._received)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._received.is_over or self._received.has_more
        return self._transport.get_extra_info({"client_addr": "sockname", "server_addr": "peername"}.get(info, info))


class _Received(asyncio.Protocol):
    """What came on a connection and was not taken yet."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_over = False
        self._error: Exception | None = None
        self._held = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_held_back = False

    @property
    def has_more(self) -> bool:
        return bool(self._held)

    async def taken(self) -> bytes:
        """All of it, once there is some; empty at the end."""
        while not self._held and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._held and self._error is not None:
            raise httpcore2.ReadError from self._error
        data = bytes(self._held)
        self._held.clear()
        if self._is_held_back and self.transport is not None and not self.is_over:
            self._is_held_back = False
            self.transport.resume_reading()
        return data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._wake()
        if len(self._held) > READ_AHEAD_BYTES and not self._is_held_back and self.transport is not None:
            self._is_held_back = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.is_over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over, self._error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _told(error: Exception) -> httpx2.TransportError:
    return _NOT_SENT.get(type(error), httpx2.ReadError)(str(error))
