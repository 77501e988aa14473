"""The web server under the MCP endpoint: uvicorn on the hub's own socket, with bounds that it lacks."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolhub_service.domain.call import Principal
from toolhub_service.guards.accepting import Accepted, Acceptor
from toolhub_service.guards.http_framing import HEAD_MAX_BYTES, RequestFraming, RequestRefused
from toolhub_service.mcp_server.caller import PRINCIPAL
from toolhub_service.mcp_server.endpoint import Endpoint
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.http.admission import (
    CLIENT_CHAIN,
    Admission,
    AdmissionTerms,
    Identify,
    Scope,
    refusal_body,
)
from toolhub_service.mcp_server.http.exchange import Exchange

_VERSION_HEADER: Final = b"mcp-protocol-version"
_KEEP_ALIVE_S: Final = 60
# All log text of the SDK and the web server could be chosen by a client.
for _name in ("mcp", "uvicorn", "uvicorn.error", "uvicorn.access", "sse_starlette"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class HttpTerms:
    admission: AdmissionTerms
    max_connections: int = 1_000
    head_s: float = 10.0
    """Timeout for the head of a request to arrive."""
    is_alone: bool = True
    """Whether no other process serves on the port: sessions of the older protocol live in one process."""
    tls: ssl.SSLContext | None = None


async def serve(engine: Engine, identify: Identify, terms: HttpTerms, bound: socket.socket) -> HttpServer:
    """Answer on the socket from now on."""
    endpoint = Endpoint(engine)
    endpoint.start()
    # Without the SDK's framework: the admission checks paths, hosts and sizes.
    sessions = StreamableHTTPSessionManager(
        endpoint.server,
        # Several workers on one port: the next request of a session may reach another process.
        stateless=not terms.is_alone,
        max_request_body_size=terms.admission.max_body_bytes,
        session_idle_timeout=terms.admission.session_idle_s,
        max_sessions=terms.admission.max_sessions,
    )
    exchange = Exchange(endpoint.server, sessions.handle_request)
    of_session = partial(_has_session, is_alone=terms.is_alone)
    admission = Admission(exchange, identify, invite, terms.admission, endpoint.session_ended, of_session)
    server = HttpServer(endpoint, sessions, admission, terms)
    await server.start(bound)
    return server


def _has_session(scope: Scope, *, is_alone: bool) -> bool:
    """Return whether the SDK looks up the session of such a request: by its first header of that name."""
    sent = next((value for name, value in scope["headers"] if name == _VERSION_HEADER), None)
    return is_alone and (sent is None or sent.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS)


def invite(scope: Scope, principal: Principal) -> None:
    """The SDK binds sessions of the older protocol to this user."""
    scope["user"] = AuthenticatedUser(AccessToken(token="verified", client_id=principal.id, scopes=[]))  # noqa: S106 - no secret


class HttpServer:
    def __init__(
        self, endpoint: Endpoint, sessions: StreamableHTTPSessionManager, admission: Admission, terms: HttpTerms
    ) -> None:
        self._endpoint = endpoint
        self._sessions = sessions
        self._admission = admission
        self._terms = terms
        self._server = _Uvicorn(_config(admission))
        self._acceptor: Acceptor | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        self._acceptor = Acceptor(
            [bound], self._connect, max_connections=self._terms.max_connections, first_byte_s=self._terms.head_s
        )
        self._running = asyncio.create_task(self._run(self._acceptor), name="MCP over HTTP")

    async def _run(self, acceptor: Acceptor) -> None:
        async with self._sessions.run():
            acceptor.start()
            try:
                await self._server.serve([])  # it gets connections, not a socket to accept them from
            finally:
                acceptor.close()

    async def _connect(self, accepted: Accepted) -> None:
        """Give a connection to the web server; it is closed when its handshake fails."""
        tls = self._terms.tls
        timeout_s = self._terms.head_s

        def protocol() -> BoundedProtocol:
            config = self._server.config
            state = self._server.server_state
            return BoundedProtocol(config, state, {}, accepted=accepted, head_s=timeout_s)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, accepted.socket, ssl=tls, ssl_handshake_timeout=None if tls is None else timeout_s
            )
        except OSError:
            accepted.end()
        except asyncio.CancelledError:  # another connection has its place, or the hub closes
            accepted.end()
            raise

    def open_now(self) -> tuple[int, int]:
        """(sessions of the older protocol, streams that only listen)."""
        now_s = asyncio.get_running_loop().time()
        return self._admission.sessions.count(now_s), self._admission.streams.taken

    async def close(self, grace_s: float) -> None:
        """Accept no more, let requests end for `grace_s`, then abort them."""
        self._admission.leave()
        self._endpoint.close()
        if self._acceptor is not None:
            self._acceptor.close()
        # uvicorn wants a whole number, and with 0 would abort requests before they can end.
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=grace_s + 5.0)
            self._running.cancel()
            await asyncio.wait({self._running})


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the hub handles signals."""
        yield


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # With `x-forwarded-for` anyone could choose the address under which refusals are counted.
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=2 * HEAD_MAX_BYTES,  # RequestFraming has the limit
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


class BoundedProtocol(H11Protocol):
    """One connection: its requests are framed before the parser sees them, one at a time; it tells the acceptor whether
    it is idle, and is closed when the head of a request takes too long."""

    def __init__(self, *server: Any, accepted: Accepted, head_s: float) -> None:
        super().__init__(*server)
        self._accepted = accepted
        self._head_s = head_s
        self._framing = RequestFraming()
        self._late: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._accepted.abort = transport.abort
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None and (chain := _shown_chain(encrypted)):
            self.app = _with_chain(self.app, chain)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            self._pass_on(self._framing.take, data)

    def on_response_complete(self) -> None:
        cycle: Any = self.cycle
        self._accepted.rest(is_known=PRINCIPAL in cycle.scope)
        super().on_response_complete()
        if self._framing.is_whole and not self.transport.is_closing():
            # Not at once: this connection's next request takes its turn after what others have sent.
            self.loop.call_soon(self._next_request)

    def _next_request(self) -> None:
        if not self.transport.is_closing():
            self._pass_on(self._framing.go_on)
            if not self._framing.is_whole:
                self.transport.resume_reading()

    def _pass_on(self, framed: Callable[..., bytes], *data: bytes) -> None:
        try:
            passed = framed(*data)
        except RequestRefused as refused:
            self._refuse(refused)
            return
        if passed:
            super().data_received(passed)
        cycle: Any = self.cycle  # None before the first request
        is_answered = cycle is not None and cycle.response_complete
        if passed and is_answered and self._framing.is_whole:
            self._end_answered_request()
            return
        if self._framing.is_whole and self._framing.held_bytes:
            self.transport.pause_reading()  # what follows waits in the kernel
        if cycle is not None and not is_answered:
            self._accepted.begin()
            self._stop_waiting()
        elif self._late is None and not self._framing.is_between:
            self._wait_for_head()  # also for the rest of a request that was answered before its end

    def _end_answered_request(self) -> None:
        """The rest of a request that was answered before its end, such as one without a valid key, has arrived: the
        connection is idle, and open for the next one."""
        self._stop_waiting()
        # uvicorn sets it only when a response ends.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self.loop.call_soon(self._next_request)

    def _refuse(self, refused: RequestRefused) -> None:
        """Answer, unless the answer to an earlier request is on its way, and close: what follows cannot be read."""
        self._is_refused = True
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = refusal_body(refused.message)
            head = f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.end()
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(self._head_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _shown_chain(encrypted: ssl.SSLObject) -> tuple[bytes, ...]:
    """Return the chain as PEM; empty where the client has presented no certificate.

    Before Python 3.13 only the client's own certificate can be read, so a CA that the hub trusts must have signed it.
    """
    own = encrypted.getpeercert(binary_form=True)
    if own is None:
        return ()
    sent: Any = getattr(encrypted, "get_unverified_chain", None)
    chain: list[bytes] = [own] if sent is None else sent()
    return tuple(ssl.DER_cert_to_PEM_cert(der).encode() for der in chain)


def _with_chain(app: Any, chain: tuple[bytes, ...]) -> Any:
    async def serve_with_chain(scope: Scope, receive: Any, send: Any) -> None:
        CLIENT_CHAIN.set(chain)  # each request is a task of its own
        await app(scope, receive, send)

    return serve_with_chain
