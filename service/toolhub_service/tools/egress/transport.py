"""The egress guard as an httpx transport: whoever sends through it, nothing leaves but to addresses that were judged.

    transport = GuardedTransport(resolver, max_connections=100)
    httpx.AsyncClient(transport=transport.under(rules), trust_env=False)   # judges each request by fixed rules
    httpx.Request(..., extensions=judged_as(judge_url(...)))               # or: sends what has been judged already

A request goes to scheme, host, port and target of its judged URL, with the Host field of that URL, whatever its own
says. Without a judgement it is refused. One TLS context and one bound on connections for the process.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpcore
import httpx

from toolhub_service.domain.constraints import EgressRule
from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.urls import JudgedUrl, judge_url
from toolhub_service.tools.egress.backend import GuardedBackend
from toolhub_service.tools.egress.breakage import WIRE_ERRORS, Breakage, WireError, wire_error
from toolhub_service.tools.egress.closings import Closings
from toolhub_service.tools.egress.exchange import Exchange
from toolhub_service.tools.egress.message_stream import MessageStream
from toolhub_service.tools.egress.pools import Networks, Pools

FIELDS_MAX = 256
_JUDGED = "toolhub.judged_url"
_ADDRESS = "toolhub.address"


def judged_as(url: JudgedUrl) -> dict[str, Any]:
    """The extensions of a request that may go to this URL."""
    return {_JUDGED: url}


def address_of(response: httpx.Response) -> str:
    """The literal address that answered."""
    return str(response.extensions[_ADDRESS])


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends judged requests by HTTP/1.1 on pooled connections. Share one; close it last.

    `handle_async_request` raises ToolFailure (HTTP_DISALLOWED_HOST) for a host that leads to a forbidden address, and
    WireError, an httpx.TransportError, for everything that breaks. Bodies come as they were sent, never inflated.
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
        self._tls = tls or _default_tls()
        self._max_connections = max_connections
        self._keep_alive_s = keep_alive_s
        self._network = network or httpcore.AnyIOBackend()
        self._closings = Closings()
        self._pools = Pools(self._new_pool, self._closings)
        self._places = asyncio.Semaphore(max_connections)

    def under(self, egress: tuple[EgressRule, ...]) -> RuledTransport:
        """A view of this transport that judges each request by these rules."""
        return RuledTransport(self, egress)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.extensions.get(_JUDGED)
        if not isinstance(url, JudgedUrl):
            raise TypeError("A request without a judged URL was sent through the egress guard")
        await self._places.acquire()
        exchange = Exchange(self._pools, self._pools.enter(url.opened), self._places)
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

    def _new_pool(self, opened: Networks) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=self._max_connections,
            keepalive_expiry=self._keep_alive_s,
            network_backend=GuardedBackend(self._resolver, opened, self._closings, self._network),
        )


class RuledTransport(httpx.AsyncBaseTransport):
    """Judges each request by fixed rules, then sends it; raises ToolFailure for a URL that no rule allows."""

    def __init__(self, guarded: GuardedTransport, egress: tuple[EgressRule, ...]) -> None:
        self._guarded = guarded
        self._egress = egress

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = judge_url(str(request.url), request.method, self._egress)
        request.extensions = {**request.extensions, **judged_as(url)}
        return await self._guarded.handle_async_request(request)


def _as_sent(request: httpx.Request, url: JudgedUrl) -> httpcore.Request:
    assert isinstance(request.stream, httpx.AsyncByteStream)
    fields = [field for field in request.headers.raw if field[0].lower() != b"host"]
    return httpcore.Request(
        request.method,
        httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode("ascii")
        ),
        headers=[(b"host", url.authority.encode()), *fields],
        content=request.stream,
        extensions={"timeout": request.extensions.get("timeout", {})},
    )


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
    body = _Body(exchange)
    return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=extensions)


class _Body(httpx.AsyncByteStream):
    """A response's body as it was sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._exchange.next_chunk():
            yield chunk

    async def aclose(self) -> None:
        await self._exchange.aclose()


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
