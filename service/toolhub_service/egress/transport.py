"""The egress guard as an httpx transport: it sends only to addresses that were checked.

    transport = GuardedTransport(resolver, max_connections=100)
    httpx.AsyncClient(transport=transport.under(rules), trust_env=False)   # checks each request by fixed rules
    httpx.Request(..., extensions=checked_extensions(check_url(...)))       # or: sends a URL that is checked already

A request goes to scheme, host, port and target of its checked URL, with the Host field of that URL, whatever its own
is. Without a checked URL it is refused. The process has one TLS context and one limit on connections.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Any

import httpcore
import httpx

from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.backend import GuardedBackend
from toolhub_service.egress.breakage import WIRE_ERRORS, Breakage, Delivery, WireError, wire_error
from toolhub_service.egress.closings import Closings
from toolhub_service.egress.exchange import Exchange
from toolhub_service.egress.framing import FIELDS_MAX
from toolhub_service.egress.message_stream import MessageStream
from toolhub_service.egress.pools import Pools
from toolhub_service.guards.addresses import Networks
from toolhub_service.guards.urls import CheckedUrl, check_url

_CHECKED = "toolhub.checked_url"
_DELIVERY = "toolhub.delivery"
_SENDING = "http11.send_request_headers.started"
_ADDRESS = "toolhub.address"


def checked_extensions(url: CheckedUrl, delivery: Delivery | None = None) -> dict[str, Any]:
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
            answer = await exchange.send(core_request(request, url))
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
        await self._closings.wait()

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
        request.extensions = {**request.extensions, **checked_extensions(url)}
        return await self._guarded.handle_async_request(request)


def core_request(request: httpx.Request, url: CheckedUrl) -> httpcore.Request:
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
