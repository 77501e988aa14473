"""Connections to MCP servers over HTTP/1.1, with bounded framing of each response."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpcore2
import httpx2

from toolhub_service.aio.turnstile import pass_turnstile
from toolhub_service.egress.framing import HttpFraming

_RECEIVE_MAX_BYTES: Final = 256 * 1024


class BoundedStream(httpcore2.AsyncNetworkStream):
    """The socket of one connection; raises WireError for framing out of proportion."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._framing = HttpFraming()

    def body_follows(self, method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that the last head was the final one, and how its body is framed."""
        self._framing.body_follows(method, status, headers)

    # httpcore2.AsyncNetworkStream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  its signature
        framing = self._framing
        if not framing.has_bytes:
            arrived = await self._inner.read(_RECEIVE_MAX_BYTES, timeout)
            if not arrived:
                return b""
            framing.feed(arrived)
        if framing.costs_a_turn:
            await pass_turnstile()
        return framing.next_piece(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  likewise
        if buffer:
            self._framing.begin()
            await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  likewise
    ) -> BoundedStream:
        return BoundedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        # What follows a complete response would answer the next request: such a connection is not used again.
        if info == "is_readable" and self._framing.has_bytes:
            return True
        return self._inner.get_extra_info(info)


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections as httpcore2 does."""

    def __init__(self) -> None:
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> BoundedStream:
        return BoundedStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


_RAISED: Final[Sequence[tuple[type[Exception], type[httpx2.TransportError]]]] = (
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.ReadTimeout, httpx2.ReadTimeout),
    (httpcore2.WriteTimeout, httpx2.WriteTimeout),
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ReadError, httpx2.ReadError),
    (httpcore2.WriteError, httpx2.WriteError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
    (httpcore2.LocalProtocolError, httpx2.LocalProtocolError),
    (httpcore2.ProtocolError, httpx2.RemoteProtocolError),
)


@contextmanager
def _errors_of_httpx2() -> Iterator[None]:
    """Raises exceptions of httpcore2 as those of httpx2, and others as they are."""
    try:
        yield
    except Exception as error:
        raised = next((to for kind, to in _RAISED if isinstance(error, kind)), None)
        if raised is None:
            raise
        raise raised(str(error)) from error


class PooledTransport(httpx2.AsyncBaseTransport):
    """A pool of keep-alive connections.

    Raises httpx2.TransportError (ConnectError and similar when nothing was sent), and WireError for framing that is out
    of proportion to its content.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        connections_max: int,
        idle_max: int,
        keep_alive_s: float,
        socket_options: Iterable[httpcore2.SOCKET_OPTION],
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=connections_max,
            max_keepalive_connections=idle_max,
            keepalive_expiry=keep_alive_s,
            socket_options=socket_options,
            network_backend=_BoundedBackend(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        asked = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx2():
            answer = await self._pool.handle_async_request(asked)
        stream = answer.extensions.get("network_stream")
        if isinstance(stream, BoundedStream):
            stream.body_follows(request.method, answer.status, answer.headers)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of a response, as it was sent."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx2():
            async for piece in self._answer.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()
