"""Requests to one n8n server, and to nothing else: judged, dialled and bounded by the egress guard.

Only the origin of the operator's URL may be reached, whatever networks it stands in. Redirects are not followed, no
cookie is kept, and nothing of the environment has an effect. A request is sent once: on a kept connection that turns
out to be dead nobody can tell whether it was taken. Connections are given up before n8n does so (Node: after 5 s idle).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

import httpx

from toolhub_service import __version__
from toolhub_service.adapters.client_tls import TlsTerms, client_context
from toolhub_service.adapters.n8n.terms import N8nTerms
from toolhub_service.domain.constraints import EgressRule
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.urls import judge_url, parse_url
from toolhub_service.tools.egress.body import BoundedBody, decoder_of
from toolhub_service.tools.egress.breakage import WireError
from toolhub_service.tools.egress.transport import GuardedTransport, judged_as

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")
_CONNECTIONS_MAX: Final = 100
_KEEP_ALIVE_S: Final = 4.0
_WRITE_S: Final = 30.0
LARGE_BYTES: Final = 64 * 1024
"""Of an answer that is read in a thread: of what a workflow says nobody knows how large it is."""
_FIELDS: Final = (("user-agent", f"tool-hub/{__version__}"), ("accept", "*/*"), ("accept-encoding", "gzip"))


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a field that was sent twice the first."""
    body: bytes
    is_cut: bool = False
    """Whether there was more than may be read."""


class NoReply(Exception):
    """There is no answer. `reason` is a sentence for people."""

    def __init__(self, reason: str, *, was_sent: bool, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        """Whether the server may have got the request."""
        self.is_late = is_late
        """Whether time ran out."""


class N8nClient:
    """The way to one server."""

    def __init__(self, terms: N8nTerms, resolver: Resolver) -> None:
        """Raises ToolFailure for a URL that cannot be used, OSError or ValueError for certificates that cannot."""
        origin = parse_url(terms.url)
        self._rules = (
            EgressRule(
                hosts=(origin.host,),
                schemes=frozenset({origin.scheme}),
                ports=frozenset({origin.port}),
                methods=_METHODS,
                cidrs=_ANY_NETWORK,
            ),
        )
        self._origin = httpx.URL(f"{origin.scheme}://{origin.authority}")
        self._max_bytes = terms.max_response_bytes
        self._timeouts = {"connect": terms.connect_timeout_s, "read": None, "write": _WRITE_S, "pool": None}
        self._transport = GuardedTransport(
            resolver,
            tls=_context(terms.tls, origin.scheme),
            max_connections=_CONNECTIONS_MAX,
            keep_alive_s=_KEEP_ALIVE_S,
        )
        self.is_closed = False

    async def send(
        self, method: str, url: str, headers: Headers = (), body: bytes = b"", *, deadline_s: float = inf
    ) -> Reply:
        """One request and its whole answer. Raises NoReply; ToolFailure for an address that may not be reached."""
        if self.is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The source has been closed.")
        judged = judge_url(url, method, self._rules)
        extensions = {**judged_as(judged), "timeout": self._timeouts}
        request = httpx.Request(method, self._origin, headers=[*_FIELDS, *headers], content=body, extensions=extensions)
        try:
            async with asyncio.timeout_at(None if deadline_s == inf else deadline_s):
                return await self._answer(request)
        except TimeoutError:
            raise NoReply("It did not answer in time.", was_sent=True, is_late=True) from None
        except WireError as error:
            raise _broken(error) from None

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            await self._transport.aclose()

    async def _answer(self, request: httpx.Request) -> Reply:
        response = await self._transport.handle_async_request(request)
        try:
            headers: dict[str, str] = {}
            for name, value in response.headers.raw:
                headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
            body = _body(response, headers.get("content-encoding", ""), self._max_bytes)
            data = await body.whole()
            return Reply(response.status_code, headers, data, body.is_cut)
        finally:
            await response.aclose()


def _body(response: httpx.Response, encoding: str, max_bytes: int) -> BoundedBody:
    chunks = response.aiter_raw()

    async def pull() -> bytes:
        return await anext(chunks, b"")

    return BoundedBody(decoder_of(encoding, pull), max_bytes)


def _broken(error: WireError) -> NoReply:
    reason = error.clause
    return NoReply(f"{reason[:1].upper()}{reason[1:]}.", was_sent=error.was_sent)


def _context(tls: TlsTerms, scheme: str) -> ssl.SSLContext | None:
    """None: as everything else in the hub verifies servers. Where TLS is never spoken, one that trusts nobody."""
    if scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not (tls.ca_file or tls.certificate_file):
        return None
    return client_context(tls)


def refused_url(failure: ToolFailure) -> ValueError:
    """What keeps a URL of the operator from being used, for whoever opens the source."""
    return ValueError(f"its `url` cannot be used: {failure.error.message}")
