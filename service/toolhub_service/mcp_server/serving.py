"""The web server under the MCP endpoint: uvicorn on the hub's own socket, with bounds that it lacks."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Any, Final

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolhub_service.domain.call import Principal
from toolhub_service.mcp_server.admission import CLIENT_CHAIN, PRINCIPAL, Admission, AdmissionTerms, Identify, Scope
from toolhub_service.mcp_server.endpoint import Endpoint
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.exchange import Exchange

_VERSION_HEADER: Final = b"mcp-protocol-version"
_HEAD_BYTES: Final = 32 * 1024
_KEEP_ALIVE_S: Final = 60
_PLACES: Final = 8
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
        self._server = _Uvicorn(_config(admission, terms))
        self._running: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        self._running = asyncio.create_task(self._run(bound), name="MCP over HTTP")

    async def _run(self, bound: socket.socket) -> None:
        async with self._sessions.run():
            await self._server.serve([bound])

    def open_now(self) -> tuple[int, int]:
        """(sessions of the older protocol, streams that only listen)."""
        now_s = asyncio.get_running_loop().time()
        return self._admission.sessions.count(now_s), self._admission.streams.taken

    async def close(self, grace_s: float) -> None:
        """Accept no more, let requests end for `grace_s`, then abort them."""
        self._admission.leave()
        self._endpoint.close()
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


def _config(app: Any, terms: HttpTerms) -> uvicorn.Config:
    tls = terms.tls

    class Bounded(BoundedProtocol):
        max_connections = terms.max_connections
        head_s = terms.head_s

    return uvicorn.Config(
        app,
        http=Bounded,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # With `x-forwarded-for` anyone could choose the address under which refusals are counted.
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_context_factory=None if tls is None else lambda _, __: tls,
    )


class BoundedProtocol(H11Protocol):
    """Adds a bound on connections, and a timeout for the head of a request.

    A connection beyond the bound replaces an idle one: first an unauthenticated one, then the one that has been idle
    longest. When all are busy the new one is closed.
    """

    max_connections = 1_000
    head_s = 10.0
    _late: asyncio.TimerHandle | None = None
    last_used_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None and (chain := _shown_chain(encrypted)):
            self.app = _with_chain(self.app, chain)
        self.last_used_s = self.loop.time()
        if len(self.connections) > self.max_connections and not self._evict_idle():
            transport.abort()
            return
        self._wait_for_head()

    def _evict_idle(self) -> bool:
        """Several at a time, so that in a flood few connections search for one."""
        others = [each for each in self.connections if isinstance(each, BoundedProtocol) and each is not self]
        idle = [each for each in others if each.is_idle]
        for each in nsmallest(_PLACES, idle, key=lambda each: (each.is_known, each.last_used_s)):
            each.transport.abort()
        return bool(idle)

    @property
    def is_idle(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    @property
    def is_known(self) -> bool:
        """Return whether its last request was of an admitted caller."""
        cycle: Any = self.cycle
        return cycle is not None and PRINCIPAL in cycle.scope

    def data_received(self, data: bytes) -> None:
        self.last_used_s = self.loop.time()
        super().data_received(data)
        if not self.is_idle:
            self._stop_waiting()
        elif self._late is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(self.head_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


def _shown_chain(encrypted: ssl.SSLObject) -> tuple[bytes, ...]:
    """PEM; empty where the client has shown no certificate. Before Python 3.13 what it sent besides its own cannot be
    had: then a CA that the hub trusts has to have signed that one itself."""
    own = encrypted.getpeercert(binary_form=True)
    if own is None:
        return ()
    sent: Any = getattr(encrypted, "get_unverified_chain", None)
    chain: list[bytes] = [own] if sent is None else sent()
    return tuple(ssl.DER_cert_to_PEM_cert(der).encode() for der in chain)


def _with_chain(app: Any, chain: tuple[bytes, ...]) -> Any:
    async def known(scope: Scope, receive: Any, send: Any) -> None:
        CLIENT_CHAIN.set(chain)  # each request is a task of its own
        await app(scope, receive, send)

    return known
