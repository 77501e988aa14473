"""Checks before the MCP endpoint: which Host and Origin, who calls, how much is read, how many at once, how long.

Plain ASGI, and nothing of MCP: what is refused here costs no parsing of the protocol. Each request is checked anew; the
SDK also binds a session of the older protocol to the principal that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.mcp_server.caller import CALLER, PRINCIPAL, AccessRefused
from toolhub_service.mcp_server.http.cross_origin import is_preflight, origin_headers, preflight_headers, with_headers
from toolhub_service.mcp_server.http.resource_server import METADATA_HEADERS, ProtectedResource, challenge
from toolhub_service.mcp_server.http.shares import Quota, SessionShares
from toolhub_service.mcp_server.login_pages import PREFIX as LOGIN_PREFIX
from toolhub_service.schema import canonical_json, strict_json

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH: Final = "/mcp"
HEALTH_PATH: Final = "/healthz"
REQUEST: Final = "toolhub.request"
"""The entry that holds the parsed body of a POST."""
LISTEN_METHOD: Final = b"subscriptions/listen"
_IDENTIFY: Final = "toolhub.identify"
_SESSION_HEADER: Final = b"mcp-session-id"
_RESUME_HEADER: Final = b"last-event-id"
_METHODS: Final = frozenset({"POST", "GET", "DELETE"})
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_AT_ONCE_BYTES: Final = 32 * 1024
_RETRY_S: Final = 1.0
_JSON: Final = (b"content-type", b"application/json")
_INVALID_REQUEST: Final = -32600
_PARSE_ERROR: Final = -32700


CLIENT_CHAIN: ContextVar[tuple[bytes, ...]] = ContextVar("toolhub_client_chain", default=())
"""Certificates (PEM) that the client presented, its own first; verified by the handshake."""

Identify = Callable[[Sequence[tuple[str, str]], str, str], Awaitable[Principal]]
"""(headers, address of the peer, what is requested) -> the caller. Raises AccessRefused."""
Invite = Callable[[Scope, Principal], None]
"""Gives the SDK, in the scope, the caller of the request."""


class AdmissionTerms(msgspec.Struct, frozen=True):
    is_local: bool
    """Whether only this machine can connect: then only its own names are accepted as Host and Origin."""
    allowed_hosts: frozenset[str] = frozenset()
    """Further values of Host, lower case, with or without a port."""
    allowed_origins: frozenset[str] = frozenset()
    """Further values of Origin, lower case."""
    max_body_bytes: int = strict_json.MAX_BYTES
    body_s: float = 30.0
    """Timeout for a whole request to arrive."""
    max_requests: int = 1_000
    """Most requests in flight; one principal gets at most half of what is free."""
    max_streams: int = 1_000
    """Most requests that only listen for changes; likewise shared."""
    max_sessions: int = 1_000
    """Most sessions of the older protocol; likewise shared."""
    session_idle_s: float = 1_800.0
    resource: ProtectedResource | None = None
    """Where clients may get tokens; None: unknown to the hub."""
    logins: App | None = None
    """Answers requests below `LOGIN_PREFIX`; None: there are no such pages."""
    turns: Turns = msgspec.field(default_factory=Turns)
    stream_s: float = 3_600.0
    """The age at which such a stream is ended; clients listen again."""


class Admission:
    """ASGI application around the SDK's."""

    def __init__(
        self,
        inner: App,
        identify: Identify,
        invite: Invite,
        terms: AdmissionTerms,
        on_session_end: Callable[[str], None] = lambda _: None,
        has_session: Callable[[Scope], bool] = lambda _: True,
    ) -> None:
        """`has_session`: whether a request can belong to a session; in others, a session's id is ignored."""
        self._inner = inner
        self._identify = identify
        self._invite = invite
        self._terms = terms
        self.requests = Quota(terms.max_requests)
        self.streams = Quota(terms.max_streams)
        self.sessions = SessionShares(terms.max_sessions, terms.session_idle_s, on_session_end)
        self._has_session = has_session
        self._turns = terms.turns
        self._is_leaving = False
        self._listening: set[asyncio.Timeout] = set()

    def leave(self) -> None:
        """Accept nothing new, and end streams that only listen."""
        self._is_leaving = True
        for open_until in self._listening:
            open_until.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        resource = self._terms.resource
        if resource is not None and scope["method"] == "GET" and resource.describes(scope["path"], PATH):
            await _reply(send, 200, resource.metadata(), [_JSON, *METADATA_HEADERS])
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        origin = self._listed_origin(headers)
        if self._terms.allowed_origins:
            send = with_headers(send, origin_headers(origin))
        if origin and is_preflight(scope["method"], headers):
            await _reply(send, 204, b"", preflight_headers(headers))
            return
        answer = self._refusal_of(scope, headers)
        if answer is not None:
            await _send_answer(send, *answer)
            return
        if self._is_login(scope):
            assert self._terms.logins is not None
            await self._terms.logins(scope, receive, send)
            return
        peer = str((scope.get("client") or ("",))[0])
        identify = partial(self._identify, headers, peer, f"{scope['method']} {PATH}")
        try:
            principal = await identify()
        except AccessRefused as refused:
            await _refuse(send, refused, resource)
            return
        scope[PRINCIPAL] = principal
        scope[_IDENTIFY] = identify
        CALLER.set(principal)
        if not self._has_session(scope):
            scope["headers"] = [each for each in scope["headers"] if each[0] != _SESSION_HEADER]
        if scope["method"] == "GET":  # events have no ids here: a stream that is asked for again begins anew
            scope["headers"] = [each for each in scope["headers"] if each[0] != _RESUME_HEADER]
        self._invite(scope, principal)
        await self._admit(scope, receive, send, principal)

    def _refusal_of(self, scope: Scope, headers: Sequence[tuple[str, str]]) -> tuple[int, str] | None:
        """Return (status, reason) of a refusal that needs no credential check."""
        if not self._knows_host([value for name, value in headers if name == "host"]):
            return 421, "The Host header names no address of this hub. An operator adds it to server.mcp.allowed_hosts."
        if not self._knows_origin([value for name, value in headers if name == "origin"]):
            return 403, "Pages of this Origin may not use the hub. An operator adds it to server.mcp.allowed_origins."
        path = scope["path"]
        method = scope["method"]
        if path == HEALTH_PATH and method == "GET":
            return 200, ""
        if self._is_login(scope):
            return None
        if path.rstrip("/") != PATH:
            return 404, f"There is nothing here: the MCP endpoint is {PATH}. `toolhub mcp config` configures a client."
        scope["path"] = PATH
        scope["raw_path"] = PATH.encode()
        if method not in _METHODS:
            return 405, "Use POST."
        if method == "GET" and any(name == "accept" and "text/html" in value for name, value in headers):
            return 406, "This is the MCP endpoint, for agents, and no page: `toolhub mcp config` configures a client."
        return (503, "This hub is shutting down. Connect again.") if self._is_leaving else None

    def _is_login(self, scope: Scope) -> bool:
        """Return whether the request is for a page of logins, which browsers open without a credential."""
        return self._terms.logins is not None and scope["path"].startswith(LOGIN_PREFIX)

    def _knows_host(self, sent: Sequence[str]) -> bool:
        if len(sent) != 1:
            return False
        host = sent[0].lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if not self._terms.is_local and not self._terms.allowed_hosts:
            return True  # this caller has a key: a page that reached us by DNS rebinding has none
        known = self._terms.allowed_hosts
        return host in known or name in known or (self._terms.is_local and name in _LOCAL_NAMES)

    def _knows_origin(self, sent: Sequence[str]) -> bool:
        if not sent:
            return True  # no browser, or a page of the same origin
        origin = sent[0].lower()
        if len(sent) > 1:
            return False
        if origin in self._terms.allowed_origins:
            return True
        with suppress(ValueError):  # no URL, such as `null`, is no page of this machine
            parts = urlsplit(origin)
            name = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
            return self._terms.is_local and parts.scheme in ("http", "https") and name in _LOCAL_NAMES
        return False

    def _listed_origin(self, headers: Sequence[tuple[str, str]]) -> str:
        """Return the origin of the page that sends this, as sent, where an operator allows it; else an empty text."""
        sent = [value for name, value in headers if name == "origin"]
        return sent[0] if len(sent) == 1 and sent[0].lower() in self._terms.allowed_origins else ""

    async def _admit(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        listens = scope["method"] == "GET" or (b"mcp-method", LISTEN_METHOD) in scope["headers"]
        room = self.streams if listens else self.requests
        async with room.place(principal.share) as has_place:
            if not has_place:
                what = "streams" if listens else "requests"
                await _send_answer(
                    send, 503, f"Too many {what} of yours are open here. Close some, or come again shortly."
                )
                return
            self._turns.arrivals += 1
            await self._turns.take(principal.share)
            if scope["method"] == "POST":
                read = await self._body(scope, receive, send)
                if read is None:
                    return
                body, scope[REQUEST] = read
                # Imported here: it belongs to the extra of MCP, which a hub may lack.
                from toolhub_service.mcp_server.http.malformed import find_malformed

                if (wrong := find_malformed(scope["headers"], scope[REQUEST])) is not None:
                    await _send_answer(send, wrong.status, wrong.message, code=wrong.code, data=wrong.data)
                    return
                if _method(scope[REQUEST]) == "initialize" and not self.sessions.may_open(principal.id, _now_s()):
                    await _send_answer(send, 503, "Too many sessions of yours are open here. End some.")
                    return
                receive = _replay_body(body, receive)
            receive = self._pace_disconnects(receive, principal)
            send = self._watch_session(scope, send, principal)
            if listens:
                try:
                    await self._listen(scope, receive, _Sending(send))
                finally:
                    self.sessions.mark_used(principal.id, _session(scope["headers"]), _now_s())
            else:
                await self._inner(scope, receive, send)

    def _pace_disconnects(self, receive: Receive, principal: Principal) -> Receive:
        """Connections cut off at once are released one per loop iteration: each costs as much as serving."""

        async def receive_paced() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                await self._turns.take(principal.share)
            return message

        return receive_paced

    def _watch_session(self, scope: Scope, send: Send, principal: Principal) -> Send:
        """Note which session is used, opened or ended."""
        sent = _session(scope["headers"])
        # As in the SDK, a session with an open stream is not idle.
        used_s = self._terms.stream_s if scope["method"] == "GET" else 0.0

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                opened = "" if sent else _session(message["headers"])
                if message["status"] == 404 or (scope["method"] == "DELETE" and message["status"] < 400):
                    self.sessions.mark_ended(principal.id, sent)
                elif opened and message["status"] < 400:
                    self.sessions.mark_opened(principal.id, opened, _now_s())
                elif message["status"] < 400:
                    self.sessions.mark_used(principal.id, sent, _now_s() + used_s)
            await send(message)

        return send_watched

    async def _listen(self, scope: Scope, receive: Receive, sending: _Sending) -> None:
        try:
            async with asyncio.timeout(self._terms.stream_s) as open_until:
                self._listening.add(open_until)
                try:
                    await self._inner(scope, receive, _while_known(scope[_IDENTIFY], sending, open_until))
                finally:
                    self._listening.discard(open_until)
        except TimeoutError:
            await sending.end()

    async def _body(self, scope: Scope, receive: Receive, send: Send) -> tuple[bytes, JsonValue] | None:
        """Return the whole body and its value in strict JSON; None when it was refused and answered."""
        most = self._terms.max_body_bytes
        body = bytearray()
        too_large = f"The request is larger than {most:,} bytes. Upload what is large as an artifact."
        declared = [value for name, value in scope["headers"] if name == b"content-length"]
        if declared and (len(declared) > 1 or not declared[0].isdigit() or int(declared[0]) > most):
            await _send_answer(send, 413, too_large, closes=True)
            return None
        try:
            async with asyncio.timeout(self._terms.body_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None  # the client is gone
                    body += message.get("body", b"")
                    if len(body) > most:
                        await _send_answer(send, 413, too_large, closes=True)
                        return None
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            await _send_answer(send, 408, "The request took too long to arrive.", closes=True)
            return None
        whole = bytes(body)
        try:
            if len(whole) <= _AT_ONCE_BYTES:
                value = strict_json.loads(whole)
            else:
                value = await asyncio.to_thread(strict_json.loads_bounded, whole)
        except ToolFailure as failure:
            await _send_answer(send, 400, f"Parse error: {failure.error.message}", code=_PARSE_ERROR)
            return None
        return whole, value


def _while_known(identify: Callable[[], Awaitable[Principal]], send: Send, open_until: asyncio.Timeout) -> Send:
    async def send_checked(message: Message) -> None:
        try:
            if message.get("body"):  # a caller that lost the stream's credential gets no more messages
                await identify()
        except AccessRefused as refused:
            if refused.status != 503:
                open_until.reschedule(_now_s())
                return
        await send(message)

    return send_checked


def _session(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == _SESSION_HEADER), "")


def _method(request: JsonValue) -> JsonValue:
    return request.get("method") if isinstance(request, dict) else None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class _Sending:
    """Passes messages on, and can end what they have begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def __call__(self, message: Message) -> None:
        self._is_open = bool(message["type"] == "http.response.start" or message.get("more_body", False))
        await self._send(message)

    async def end(self) -> None:
        """End the stream here, as a complete one."""
        if self._is_open:
            await self({"type": "http.response.body", "body": b"", "more_body": False})


def _replay_body(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _refuse(send: Send, refused: AccessRefused, resource: ProtectedResource | None) -> None:
    status = refused.status
    message = refused.message
    extra = challenge(resource, status, is_missing=refused.is_missing, scope=refused.scope, message=message)
    await _send_answer(send, status, message, extra=extra, retry_after_s=refused.retry_after_s)


async def _send_answer(
    send: Send,
    status: int,
    message: str,
    *,
    code: int = _INVALID_REQUEST,
    extra: Sequence[tuple[bytes, bytes]] = (),
    retry_after_s: float | None = None,
    closes: bool = False,
    data: JsonObject | None = None,
) -> None:
    """Send a refusal; `ok` when there is no message."""
    headers = [_JSON if message else (b"content-type", b"text/plain"), *extra]
    if status == 405:
        headers.append((b"allow", b"POST, GET, DELETE"))
    if status == 503 or retry_after_s:
        headers.append((b"retry-after", str(max(1, round(retry_after_s or _RETRY_S))).encode()))
    if closes:
        headers.append((b"connection", b"close"))
    await _reply(send, status, refusal_body(message, code, data) if message else b"ok\n", headers)


def refusal_body(message: str, code: int = _INVALID_REQUEST, data: JsonObject | None = None) -> bytes:
    """Return a JSON-RPC error without an id."""
    error: JsonObject = {"code": code, "message": message, **({"data": data} if data else {})}
    return canonical_json.dumps({"jsonrpc": "2.0", "id": None, "error": error})


async def _reply(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    # A 204 has no length (RFC 9110 §8.6).
    sized = [*headers, *([(b"content-length", str(len(body)).encode())] if status != 204 else [])]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})
