"""Requests to the world under egress rules: each hop judged, dialled, bounded in time, and told in typed failures.

One client for the process. Redirects are followed by hand, at most five, each judged as a new request; https never
leads to http; fields that may be credentials never cross an origin (RFC 9110 §15.4). Proxies of the environment have no
effect, since nothing here reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

from toolhub_service import __version__
from toolhub_service.domain.constraints import EgressRule
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.urls import JudgedUrl, judge_url
from toolhub_service.tools.egress.body import BoundedBody, decoder_of
from toolhub_service.tools.egress.breakage import REPEATABLE, Breakage, WireError, out_of_time, told
from toolhub_service.tools.egress.connection import HttpConnection
from toolhub_service.tools.egress.dialer import Dialer
from toolhub_service.tools.egress.pool import IdleConnections
from toolhub_service.tools.egress.redirects import Hop, next_hop, too_many_redirects

USER_AGENT = f"tool-hub/{__version__}"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What to ask for. Nothing in it has been judged but the headers."""

    url: str
    method: str = "GET"
    headers: Headers = ()
    """From `judge_request_headers`."""
    body: bytes = b""
    accept: str = "*/*"
    accept_encoding: str = "gzip"
    """`gzip` or `identity`."""


@dataclass(slots=True)
class HttpResponse:
    """The answer of the last hop; its body is read piece by piece within bounds."""

    url: JudgedUrl
    method: str
    status: int
    headers: list[tuple[bytes, bytes]]
    """As sent, names in lower case."""
    address: str
    """The literal address that was dialled."""
    redirects: tuple[JudgedUrl, ...]
    """The URLs that led here, first to last; empty when the first one answered."""
    connection: HttpConnection = field(repr=False)

    def header(self, name: bytes) -> str:
        """A field's value, several joined by commas; empty when absent. `name` in lower case."""
        return ", ".join(value.decode("latin-1") for known, value in self.headers if known == name)

    @property
    def announced_bytes(self) -> int | None:
        """Content-Length of a body that is not encoded; None when there is none to rely on."""
        length = self.header(b"content-length")
        return int(length) if length.isdecimal() and not self.header(b"content-encoding") else None

    def body(self, max_bytes: int) -> BoundedBody:
        """The decoded body, at most `max_bytes` of it. Once a response. Raises WireError, which `open` tells."""
        pull = self.connection.next_chunk
        return BoundedBody(decoder_of(self.header(b"content-encoding"), pull), max_bytes)

    async def beginning(self, max_bytes: int) -> bytes:
        """At most `max_bytes` of the body, for an error message; empty when it cannot be read."""
        try:
            return await self.body(max_bytes).whole()
        except WireError:
            return b""


class EgressClient:
    """The one pooled HTTP client."""

    def __init__(
        self,
        dialer: Dialer,
        *,
        user_agent: str = USER_AGENT,
        idle_timeout_s: float = 30.0,
        redirects_max: int = 5,
        pool: IdleConnections | None = None,
    ) -> None:
        """`idle_timeout_s`: how long a server may send nothing while it owes us something."""
        self._dialer = dialer
        self._user_agent = user_agent
        self._idle_timeout_s = idle_timeout_s
        self._redirects_max = redirects_max
        self._pool = pool or IdleConnections()

    def close(self) -> None:
        """Close the idle connections; those in use close when their exchange ends."""
        self._pool.close()

    @asynccontextmanager
    async def open(
        self, request: HttpRequest, egress: tuple[EgressRule, ...], *, deadline_s: float
    ) -> AsyncIterator[HttpResponse]:
        """Send the request, follow redirects and yield the response; the body is read inside the block.

        `deadline_s` (loop clock) ends the whole block. Leaving it keeps the connection when the exchange is complete
        and closes it at once when it is not.

        Raises:
            ToolFailure: HTTP_DISALLOWED_HOST or INVALID_INPUT when a hop is refused; HTTP_TIMEOUT; NETWORK_ERROR;
                UPSTREAM_ERROR when the answer is not HTTP or not decodable.
        """
        first = judge_url(request.url, request.method, egress)
        started_s = asyncio.get_running_loop().time()
        clock = asyncio.timeout_at(deadline_s)
        try:
            async with clock:
                hop = Hop(first, request.method, request.headers, request.body)
                response = await self._follow(hop, request, egress)
                try:
                    yield response
                finally:
                    self._release(response)
        except WireError as error:
            raise told(error, request.method, first) from None
        except TimeoutError:
            if not clock.expired():
                raise
            raise out_of_time(request.method, first, deadline_s - started_s) from None

    async def _follow(self, hop: Hop, request: HttpRequest, egress: tuple[EgressRule, ...]) -> HttpResponse:
        redirects: tuple[JudgedUrl, ...] = ()
        while len(redirects) <= self._redirects_max:
            connection, head = await self._exchange(hop, request)
            response = HttpResponse(
                hop.url, hop.method, head.status_code, list(head.headers), connection.address, redirects, connection
            )
            try:
                following = next_hop(hop, response.status, response.header(b"location"), egress)
            except ToolFailure:
                self._release(response)
                raise
            if following is None:
                return response
            self._release(response)
            redirects, hop = (*redirects, hop.url), following
        raise too_many_redirects(redirects[-1], self._redirects_max)

    async def _exchange(self, hop: Hop, request: HttpRequest) -> tuple[HttpConnection, h11.Response]:
        """One request, one response head. An idle connection may have died unseen: then a safe request goes anew."""
        head = self._head(hop, request)
        connection = self._pool.take(hop.url)
        if connection is not None:
            try:
                return connection, await _sent(connection, head, hop.body)
            except WireError as error:
                if error.breakage is not Breakage.BROKEN or hop.method not in REPEATABLE:
                    raise
        return await self._on_new_connection(hop, head)

    async def _on_new_connection(self, hop: Hop, head: h11.Request) -> tuple[HttpConnection, h11.Response]:
        stream, address = await self._dialer.dial(hop.url)
        connection = HttpConnection(stream, address, idle_timeout_s=self._idle_timeout_s)
        return connection, await _sent(connection, head, hop.body)

    def _head(self, hop: Hop, request: HttpRequest) -> h11.Request:
        fields = {
            "host": hop.url.authority,
            "user-agent": self._user_agent,
            "accept": request.accept,
            "accept-encoding": request.accept_encoding,
            **dict(hop.headers),
        }
        if hop.body or hop.method in {"POST", "PUT", "PATCH"}:
            fields["content-length"] = str(len(hop.body))
        return h11.Request(method=hop.method, target=hop.url.target, headers=list(fields.items()))

    def _release(self, response: HttpResponse) -> None:
        if response.connection.finish():
            self._pool.give(response.url, response.connection)
        else:
            response.connection.close()


async def _sent(connection: HttpConnection, head: h11.Request, body: bytes) -> h11.Response:
    try:
        return await connection.send(head, body)
    except BaseException:
        connection.close()
        raise
