"""The MCP endpoint on the hub's own socket: who is accepted, and which application answers."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from toolhub_service.domain.call import Principal
from toolhub_service.guards.accepting import Accepted, Acceptor
from toolhub_service.mcp_server.endpoint import Endpoint
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.http.admission import Admission, AdmissionTerms, Identify, Scope
from toolhub_service.mcp_server.http.connection import Connections
from toolhub_service.mcp_server.http.exchange import Exchange

_VERSION_HEADER: Final = b"mcp-protocol-version"
# Streams that only listen end by themselves within it.
_GRACE_MIN_S: Final = 1.0
# All log text of the SDK could be chosen by a client.
for _name in ("mcp", "sse_starlette"):
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
        self._connections = Connections(admission, terms.head_s)
        self._acceptor: Acceptor | None = None
        self._running: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._grace_s = _GRACE_MIN_S

    async def start(self, bound: socket.socket) -> None:
        self._acceptor = Acceptor(
            [bound], self._connect, max_connections=self._terms.max_connections, first_byte_s=self._terms.head_s
        )
        self._running = asyncio.create_task(self._run(self._acceptor), name="MCP over HTTP")

    async def _run(self, acceptor: Acceptor) -> None:
        async with self._sessions.run():
            acceptor.start()
            try:
                await self._leaving.wait()
            finally:
                acceptor.close()
                await self._connections.close(self._grace_s)

    async def _connect(self, accepted: Accepted) -> None:
        """Serve a connection; it is closed when its handshake fails."""
        tls = self._terms.tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._connections.add, accepted),
                accepted.socket,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._terms.head_s,
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
        self._grace_s = max(_GRACE_MIN_S, grace_s)
        self._leaving.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=self._grace_s + 5.0)
            self._running.cancel()
            await asyncio.wait({self._running})
