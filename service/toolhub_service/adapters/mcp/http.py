"""The HTTP client of one connection to a server of streamable HTTP; `bounded.py` judges and bounds what goes through.

Proxies, certificates and credentials of the environment have no effect. A response may be silent for as long as the
call that waits for it has time; that the peer is gone is noticed by keep-alive probes within a minute. The DELETE that
ends a session of 2025-11-25 gets two seconds.
"""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from toolhub_service import __version__
from toolhub_service.adapters.mcp.auth import AuthorizedTransport, Tokens
from toolhub_service.adapters.mcp.bounded import BoundedTransport, origin_of
from toolhub_service.adapters.mcp.failures import NotConnected
from toolhub_service.adapters.mcp.kind import HttpTerms
from toolhub_service.adapters.mcp.requests import FastClient
from toolhub_service.adapters.source_config import ClientTls
from toolhub_service.adapters.upstream import client_context

CONNECTIONS_MAX = 256
"""Of one server: each call in flight and each stream takes one."""
_IDLE_MAX = 20
_KEEP_ALIVE_S = 30.0
_TIMEOUT = httpx2.Timeout(connect=10.0, read=None, write=30.0, pool=10.0)
_PROBES = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class HttpTransport:
    """What connections to one server have in common: the TLS context, the origins, the token."""

    def __init__(self, terms: HttpTerms, max_message_bytes: int) -> None:
        self._terms = terms
        self._url, self._credentials = _parted(terms.url)
        self._max_message_bytes = max_message_bytes
        self._tls: ssl.SSLContext | None = None
        self._tokens = Tokens(terms.oauth, self._url) if terms.oauth else None
        named = [terms.url, *terms.origins, *([terms.oauth.token_url] if terms.oauth and terms.oauth.token_url else [])]
        self._origins = frozenset(origin_of(httpx2.URL(url)) for url in named)

    @asynccontextmanager
    async def connected(
        self, on_lost: Callable[[str], None]
    ) -> AsyncIterator[tuple[JSONRPCDispatcher[Any], BoundedTransport, FastClient]]:
        """The SDK's dispatcher, and the fast client beside it, over one transport. `on_lost` is called when the server
        does not know the session any more.

        Raises NotConnected when the TLS files cannot be used.
        """
        bounded = BoundedTransport(pool(self._context()), self._origins, self._max_message_bytes, on_lost)
        transport = AuthorizedTransport(bounded, self._tokens) if self._tokens else bounded
        fields = self._fields()
        fast = FastClient(transport, self._url, fields, _TIMEOUT)
        async with (
            httpx2.AsyncClient(
                transport=transport,
                headers=fields,
                timeout=_TIMEOUT,
                trust_env=False,
                follow_redirects=False,
            ) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=None) as streams,
        ):
            try:
                yield JSONRPCDispatcher(*streams), bounded, fast
            finally:
                fast.close()

    def _fields(self) -> dict[str, str]:
        """Headers of each request; those that the operator names go before the URL's own credentials."""
        named = {name.lower(): value for name, value in self._terms.headers.items()}
        return {**self._credentials, **named, "user-agent": f"tool-hub/{__version__}", "accept-encoding": "gzip"}

    def _context(self) -> ssl.SSLContext:
        """Made once: loading the system's CAs takes tens of milliseconds."""
        if self._tls is None:
            self._tls = _tls_context(self._terms.tls)
        return self._tls


def pool(tls: ssl.SSLContext, connections_max: int = CONNECTIONS_MAX) -> httpx2.AsyncHTTPTransport:
    """HTTP/1.1 on kept connections. Raises httpx2.TransportError; ConnectError and the like when nothing was sent."""
    return httpx2.AsyncHTTPTransport(
        tls,
        trust_env=False,
        limits=httpx2.Limits(
            max_connections=connections_max, max_keepalive_connections=_IDLE_MAX, keepalive_expiry=_KEEP_ALIVE_S
        ),
        socket_options=_PROBES,
    )


def _parted(url: str) -> tuple[str, dict[str, str]]:
    """The URL without a user's name and password, and these as a header: what is resolved, logged, or sent to an
    authorization server as the resource, carries none."""
    parts = urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    user, _, password = userinfo.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=place)), {"authorization": f"Basic {b64encode(pair).decode()}"}


def _tls_context(terms: ClientTls) -> ssl.SSLContext:
    try:
        return client_context(terms)
    except (OSError, ValueError):
        raise NotConnected("A TLS file of the source cannot be read or is not usable.") from None
