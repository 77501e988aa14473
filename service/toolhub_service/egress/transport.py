"""The egress guard as an httpx transport: it sends only to addresses that were checked.

    transport = GuardedTransport(resolver, max_connections=100)
    httpx.AsyncClient(transport=transport.under(rules), trust_env=False)   # checks each request by fixed rules
    httpx.Request(..., extensions=checked_as(check_url(...)))               # or: sends a URL that is checked already

A request goes to scheme, host, port and target of its checked URL, with the Host field of that URL, whatever its own
is. Without a checked URL it is refused. The process has one TLS context and one limit on connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpcore
import httpx

from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.backend import Closings, GuardedBackend, MessageStream
from toolhub_service.egress.framing import FIELDS_MAX
from toolhub_service.egress.wire import WIRE_ERRORS, Breakage, Delivery, WireError, wire_error
from toolhub_service.guards.addresses import Networks
from toolhub_service.guards.urls import CheckedUrl, check_url

# DNS by the operating system, in threads of its own: a slow name server must not delay other work.
#
# Nothing is cached here: an answer is checked and used at once, and connections are kept alive instead.

_THREADS = 8


class SystemResolver:
    """The port `Resolver` on getaddrinfo."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")
        self._is_closed = False

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host in the system's order of preference. Raises OSError when it has none, or once
        closed."""
        if self._is_closed:
            raise OSError("the resolver is closed")
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._threads, _look_up, host, port)
        return list(dict.fromkeys(answers))

    def close(self) -> None:
        """Release the threads; a running lookup ends by itself."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    return [str(answer[4][0]) for answer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


# Pools of connections, one for each set of opened networks.
#
# This makes reuse safe: a connection to an address that one rule opened is never given to a request whose rules would
# not have allowed it. When there are more than a few pools, the least recently used ones are closed.
#
# httpcore can lose a connection when a call is cancelled at certain points (it then is neither idle nor closed and
# occupies a place for ever). So after an exchange that did not end cleanly the pool's busy connections are counted:
# more of them than exchanges means a loss, and the pool is retired: it accepts no new exchange, and its last one closes
# it.

POOLS_MAX = 8


@dataclass(slots=True, eq=False)
class Pool:
    """Connections of one set of networks."""

    connections: httpcore.AsyncConnectionPool
    exchanges: int = 0
    """Running exchanges."""
    is_retired: bool = False

    @property
    def has_lost_some(self) -> bool:
        busy = sum(not (known.is_idle() or known.is_closed()) for known in self.connections.connections)
        return busy > self.exchanges


class Pools:
    """The pools by the networks they may reach."""

    def __init__(self, make: Callable[[Networks], httpcore.AsyncConnectionPool], closings: Closings) -> None:
        self._make = make
        self._closings = closings
        self._pools: OrderedDict[Networks, Pool] = OrderedDict()
        self._is_closed = False

    def enter(self, networks: Networks) -> Pool:
        """Return the pool for an exchange, which ends with `leave`."""
        pool = self._pools.get(networks)
        if pool is None:
            pool = Pool(self._make(networks), is_retired=self._is_closed)
            if not self._is_closed:
                self._pools[networks] = pool
        else:
            self._pools.move_to_end(networks)
        pool.exchanges += 1
        while len(self._pools) > POOLS_MAX:
            self._retire(self._pools.popitem(last=False)[1])
        return pool

    def leave(self, pool: Pool, *, cleanly: bool) -> None:
        """`cleanly`: the response was read to its end and its connection returned to the pool."""
        pool.exchanges -= 1
        if pool.is_retired:
            self._close_if_unused(pool)
        elif not cleanly and pool.has_lost_some:
            self._pools = OrderedDict((key, kept) for key, kept in self._pools.items() if kept is not pool)
            self._retire(pool)

    def close(self) -> None:
        """Close idle connections now, the others when their exchanges end."""
        self._is_closed = True
        while self._pools:
            self._retire(self._pools.popitem()[1])

    def _retire(self, pool: Pool) -> None:
        pool.is_retired = True
        self._close_if_unused(pool)

    def _close_if_unused(self, pool: Pool) -> None:
        if not pool.exchanges:
            self._closings.begin(pool.connections.aclose())


# One request and its response on a pooled connection, whose place is taken and released exactly once.


class Exchange(httpx.AsyncByteStream):
    """Holds a place and an entry of a pool until it is closed. Iteration yields the response's body as it was sent."""

    def __init__(self, pools: Pools, pool: Pool, places: asyncio.Semaphore) -> None:
        self._pools = pools
        self._pool = pool
        self._places = places
        self._answer: httpcore.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._is_complete = False
        self._is_closed = False

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """Return the head of the response. Raises one of `WIRE_ERRORS`, WireError or ToolFailure."""
        self._answer = await self._pool.connections.handle_async_request(request)
        self._chunks = aiter(self._answer.aiter_stream())
        return self._answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._next_chunk():
            yield chunk

    async def _next_chunk(self) -> bytes:
        """Return the next bytes; empty at the end, and after a failure or a cancellation. Raises WireError."""
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            return b""
        try:
            async for chunk in chunks:
                if chunk:
                    self._chunks = chunks
                    return chunk
        except WIRE_ERRORS as error:
            raise wire_error(error) from None
        self._is_complete = True
        return b""

    async def aclose(self) -> None:
        """Keep the connection when exactly the whole response has arrived; otherwise close it at once."""
        if self._is_closed:
            return
        self._is_closed = True
        cleanly = False
        try:
            if self._answer is not None:
                await self._finish(self._answer)
                cleanly = self._is_complete
        finally:
            self._places.release()
            self._pools.leave(self._pool, cleanly=cleanly)

    async def _finish(self, answer: httpcore.Response) -> None:
        stream = answer.extensions["network_stream"]
        try:
            if isinstance(stream, MessageStream):
                stream.stop_waiting()
                # Missing data is not waited for: the connection is closed instead.
                with suppress(WireError):
                    while await self._next_chunk():
                        continue
                    await stream.check_for_excess()
        finally:
            await answer.aclose()


_CHECKED = "toolhub.checked_url"
_DELIVERY = "toolhub.delivery"
_SENDING = "http11.send_request_headers.started"
_ADDRESS = "toolhub.address"


def checked_as(url: CheckedUrl, delivery: Delivery | None = None) -> dict[str, Any]:
    """Return the extensions of a request that may go to this URL. `delivery`: where the transport notes that it has
    begun to send it."""
    return {_CHECKED: url} if delivery is None else {_CHECKED: url, _DELIVERY: delivery}


def address_of(response: httpx.Response) -> str:
    """Return the literal address that answered."""
    return str(response.extensions[_ADDRESS])


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends checked requests by HTTP/1.1 on pooled connections. Share one; close it last.

    `handle_async_request` raises ToolFailure (HTTP_DISALLOWED_HOST) for a host with a forbidden address, and WireError,
    an httpx.TransportError, for network errors. Bodies are returned as they were sent, never decompressed.
    """

    def __init__(
        self,
        resolver: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        max_connections: int = 100,
        keep_alive_s: float = 15.0,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """`tls` verifies servers; None: the system's trust store, TLS 1.2 or later.

        `max_connections`: exchanges at once in the process (more of them wait), and connections kept for each set of
        opened networks. `network` connects to literal addresses; None: sockets.
        """
        self._resolver = resolver
        self._tls = tls
        self._max_connections = max_connections
        self._keep_alive_s = keep_alive_s
        self._network = network or httpcore.AnyIOBackend()
        self._closings = Closings()
        self._pools = Pools(self._new_pool, self._closings)
        self._places = asyncio.Semaphore(max_connections)

    def under(self, egress: tuple[EgressRule, ...]) -> RuledTransport:
        """Return a view of this transport that checks each request by these rules."""
        return RuledTransport(self, egress)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.extensions.get(_CHECKED)
        if not isinstance(url, CheckedUrl):
            raise TypeError("A request without a checked URL was sent through the egress guard")
        if self._tls is None:  # loading the trust store takes 30 ms, so only hubs that send requests do it
            self._tls = await asyncio.to_thread(_default_tls)
        await self._places.acquire()
        exchange = Exchange(self._pools, self._pools.enter(url.networks), self._places)
        try:
            answer = await exchange.send(_as_sent(request, url))
            return _response(answer, exchange, request.method)
        except WIRE_ERRORS as error:
            await exchange.aclose()
            raise wire_error(error) from None
        except BaseException:
            await exchange.aclose()
            raise

    async def aclose(self) -> None:
        """Close idle connections, and the others when their exchanges end."""
        self._pools.close()
        await self._closings.finished()

    def _new_pool(self, networks: Networks) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=self._max_connections,
            keepalive_expiry=self._keep_alive_s,
            network_backend=GuardedBackend(self._resolver, networks, self._closings, self._network),
        )


class RuledTransport(httpx.AsyncBaseTransport):
    """Checks each request by fixed rules, then sends it; raises ToolFailure for a URL that no rule allows."""

    def __init__(self, guarded: GuardedTransport, egress: tuple[EgressRule, ...]) -> None:
        self._guarded = guarded
        self._egress = egress

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = check_url(str(request.url), request.method, self._egress)
        request.extensions = {**request.extensions, **checked_as(url)}
        return await self._guarded.handle_async_request(request)


def _as_sent(request: httpx.Request, url: CheckedUrl) -> httpcore.Request:
    assert isinstance(request.stream, httpx.AsyncByteStream)
    extensions = {"timeout": request.extensions.get("timeout", {})}
    if (delivery := request.extensions.get(_DELIVERY)) is not None:
        extensions["trace"] = partial(_note_sending, delivery)
    fields = [field for field in request.headers.raw if field[0].lower() != b"host"]
    return httpcore.Request(
        request.method,
        httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode("ascii")
        ),
        headers=[(b"host", url.authority.encode()), *fields],
        content=request.stream,
        extensions=extensions,
    )


async def _note_sending(delivery: Delivery, event: str, _: object) -> None:
    """Take an event of httpcore's `trace` extension."""
    if event == _SENDING:
        delivery.was_sent = True


def _response(answer: httpcore.Response, exchange: Exchange, method: str) -> httpx.Response:
    stream = answer.extensions["network_stream"]
    if not isinstance(stream, MessageStream):  # 101: httpcore would speak another protocol on it
        raise WireError(Breakage.MALFORMED)
    stream.body_follows(method, answer.status, answer.headers)
    if len(answer.headers) > FIELDS_MAX:
        raise WireError(Breakage.MALFORMED)
    extensions = {
        "http_version": answer.extensions["http_version"],
        "reason_phrase": answer.extensions["reason_phrase"],
        _ADDRESS: stream.address,
    }
    return httpx.Response(answer.status, headers=answer.headers, stream=exchange, extensions=extensions)


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
