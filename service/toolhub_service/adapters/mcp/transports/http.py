"""The HTTP transport of streamable HTTP: requests go only to the source's origins, and every answer is bounded.

A response that is not an event stream is read here, at most `max_message_bytes` of it after decompression; in an event
stream each event has this limit. Proxies, certificates and credentials of the environment have no effect, and cookies
are dropped. A response may be silent until the deadline of the call that waits for it; keep-alive probes notice within
a minute that the peer is gone.
"""

from __future__ import annotations

import re
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
import orjson
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from toolhub_service import __version__
from toolhub_service.adapters.mcp.failures import Breakage, Facts, NotConnected, breakage_of_status
from toolhub_service.adapters.mcp.kind import HttpTerms
from toolhub_service.adapters.mcp.login.client_credentials import AuthorizedTransport, Tokens
from toolhub_service.adapters.mcp.login.user_sessions import CallerTransport, Holder
from toolhub_service.adapters.mcp.requests import Exchange, Exchanges, FastClient, RequestCancelled
from toolhub_service.adapters.mcp.transports.connections import PooledTransport
from toolhub_service.adapters.mcp.transports.events import BoundedEvents, breakage_of_wire, failing_message
from toolhub_service.adapters.mcp.transports.inbox import BoundedInbox, BoundedOutbox, PeerRequests
from toolhub_service.adapters.mcp.transports.repairs import repair_bytes
from toolhub_service.adapters.mcp.transports.value_counter import count_values
from toolhub_service.adapters.upstream import CHECKED_CHARS, client_context, one_line
from toolhub_service.aio.cooperative import run_in_slices
from toolhub_service.egress.bodies import BoundedBody, Pull, decoder_of
from toolhub_service.egress.breakage import WireError

_SESSION = "mcp-session-id"
# Status of a response that is made here; 502 for all others.
_STATUS = {Breakage.REFUSED: 403, Breakage.NOT_SENT: 503, Breakage.NO_SESSION: 404}
_PRIMARY = b"connection", b"content-encoding", b"content-length", b"set-cookie", b"set-cookie2", b"transfer-encoding"
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
# Timeout of messages that nobody waits for: a notification, or an answer to the server, delays every later request of
# the connection (the SDK posts it in its writing loop), and the end of a session delays the end of the connection.
_SHORT = httpx2.Timeout(2.0).as_dict()
_NOTIFIES = re.compile(rb'\{\s*"jsonrpc":\s*"2\.0",\s*"method":\s*"notifications/|\{\s*"method":\s*"notifications/')
_HANDSHAKE = re.compile(rb'"method":\s*"(?:initialize|server/discover)"')
_ANSWERS = re.compile(rb'\{\s*"jsonrpc":\s*"2\.0",\s*"id":\s*(?:\d+|"[^"\\]{0,200}"),\s*"(?:result|error)"')


_FOLLOWED = frozenset({307, 308})  # redirects that keep the method, and so the message
_SAID_MAX_CHARS = 300
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def origin_of(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Turns every breakage into a response with a JSON-RPC error (`Breakage`)."""

    # An exception would end the task group of the SDK's transport, and with it every other call of the connection
    # (python-sdk #3560).

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        origins: frozenset[tuple[str, str, int]],
        max_message_bytes: int,
        on_lost: Callable[[str], None],
    ) -> None:
        self._inner = inner
        self._origins = origins
        self._max_message_bytes = max_message_bytes
        self._on_lost = on_lost
        self.exchanges = Exchanges()
        self.last_error = ""  # the last breakage, for people; empty without one
        self.refusal: Facts | None = None  # the answer to the last handshake, where that was not MCP
        self.was_away = False  # whether a request could not be sent at all
        self.was_unauthorized = False  # whether the last answer was 401

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if origin_of(request.url) not in self._origins:
            return self._breakage_response(Breakage.REFUSED)
        content = await request.aread()
        if request.method == "DELETE" or _NOTIFIES.match(content) or _ANSWERS.match(content):
            request.extensions = {**request.extensions, "timeout": _SHORT}
        exchange = self.exchanges.begin(request)
        try:
            return await self._send_exchange(request, exchange)
        except _NOT_SENT as error:
            # A full pool with hanging streams does not recover by itself; a new connection replaces it.
            if isinstance(error, httpx2.PoolTimeout):
                self._on_lost("All its connections are in use.")
            self.was_away = True
            return self._breakage_response(Breakage.NOT_SENT, last_error=_connect_error_of(error))
        except WireError as error:
            return self._breakage_response(breakage_of_wire(error))
        except (httpx2.TransportError, RequestCancelled):
            return self._breakage_response(Breakage.LOST)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send_exchange(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        """Raises RequestCancelled, WireError, httpx2.TransportError."""
        response = await exchange.wait(partial(self._inner.handle_async_request, request))
        try:
            pull = decoder_of(response.headers.get("content-encoding", ""), _pieces_of(response))
            if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return _rebuild_response(response, stream=self._events(request, response, pull, exchange))
            return await exchange.wait(partial(self._read_body, request, response, pull))
        except (WireError, RequestCancelled):
            await response.aclose()
            raise

    def _events(
        self, request: httpx2.Request, response: httpx2.Response, pull: Pull, exchange: Exchange
    ) -> BoundedEvents:
        def give_up() -> None:
            # No call waits for the standalone stream, and the SDK would open it again, and be flooded again.
            if request.method == "GET":
                self._on_lost(Breakage.FLOODED.value)

        return BoundedEvents(pull, response.aclose, self._max_message_bytes, exchange, on_flood=give_up)

    async def _read_body(self, request: httpx2.Request, response: httpx2.Response, pull: Pull) -> httpx2.Response:
        body = BoundedBody(pull, self._max_message_bytes)
        try:
            content = await body.whole()
        finally:
            await response.aclose()
        if body.is_cut:
            return self._breakage_response(Breakage.TOO_LARGE, {"limit_bytes": self._max_message_bytes})
        # In slices: counting eight megabytes at once would block every other call.
        if await run_in_slices(count_values(content)):
            return self._breakage_response(Breakage.TOO_MANY)
        # Checked here, before the SDK follows it with the credentials in its headers.
        if response.has_redirect_location and not self._leads_on(request, response):
            return self._breakage_response(Breakage.REFUSED)
        status, facts = response.status_code, facts_of_answer(response, content)
        if _SESSION in request.headers and _knows_no_session(status, content):
            self._on_lost(Breakage.NO_SESSION.value)
            return self._breakage_response(Breakage.NO_SESSION, facts)
        self.was_unauthorized = status == 401
        if _HANDSHAKE.search(request.content[:300]):
            self.refusal = facts if _is_foreign(response, content) else None
        broken = _breakage_of(request, response, content)
        if broken is Breakage.NOT_MCP:
            return self._breakage_response(
                broken, facts
            )  # with another status: only then the SDK takes an error without an id
        if broken is not None:
            if broken is not Breakage.HTTP_REFUSED:
                said = one_line(facts["text"], _SAID_MAX_CHARS)
                self.last_error = f"{broken.value} It answered HTTP {status}{f': {said}' if said else '.'}"
            content = failing_message(broken, facts)
            response.headers["content-type"] = "application/json"
        return _rebuild_response(response, content=await repair_bytes(content) if content else content)

    def _leads_on(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        try:
            return origin_of(request.url.join(response.headers["location"])) in self._origins
        except httpx2.InvalidURL:
            return False

    def _breakage_response(
        self, breakage: Breakage, facts: Facts | None = None, last_error: str = ""
    ) -> httpx2.Response:
        self.last_error = last_error or breakage.value
        headers = {"content-type": "application/json"}
        content = failing_message(breakage, facts)
        return httpx2.Response(_STATUS.get(breakage, 502), headers=headers, content=content)


def _pieces_of(response: httpx2.Response) -> Pull:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    pieces = aiter(response.stream)

    async def pull() -> bytes:
        return await anext(pieces, b"")

    return pull


def _rebuild_response(
    response: httpx2.Response, *, content: bytes | None = None, stream: httpx2.AsyncByteStream | None = None
) -> httpx2.Response:
    # These headers describe the original body; the rebuilt one is decoded and has another length.
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _PRIMARY]
    return httpx2.Response(response.status_code, headers=headers, content=content, stream=stream)


def _knows_no_session(status: int, content: bytes) -> bool:
    """Return whether the session is unknown: 404 by the specification; TypeScript servers answer 400 with a message."""
    return status == 404 or (status == 400 and b"session" in content[:1_000].lower())


def _breakage_of(request: httpx2.Request, response: httpx2.Response, content: bytes) -> Breakage | None:
    """Return what the answer to a request means that is not the protocol's; None: it is, or nobody waits for it."""
    status = response.status_code
    # An error that the server itself reports in JSON-RPC is passed on unchanged.
    if not _is_foreign(response, content):
        return None
    if (broken := breakage_of_status(status)) is not None:
        return broken
    # During a handshake the SDK itself learns from the status which version the server speaks.
    if request.method != "POST" or any(
        pattern.search(request.content[:300]) for pattern in (_HANDSHAKE, _NOTIFIES, _ANSWERS)
    ):
        return None
    return Breakage.HTTP_REFUSED if status >= 400 else Breakage.NOT_MCP


def _is_foreign(response: httpx2.Response, content: bytes) -> bool:
    """Return whether the answer is neither a message of the protocol, nor a redirect that the SDK follows."""
    status = response.status_code
    if status >= 400:
        return not _is_jsonrpc_error(content)
    is_json = status < 300 and response.headers.get("content-type", "").lower().startswith("application/json")
    return not is_json and status not in {202, *_FOLLOWED}


def facts_of_answer(response: httpx2.Response, content: bytes) -> Facts:
    """Return the facts of an answer that is not MCP; of a web page only the title."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    text = content[:CHECKED_CHARS].decode("utf-8", "replace")
    if response.has_redirect_location:
        text = f"It redirects to {response.headers['location'].partition('?')[0]}"
    elif media in {"text/html", "application/xhtml+xml"}:
        title = _TITLE.search(text)
        text = unescape(title[1]).strip() if title else ""
    return {"status": response.status_code, "media": media[:100], "text": text}


def _is_jsonrpc_error(content: bytes) -> bool:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return isinstance(body, dict) and "jsonrpc" in body and isinstance(body.get("error"), dict)


def _connect_error_of(error: BaseException) -> str:
    """Return why a connection could not be made, from the chain of exceptions."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "Its host name does not resolve."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "Its certificate is not trusted."
        if isinstance(cause, ssl.SSLError):
            return "TLS with it failed; it may ask for a client certificate."
        if isinstance(cause, ConnectionRefusedError):
            return "It refuses connections."
        # httpx wraps the socket's error twice or more.
        cause = cause.__cause__ or cause.__context__
    return Breakage.NOT_SENT.value


CONNECTIONS_MAX = 256  # to one server: each running call and each stream takes one
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
    """What connections to one server share: the TLS context, the origins, the token."""

    def __init__(self, terms: HttpTerms, max_message_bytes: int, holder: Holder | None = None) -> None:
        """`holder`: of a caller's credential or of the source's login, used instead of the configured credentials."""
        self._holder = holder
        self._terms = terms
        self.url, self._credentials = split_credentials(terms.url)
        """Without credentials."""
        self._max_message_bytes = max_message_bytes
        self._tls: ssl.SSLContext | None = None
        self._tokens = Tokens(terms.oauth, self.url) if terms.oauth else None
        named = [terms.url, *terms.origins, *([terms.oauth.token_url] if terms.oauth and terms.oauth.token_url else [])]
        self._origins = frozenset(origin_of(httpx2.URL(url)) for url in named)

    @asynccontextmanager
    async def connect(
        self, on_lost: Callable[[str], None]
    ) -> AsyncIterator[tuple[JSONRPCDispatcher[Any], BoundedTransport, FastClient]]:
        """Yield the SDK's dispatcher, the transport, and the fast client over the same transport. `on_lost` is called
        when the server no longer knows the session.

        Raises NotConnected when the TLS files cannot be used.
        """
        bounded = BoundedTransport(pool(self._context()), self._origins, self._max_message_bytes, on_lost)
        transport: httpx2.AsyncBaseTransport = bounded
        if self._holder is not None:
            transport = CallerTransport(bounded, origin_of(httpx2.URL(self.url)), self._holder)
        elif self._tokens:
            transport = AuthorizedTransport(bounded, self._tokens)
        fields = self._fields()
        fast = FastClient(transport, self.url, fields, _TIMEOUT)
        async with (
            httpx2.AsyncClient(
                transport=transport,
                headers=fields,
                timeout=_TIMEOUT,
                trust_env=False,
                follow_redirects=False,
            ) as client,
            streamable_http_client(self.url, http_client=client, max_sse_event_size=None) as streams,
        ):
            try:
                # An answer of the hub goes out by a POST of its own, which the server may not take.
                requests = PeerRequests(on_lost)
                inbox, outbox = BoundedInbox(streams[0], requests), BoundedOutbox(streams[1], requests)
                yield JSONRPCDispatcher(inbox, outbox), bounded, fast
            finally:
                fast.close()

    def _fields(self) -> dict[str, str]:
        """Return the headers of each request; those that the operator names take precedence over the URL's
        credentials."""
        named = {name.lower(): value for name, value in self._terms.headers.items()}
        return {**self._credentials, **named, "user-agent": f"tool-hub/{__version__}", "accept-encoding": "gzip"}

    def _context(self) -> ssl.SSLContext:
        """Return the TLS context, made once: loading the system's CAs takes tens of milliseconds."""
        if self._tls is None:
            try:
                self._tls = client_context(self._terms.tls)
            except (OSError, ValueError):
                raise NotConnected("A TLS file of the source cannot be read or is invalid.") from None
        return self._tls


def pool(tls: ssl.SSLContext, connections_max: int = CONNECTIONS_MAX) -> PooledTransport:
    """Return a pool of HTTP/1.1 keep-alive connections."""
    return PooledTransport(
        tls,
        connections_max=connections_max,
        idle_max=_IDLE_MAX,
        keep_alive_s=_KEEP_ALIVE_S,
        socket_options=_PROBES,
    )


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without user name and password, and these as a header, so that the URL that is resolved, logged,
    or sent to an authorization server as the resource holds no credentials."""
    parts = urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    user, _, password = userinfo.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=place)), {"authorization": f"Basic {b64encode(pair).decode()}"}
