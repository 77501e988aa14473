"""Connections: resolve once, check every answer, connect to a checked address (no second lookup, hence no rebinding),
and pass on one response at a time.

If one address of a name is not allowed, the whole name is refused: an attacker who controls the zone could otherwise
wait until the resolver's order favours the forbidden one. Addresses are tried in turn, each with its share of the time.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Coroutine, Iterable, Sequence
from enum import Enum, auto
from ipaddress import ip_address
from typing import Any

import h11
import httpcore

from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.addresses import Networks, is_allowed
from toolhub_service.guards.urls import address_refused
from toolhub_service.tools.egress.wire import WIRE_ERRORS, Breakage, WireError, wire_error

# Running closings: each runs to its end, even when the call that began it is cancelled.


class Closings:
    """Closes connections in tasks, so that a cancelled call, which does not wait for them, leaves none half closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run the closing in its own task."""
        task = asyncio.get_running_loop().create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Wait for the running closings."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


# A connection that passes one response at a time to the HTTP parser, never a byte beyond it.
#
# httpcore keeps what follows a complete response in its parser, where it would answer the next request (response
# desync). Here every piece ends with the response at the latest; the rest stays outside and marks the connection as
# readable, upon which httpcore drops it. The framing determines where a response ends (RFC 9112 §6.3): a head by its
# blank line, a counted body by its length, a chunked body by h11 parsing along. The head is limited to 64 KiB, interim
# responses by number, chunks and their framing in proportion to their content: each chunk costs 30 µs of the event
# loop, however small it is, so other tasks run after every few chunks. A peer that ends early is distinguished here
# from an answer that is not HTTP.

HEAD_MAX_BYTES = 64 * 1024
_INTERIM_MAX = 16
_RECEIVE_MAX_BYTES = 256 * 1024  # as much as asyncio reads at once, so that nothing waits unseen below
_CHUNKS_FREE = 16 * 1024
# Minimum average size of chunks beyond the free ones; a server that sends each word separately stays below their
# number.
_CHUNK_MEAN_BYTES = 64
# Sizes, extensions and trailers; beyond it the framing may not exceed the content (RFC 9112 §7.1.1).
_FRAMING_FREE_BYTES = 256 * 1024
# At most half as many chunks are parsed before other tasks run.
_LINES_A_TURN = 128
_LINE_END = b"\r\n"
_BLANK_LINE = re.compile(rb"\n\r?\n")
_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Part(Enum):
    HEAD = auto()
    COUNTED_BODY = auto()
    CHUNKED_BODY = auto()
    BODY_UNTIL_CLOSE = auto()


class MessageStream(httpcore.AsyncNetworkStream):
    """The socket of one connection. Between a request's first byte and `body_follows` it reads a head."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, address: str, closings: Closings) -> None:
        self.address = address
        """The literal address of the connection."""
        self._inner = inner
        self._closings = closings
        self._is_tls = False
        self._part = _Part.HEAD
        # Received and not yet passed on.
        self._arrived = b""
        # Remaining bytes of a counted body.
        self._body_bytes = 0
        self._chunks: h11.Connection | None = None
        self._chunk_count = 0
        # Bytes of a chunked body so far, framing included.
        self._chunk_bytes = 0
        # Bytes within the chunks.
        self._carried_bytes = 0
        self._head_bytes = 0
        # Last bytes of the head so far: its blank line may arrive in two pieces.
        self._head_tail = b""
        self._heads = 0
        self._answers = 0
        self._is_waiting = True
        self._is_spent = False

    def body_follows(self, method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that the last head was the final one, and how its body is framed."""
        self._answers += 1
        fields = {name.lower(): value for name, value in headers}
        if method == "HEAD" or status in {204, 304}:
            self._part, self._body_bytes = _Part.COUNTED_BODY, 0
        elif b"transfer-encoding" in fields:
            self._part, self._chunks = _Part.CHUNKED_BODY, _chunk_reader()
            self._chunk_count = self._chunk_bytes = self._carried_bytes = 0
        elif b"content-length" in fields:
            self._part, self._body_bytes = _Part.COUNTED_BODY, int(fields[b"content-length"])
        else:
            self._part = _Part.BODY_UNTIL_CLOSE

    def stop_waiting(self) -> None:
        """Until the next request, read only data that has arrived; more data makes the connection unusable."""
        self._is_waiting = False

    async def check_for_excess(self) -> None:
        """After a response, mark the connection as unusable if TLS holds more data, which the socket does not show."""
        # Without TLS httpcore detects further data at the socket itself.
        if not self._is_tls or self._arrived:
            return
        try:
            self._arrived = await self._inner.read(1, timeout=0)
        except httpcore.ReadTimeout:
            return
        # A connection that breaks here is unusable, as one with excess bytes is.
        except (httpcore.ReadError, OSError):
            pass
        self._is_spent = True

    # httpcore.AsyncNetworkStream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  httpcore's signature
        """Return the next bytes of the current response. Raises WireError."""
        arrived = self._arrived or await self._receive(timeout)
        if not arrived and self._part is not _Part.BODY_UNTIL_CLOSE:
            raise self._broken()
        piece = arrived[:max_bytes]
        if self._part is _Part.CHUNKED_BODY and piece.count(_LINE_END) > _LINES_A_TURN:
            piece = _first_lines(piece)
            await asyncio.sleep(0)
        piece = piece[: self._end_in(piece)]
        self._arrived = arrived[len(piece) :]
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  likewise
        if not buffer:
            return
        self._part, self._is_waiting = _Part.HEAD, True
        self._head_bytes, self._head_tail, self._heads = 0, b"", 0
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
        if info == "is_readable" and (self._arrived or self._is_spent):
            return True
        return self._inner.get_extra_info(info)

    async def _receive(self, timeout_s: float | None) -> bytes:
        try:
            return await self._inner.read(_RECEIVE_MAX_BYTES, timeout_s if self._is_waiting else 0)
        except WIRE_ERRORS as error:
            broken = wire_error(error)
            raise broken if broken.breakage is Breakage.SILENT and self._is_waiting else self._broken() from None
        except OSError:
            raise self._broken() from None

    def _broken(self) -> WireError:
        return WireError(Breakage.BROKEN, on_kept=self._part is _Part.HEAD and self._answers > 0)

    def _end_in(self, data: bytes) -> int:
        """Return how many of these bytes belong to the response."""
        if self._part is _Part.HEAD:
            return self._end_of_head(data)
        if self._part is _Part.COUNTED_BODY:
            end = min(len(data), self._body_bytes)
            self._body_bytes -= end
            return end
        if self._part is _Part.CHUNKED_BODY and self._chunks is not None:
            return self._end_of_chunks(data, self._chunks)
        return len(data)

    def _end_of_head(self, data: bytes) -> int:
        blank = _BLANK_LINE.search(self._head_tail + data)
        end = blank.end() - len(self._head_tail) if blank else len(data)
        self._head_tail = b"" if blank else (self._head_tail + data[-2:])[-2:]
        self._head_bytes += end
        self._heads += blank is not None
        if self._head_bytes > HEAD_MAX_BYTES or self._heads > _INTERIM_MAX:
            raise WireError(Breakage.MALFORMED)
        return end

    def _end_of_chunks(self, data: bytes, chunks: h11.Connection) -> int:
        try:
            chunks.receive_data(data)
            while isinstance(event := chunks.next_event(), h11.Data):
                self._chunk_count += event.chunk_end
                self._carried_bytes += len(event.data)
        except h11.RemoteProtocolError:
            raise WireError(Breakage.MALFORMED) from None
        self._chunk_bytes += len(data)
        framing_bytes = self._chunk_bytes - self._carried_bytes
        if (
            self._chunk_count > _CHUNKS_FREE + self._carried_bytes // _CHUNK_MEAN_BYTES
            or framing_bytes > _FRAMING_FREE_BYTES + self._carried_bytes
        ):
            raise WireError(Breakage.CRUMBLED)
        return len(data) - len(chunks.trailing_data[0]) if isinstance(event, h11.EndOfMessage) else len(data)


def _first_lines(data: bytes) -> bytes:
    """Return the data up to the last line end that may be parsed at once."""
    at = 0
    for _ in range(_LINES_A_TURN):
        at = data.find(_LINE_END, at) + len(_LINE_END)
    return data[:at]


def _chunk_reader() -> h11.Connection:
    """Return a parser positioned before the first chunk of a body."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(_CHUNKED_HEAD)
    reader.next_event()
    return reader


_ANSWERS_MAX = 8


async def checked_addresses(resolver: Resolver, host: str, port: int, networks: Networks) -> Sequence[str]:
    """Return the allowed addresses of a host, for connecting without another lookup.

    Raises ToolFailure HTTP_DISALLOWED_HOST when any of them is not allowed; WireError when there is none.
    """
    answers = (host,) if _is_literal(host) else await _resolved(resolver, host, port)
    if not all(is_allowed(answer, networks) for answer in answers):
        raise address_refused(host)
    return answers[:_ANSWERS_MAX]


async def _resolved(resolver: Resolver, host: str, port: int) -> Sequence[str]:
    try:
        answers = await resolver.resolve(host, port)
    except TimeoutError:
        raise
    except OSError:
        answers = ()
    if not answers:
        raise WireError(Breakage.UNRESOLVED)
    return answers


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Network backend of one pool: connects to allowed addresses only."""

    def __init__(
        self,
        resolver: Resolver,
        networks: Networks,
        closings: Closings,
        network: httpcore.AsyncNetworkBackend,
    ) -> None:
        """`networks`: what may be reached. `network` connects to literal addresses."""
        self._resolver = resolver
        self._networks = networks
        self._closings = closings
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> MessageStream:
        """Return a connection to a name or address.

        Raises: ToolFailure: HTTP_DISALLOWED_HOST when any address of the host is not allowed. WireError: when the host
        does not resolve or cannot be reached within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await checked_addresses(self._resolver, host, port, self._networks)
                return await self._first_to_answer(addresses, port, timeout)
        except TimeoutError:
            raise WireError(Breakage.CONNECT_TIMEOUT) from None

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> MessageStream:
        """Always refused, because a local socket is no host."""
        raise address_refused("A local socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _first_to_answer(self, addresses: Sequence[str], port: int, timeout_s: float | None) -> MessageStream:
        for position, address in enumerate(addresses):
            left = len(addresses) - position
            share_s = timeout_s / (left + 1) if timeout_s is not None and left > 1 else None
            try:
                stream = await self._network.connect_tcp(address, port, timeout=share_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue  # the next address may answer, such as IPv4 where IPv6 is unreachable
            return MessageStream(stream, address, self._closings)
        raise WireError(Breakage.UNREACHABLE)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
