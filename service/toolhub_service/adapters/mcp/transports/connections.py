"""A pool of HTTP/1.1 connections to MCP servers, over asyncio's own transports.

A request is written in one piece; its response is read by the task that waits for it (`reading.py`), so a call has no
task or queue of its own, and most of what nobody reads stays in the socket. A connection serves the next request only
after a response that ended where it said it would, with nothing behind it. Whatever ends an exchange early, a
cancellation too, closes its connection.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

from toolhub_service.adapters.mcp.messages.http import HttpRequest, HttpResponse, Origin, Place
from toolhub_service.adapters.mcp.transports.reading import ResponseReader
from toolhub_service.aio.turnstile import pass_turnstile
from toolhub_service.egress.breakage import Breakage, WireError
from toolhub_service.egress.framing import read_allowance

_HELD_BYTES: Final = 64 * 1024
_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD_LINES: Final = re.compile(rf"(?:{_NAME}: [\t\x20-\x7e\x80-\xff]*\r\n)*")
_PROBES: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class PoolFull(WireError):
    """No connection became free in time: the request was not sent."""

    def __init__(self) -> None:
        super().__init__(Breakage.CONNECT_TIMEOUT)


class Connections:
    """Sends each request on a connection of its own. Exceptions are WireError, caused by those of the network."""

    def __init__(self, tls: ssl.SSLContext, *, connections_max: int, idle_max: int, keep_alive_s: float) -> None:
        tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._connections_max = connections_max
        self._idle_max = idle_max
        self._keep_alive_s = keep_alive_s
        self._places = asyncio.Semaphore(connections_max)
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        """In order of their last use."""
        self._answered: dict[Origin, str] = {}
        """The address of each origin that answered last."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Return the response when its head has arrived. Raises WireError; `was_sent` says whether the server may have
        received the request."""
        head = _head_of(request)
        times = request.times
        await self._take_place(times.pool_s)
        try:
            connection = self._kept(request.place.origin) or await self._connect(request.place, times.connect_s)
        except BaseException:
            self._places.release()
            raise
        exchange = _Exchange(self, connection, times.read_s)
        connection.write(head + request.content, times.write_s)
        return await exchange.response()

    def close(self) -> None:
        """Close all connections; exchanges under way fail."""
        for connection in [*self._open]:
            connection.fail(WireError(Breakage.BROKEN))

    def leave(self, connection: _Connection, *, can_be_followed: bool) -> None:
        """The exchange on this connection is over."""
        self._places.release()
        if not (can_be_followed and connection.is_quiet):
            connection.abort()
            return
        connection.is_idle, connection.idle_since_s = True, asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > self._idle_max:
            self._idle[0].abort()

    def forget(self, connection: _Connection) -> None:
        """The connection is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def _take_place(self, within_s: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(within_s):
                await self._places.acquire()
        except TimeoutError:
            raise PoolFull from None

    def _kept(self, origin: Origin) -> _Connection | None:
        """Return a usable idle connection, the last used one; close those that were idle for too long."""
        expired_s = asyncio.get_running_loop().time() - self._keep_alive_s
        while self._idle and self._idle[0].idle_since_s < expired_s:
            self._idle[0].abort()
        for connection in reversed(self._idle):
            if connection.origin == origin:
                if connection.is_usable:
                    self._idle.remove(connection)
                    connection.is_idle = False
                    return connection
                connection.abort()
                return self._kept(origin)
        return None

    async def _connect(self, place: Place, within_s: float) -> _Connection:
        """Return a new connection. Addresses are tried in turn, each with its share of the time. Raises WireError."""
        if len(self._open) >= self._connections_max and self._idle:
            self._idle[0].abort()
        try:
            async with asyncio.timeout(within_s):
                addresses = await _addresses_of(place)
                # A host whose IPv6 is unreachable costs its wait once, and not with each connection.
                addresses.sort(key=lambda address: address != self._answered.get(place.origin))
                return await self._first_to_answer(addresses, place, within_s)
        except ssl.SSLError as error:
            raise WireError(Breakage.UNTRUSTED) from error
        except (socket.gaierror, UnicodeError) as error:
            raise WireError(Breakage.UNRESOLVED) from error
        except TimeoutError as error:
            raise WireError(Breakage.CONNECT_TIMEOUT) from error
        except OSError as error:
            raise WireError(Breakage.UNREACHABLE) from error

    async def _first_to_answer(self, addresses: Sequence[str], place: Place, within_s: float) -> _Connection:
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                async with asyncio.timeout(within_s / (left + 1) if left > 1 else None):
                    return await self._connect_to(address, place)
            except OSError as error:  # the next address may answer, such as IPv4 where IPv6 is unreachable
                if left == 1 or isinstance(error, ssl.SSLError):
                    raise
        raise socket.gaierror

    async def _connect_to(self, address: str, place: Place) -> _Connection:
        scheme, _, port = place.origin
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": place.host} if scheme == "https" else {}
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self, place.origin), address, port, **tls)
        self._open.add(connection)
        self._answered[place.origin] = address
        return connection


class _Exchange:
    """One request on a connection, until its response was read or given up."""

    def __init__(self, pool: Connections, connection: _Connection, read_s: float | None) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._read_s = read_s
        self._reader = ResponseReader()

    async def response(self) -> HttpResponse:
        reader = self._reader
        while not reader.has_head:
            await self._advance()
        return HttpResponse(reader.status, reader.fields, self._next_piece, self.close)

    async def _next_piece(self) -> bytes:
        """Return the next bytes of the body; empty at its end."""
        reader = self._reader
        while not reader.body:
            if reader.is_complete:
                return b""
            await self._advance()
        pieces, reader.body = reader.body, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Leave the connection, which is closed unless the response was read to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            reader = self._reader
            self._pool.leave(connection, can_be_followed=reader.is_complete and reader.can_be_followed)

    async def _advance(self) -> None:
        """Parse what has arrived, as much as one turn may, or wait for it."""
        connection = self._connection
        if connection is None:
            raise WireError(Breakage.BROKEN)
        try:
            await connection.pass_on(self._reader, self._read_s)
        except BaseException:
            self._connection = None
            self._pool.leave(connection, can_be_followed=False)
            raise
        if self._reader.is_complete:
            self.close()


class _Connection(asyncio.Protocol):
    """One socket, and what has arrived on it unread."""

    def __init__(self, pool: Connections, origin: Origin) -> None:
        self.origin = origin
        self.is_idle, self.idle_since_s = False, 0.0
        self._pool = pool
        self._transport: asyncio.Transport
        self._poll = select.poll()
        self._arrived, self._at = b"", 0
        self._reads = read_allowance()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_over = False
        self._failure: WireError | None = None
        self._is_full = False
        """Whether the peer has not taken what was written."""
        self._writing: asyncio.TimerHandle | None = None

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is on its way in either direction."""
        return not (self._is_over or self._at < len(self._arrived) or self._transport.get_write_buffer_size())

    @property
    def is_usable(self) -> bool:
        """Return whether the peer has neither closed it nor sent anything, which the loop may not have seen yet."""
        return not self._is_over and not self._poll.poll(0)

    def write(self, data: bytes, within_s: float) -> None:
        self._transport.write(data)
        if self._is_full:
            self._writing = asyncio.get_running_loop().call_later(within_s, self.fail, WireError(Breakage.SILENT))

    def abort(self) -> None:
        """Close it, whatever is on its way."""
        self._is_over = True
        self._pool.forget(self)
        self._transport.abort()

    def fail(self, failure: WireError) -> None:
        self._failure = self._failure or failure
        self.abort()
        self._wake()

    async def pass_on(self, reader: ResponseReader, within_s: float | None) -> None:
        """Have the reader parse the next bytes, as many as one turn may. Raises WireError."""
        if self._at == len(self._arrived):
            if not self._is_over:
                await self._wait(within_s)
            if self._at == len(self._arrived):
                if self._failure is not None:
                    raise self._failure
                reader.end()
                return
        size = reader.end_of_turn(self._arrived, self._at) - self._at
        if self._at + size < len(self._arrived):
            await pass_turnstile()
        reader.feed(self._take(size))

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end < len(self._arrived):
            piece, self._at = self._arrived[self._at : end], end
            return piece
        piece = self._arrived[self._at :] if self._at else self._arrived
        self._arrived, self._at = b"", 0  # not kept for as long as the connection idles
        if self._is_paused and not self._is_over:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def _wait(self, within_s: float | None) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if within_s is None:
                await self._waiter
                return
            async with asyncio.timeout(within_s):
                await self._waiter
        except TimeoutError:
            raise WireError(Breakage.SILENT) from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        own: socket.socket = transport.get_extra_info("socket")
        for option in _PROBES:
            own.setsockopt(*option)
        self._poll.register(own.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if not self._reads.take(1, len(data)):
            self._arrived, self._at = b"", 0
            self.fail(WireError(Breakage.CRUMBLED))
            return
        if self.is_idle:  # it would answer the next request
            self.abort()
            return
        self._arrived = self._arrived[self._at :] + data if self._at < len(self._arrived) else data
        self._at = 0
        if len(self._arrived) > _HELD_BYTES and not self._is_paused and not self._is_over:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._is_over = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._failure is None:
            self._failure = WireError(Breakage.BROKEN)
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()
        self._pool.forget(self)
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._writing is not None:
            self._writing.cancel()


async def _addresses_of(place: Place) -> list[str]:
    """Raises socket.gaierror, UnicodeError."""
    found = await asyncio.get_running_loop().getaddrinfo(place.host, place.origin[2], type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _head_of(request: HttpRequest) -> bytes:
    """Return the head as it is sent. Raises WireError BROKEN for fields that no head can hold."""
    fields = {"host": request.place.authority, **request.fields}
    if request.content or request.method == "POST":
        fields["content-length"] = str(len(request.content))
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
    # As many lines as fields: a value must not bring a line of its own.
    if _FIELD_LINES.fullmatch(lines) is None or lines.count("\r\n") != len(fields):
        raise WireError(Breakage.BROKEN)
    return f"{request.method} {request.place.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
