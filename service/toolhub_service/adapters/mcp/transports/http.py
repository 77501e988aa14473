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
from collections.abc import AsyncIterator, Awaitable, Callable
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
from toolhub_service.adapters.mcp.messages.exchanges import Exchange, Exchanges, RequestCancelled
from toolhub_service.adapters.mcp.messages.http import (
    Answer,
    Fields,
    HttpRequest,
    HttpResponse,
    Origin,
    Transport,
    field_in,
    is_redirect,
    origin_of,
    place_of,
    same_times,
)
from toolhub_service.adapters.mcp.requests import FastClient
from toolhub_service.adapters.mcp.transports.connections import Connections, PoolFull
from toolhub_service.adapters.mcp.transports.events import BoundedEvents, breakage_of_wire, failing_message
from toolhub_service.adapters.mcp.transports.inbox import BoundedInbox, BoundedOutbox, PeerRequests
from toolhub_service.adapters.mcp.transports.repairs import repair_bytes
from toolhub_service.adapters.mcp.transports.sdk_transport import SdkTransport
from toolhub_service.adapters.mcp.transports.value_counter import VALUES_MAX, count_values
from toolhub_service.adapters.upstream import CHECKED_CHARS, client_context, one_line
from toolhub_service.aio.cooperative import run_in_slices
from toolhub_service.egress.bodies import BoundedBody, Pull, decoder_of
from toolhub_service.egress.breakage import WireError

_SESSION = "mcp-session-id"
# Status of a response that is made here; 502 for all others.
_STATUS = {Breakage.REFUSED: 403, Breakage.NOT_SENT: 503, Breakage.NO_SESSION: 404}
_PRIMARY = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"set-cookie", b"set-cookie2", b"transfer-encoding"}
)
_JSON = (b"content-type", b"application/json")
# Timeout of messages that nobody waits for: a notification, or an answer to the server, delays every later request of
# the connection (the SDK posts it in its writing loop), and the end of a session delays the end of the connection.
_SHORT = same_times(2.0)
_NOTIFIES = re.compile(rb'\{\s*"jsonrpc":\s*"2\.0",\s*"method":\s*"notifications/|\{\s*"method":\s*"notifications/')
_HANDSHAKE = re.compile(rb'"method":\s*"(?:initialize|server/discover)"')
_ANSWERS = re.compile(rb'\{\s*"jsonrpc":\s*"2\.0",\s*"id":\s*(?:\d+|"[^"\\]{0,200}"),\s*"(?:result|error)"')


_FOLLOWED = frozenset({307, 308})  # redirects that keep the method, and so the message
_SAID_MAX_CHARS = 300
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


class BoundedTransport:
    """Turns every breakage into an answer with a JSON-RPC error (`Breakage`)."""

    # An exception would end the task group of the SDK's transport, and with it every other call of the connection
    # (python-sdk #3560).

    def __init__(
        self,
        send: Callable[[HttpRequest], Awaitable[HttpResponse]],
        origins: frozenset[Origin],
        max_message_bytes: int,
        on_lost: Callable[[str], None],
    ) -> None:
        """`send` raises WireError."""
        self._send = send
        self._origins = origins
        self._max_message_bytes = max_message_bytes
        self._on_lost = on_lost
        self.exchanges = Exchanges()
        self.last_error = ""  # the last breakage, for people; empty without one
        self.refusal: Facts | None = None  # the answer to the last handshake, where that was not MCP
        self.was_away = False  # whether a request could not be sent at all
        self.was_unauthorized = False  # whether the last answer was 401

    async def send(self, request: HttpRequest) -> Answer:
        if request.place.origin not in self._origins:
            return self._breakage_answer(Breakage.REFUSED)
        content = request.content
        if request.method == "DELETE" or _NOTIFIES.match(content) or _ANSWERS.match(content):
            request.times = _SHORT
        try:
            return await self._send_exchange(request, request.exchange)
        except WireError as error:
            if error.was_sent:
                return self._breakage_answer(breakage_of_wire(error))
            # A full pool with hanging streams does not recover by itself; a new connection replaces it.
            if isinstance(error, PoolFull):
                self._on_lost("All its connections are in use.")
            self.was_away = True
            return self._breakage_answer(Breakage.NOT_SENT, last_error=_connect_error_of(error))
        except RequestCancelled:
            return self._breakage_answer(Breakage.LOST)

    async def _send_exchange(self, request: HttpRequest, exchange: Exchange) -> Answer:
        """Raises RequestCancelled, WireError."""
        response = await exchange.wait(partial(self._send, request))
        is_read = True
        try:
            pull = decoder_of(field_in(response.fields, b"content-encoding"), response.pull)
            if field_in(response.fields, b"content-type").lower().startswith("text/event-stream"):
                is_read = False
                return Answer(
                    response.status,
                    _own_fields(response.fields),
                    events=self._events(request, response, pull, exchange),
                )
            return await exchange.wait(partial(self._read_body, request, response, pull))
        finally:
            if is_read:
                response.close()

    def _events(self, request: HttpRequest, response: HttpResponse, pull: Pull, exchange: Exchange) -> BoundedEvents:
        def give_up() -> None:
            # No call waits for the standalone stream, and the SDK would open it again, and be flooded again.
            if request.method == "GET":
                self._on_lost(Breakage.FLOODED.value)

        return BoundedEvents(pull, response.close, self._max_message_bytes, exchange, on_flood=give_up)

    async def _read_body(self, request: HttpRequest, response: HttpResponse, pull: Pull) -> Answer:
        body = BoundedBody(pull, self._max_message_bytes)
        content = await body.whole()
        response.close()
        if body.is_cut:
            return self._breakage_answer(Breakage.TOO_LARGE, {"limit_bytes": self._max_message_bytes})
        # In slices: counting eight megabytes at once would block every other call.
        if len(content) > VALUES_MAX and await run_in_slices(count_values(content)):
            return self._breakage_answer(Breakage.TOO_MANY)
        status, fields = response.status, response.fields
        # Checked here, before the SDK follows it with the credentials in its headers.
        if is_redirect(status, fields) and not self._leads_on(request, fields):
            return self._breakage_answer(Breakage.REFUSED)
        if _SESSION in request.fields and _knows_no_session(status, content):
            self._on_lost(Breakage.NO_SESSION.value)
            return self._breakage_answer(Breakage.NO_SESSION, facts_of_answer(response, content))
        self.was_unauthorized = status == 401
        if _HANDSHAKE.search(request.content[:300]):
            self.refusal = facts_of_answer(response, content) if _is_foreign(response, content) else None
        own = _own_fields(fields)
        broken = _breakage_of(request, response, content)
        if broken is not None:
            facts = facts_of_answer(response, content)
            if broken is Breakage.NOT_MCP:
                # With another status: only then the SDK takes an error without an id.
                return self._breakage_answer(broken, facts)
            if broken is not Breakage.HTTP_REFUSED:
                said = one_line(facts["text"], _SAID_MAX_CHARS)
                self.last_error = f"{broken.value} It answered HTTP {status}{f': {said}' if said else '.'}"
            content = failing_message(broken, facts)
            own = [*((name, value) for name, value in own if name != b"content-type"), _JSON]
        return Answer(status, own, await repair_bytes(content) if content else content)

    def _leads_on(self, request: HttpRequest, fields: Fields) -> bool:
        try:
            return origin_of(httpx2.URL(request.place.url).join(field_in(fields, b"location"))) in self._origins
        except httpx2.InvalidURL:
            return False

    def _breakage_answer(self, breakage: Breakage, facts: Facts | None = None, last_error: str = "") -> Answer:
        self.last_error = last_error or breakage.value
        return Answer(_STATUS.get(breakage, 502), [_JSON], failing_message(breakage, facts))


def _own_fields(fields: Fields) -> Fields:
    """Return the fields that do not describe how the body was sent: it is decoded, and may have another length."""
    return [(name, value) for name, value in fields if name not in _PRIMARY]


def _knows_no_session(status: int, content: bytes) -> bool:
    """Return whether the session is unknown: 404 by the specification; TypeScript servers answer 400 with a message."""
    return status == 404 or (status == 400 and b"session" in content[:1_000].lower())


def _breakage_of(request: HttpRequest, response: HttpResponse, content: bytes) -> Breakage | None:
    """Return what the answer to a request means that is not the protocol's; None: it is, or nobody waits for it."""
    status = response.status
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


def _is_foreign(response: HttpResponse, content: bytes) -> bool:
    """Return whether the answer is neither a message of the protocol, nor a redirect that the SDK follows."""
    status = response.status
    if status >= 400:
        return not _is_jsonrpc_error(content)
    is_json = status < 300 and field_in(response.fields, b"content-type").lower().startswith("application/json")
    return not is_json and status not in {202, *_FOLLOWED}


def facts_of_answer(response: HttpResponse, content: bytes) -> Facts:
    """Return the facts of an answer that is not MCP; of a web page only the title."""
    media = field_in(response.fields, b"content-type").partition(";")[0].strip().lower()
    text = content[:CHECKED_CHARS].decode("utf-8", "replace")
    if is_redirect(response.status, response.fields):
        text = f"It redirects to {field_in(response.fields, b'location').partition('?')[0]}"
    elif media in {"text/html", "application/xhtml+xml"}:
        title = _TITLE.search(text)
        text = unescape(title[1]).strip() if title else ""
    return {"status": response.status, "media": media[:100], "text": text}


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
IDLE_MAX = 20
_KEEP_ALIVE_S = 30.0


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
        connections = pool(self._context())
        bounded = BoundedTransport(connections.send, self._origins, self._max_message_bytes, on_lost)
        transport: Transport = bounded
        place, fields = place_of(self.url), self._fields()
        if self._holder is not None:
            transport = CallerTransport(bounded, place.origin, self._holder)
        elif self._tokens:
            transport = AuthorizedTransport(bounded, self._tokens)
        fast = FastClient(transport, place, fields)
        async with (
            httpx2.AsyncClient(
                transport=SdkTransport(transport, bounded.exchanges),
                headers=fields,
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
                connections.close()

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


def pool(tls: ssl.SSLContext, connections_max: int = CONNECTIONS_MAX) -> Connections:
    return Connections(tls, connections_max=connections_max, idle_max=IDLE_MAX, keep_alive_s=_KEEP_ALIVE_S)


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
