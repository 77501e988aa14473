"""Requests to one n8n server only: checked, connected and bounded by the egress guard.

Only the origin of the operator's URL may be reached, in whatever network. Redirects are not followed, no cookie is
stored, and the environment has no effect. A request is sent once: if a kept connection turns out to be dead, it is
unknown whether the request arrived. So connections are closed before n8n closes them (Node: after 5 s idle).
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import ssl
from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

import httpx

from toolhub_service import __version__
from toolhub_service.adapters import upstream
from toolhub_service.adapters.n8n.kind import N8nSource
from toolhub_service.adapters.upstream import CHECKED_CHARS, EXCERPT_MAX_CHARS, client_context
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.bodies import BoundedBody, decoder_of
from toolhub_service.egress.breakage import Delivery, WireError
from toolhub_service.egress.transport import GuardedTransport, checked_extensions
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secrets import Redact
from toolhub_service.guards.urls import check_url, parse_url
from toolhub_service.sections.source_config import ClientTls

# n8n's own errors contain `stacktrace` and `hint`; errors of nodes contain `stack` and the parameters of the node.
# These and paths of its machine are removed before n8n's text is passed on, redacted and truncated.

MESSAGE_MAX_CHARS: Final = 500
_TRACES: Final = frozenset({"stacktrace", "stack", "hint"})
_MEMBERS_MAX: Final = 50
_DEPTH_MAX: Final = 4
_STACK: Final = re.compile(r"\n[ \t]+at .*", re.DOTALL)
_PLACE: Final = re.compile(
    r"(?<![\w/.:])(?:file://)?(?:/(?:app|data|etc|home|mnt|opt|root|srv|tmp|usr|var)|[A-Za-z]:\\)[^\s'\"()<>,;]*"
)
_TAGS: Final = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)


def quote_foreign(text: str, redact: Redact, max_chars: int = EXCERPT_MAX_CHARS) -> str:
    """Return foreign text: redacted, printable, without stack traces and paths, at most so many characters."""
    plain = _PLACE.sub("[path]", _STACK.sub("", text[:CHECKED_CHARS]))
    return upstream.quote_foreign(plain, redact, max_chars)


def message_of(body: bytes) -> tuple[str, JsonValue]:
    """Return the message or the text of an error answer, not redacted, and its JSON value if it has one."""
    text = body[:CHECKED_CHARS].decode("utf-8", "replace")
    value: JsonValue = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            # A truncated body does not parse, and is used as text.
            value = json.loads(body[: 8 * CHECKED_CHARS])
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Mapping) and isinstance(value.get("message"), str):
        return str(value["message"]), value
    # An error of another shape is shown as a whole, without the members that describe n8n's machine.
    if value is not None:
        return json.dumps(_without_traces(value, _DEPTH_MAX), ensure_ascii=False), value
    if "<" in text and text.lstrip()[:1] == "<":
        return " ".join(html.unescape(_TAGS.sub(" ", text)).split()), None
    return text, None


def _without_traces(value: JsonValue, levels: int) -> JsonValue:
    if isinstance(value, Mapping):
        if not levels:
            return "…"
        members = [(name, member) for name, member in value.items() if name.lower() not in _TRACES]
        return {name: _without_traces(member, levels - 1) for name, member in members[:_MEMBERS_MAX]}
    if isinstance(value, list):
        return [_without_traces(item, levels - 1) for item in value[:_MEMBERS_MAX]] if levels else "…"
    return value


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")
_CONNECTIONS_MAX: Final = 100
_KEEP_ALIVE_S: Final = 4.0
_WRITE_S: Final = 30.0
LARGE_BYTES: Final = 64 * 1024
"""Size of an answer that is parsed in a thread, as a workflow's answer may have any size."""
_FIELDS: Final = (("user-agent", f"tool-hub/{__version__}"), ("accept", "*/*"), ("accept-encoding", "gzip"))


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a repeated field the first."""
    body: bytes
    is_cut: bool = False
    """Whether there was more than may be read."""


class NoReply(Exception):
    """There is no answer. `reason` is a sentence for people."""

    def __init__(self, reason: str, *, was_sent: bool, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        """Whether the server may have received the request."""
        self.is_late = is_late
        """Whether time ran out."""


class N8nClient:
    """Sends requests to one server only."""

    def __init__(self, url: str, entry: N8nSource, resolver: Resolver) -> None:
        """Raises ToolFailure for a URL that cannot be used, OSError or ValueError for certificates that cannot."""
        origin = parse_url(url)
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
        self._max_bytes = entry.max_response_bytes
        # Reading is bounded by the deadline of each request, because a workflow may take as long as its call.
        self._timeouts = {"connect": entry.connect_timeout_s, "read": None, "write": _WRITE_S, "pool": None}
        self._transport = GuardedTransport(
            resolver,
            tls=_context(entry.tls, origin.scheme),
            max_connections=_CONNECTIONS_MAX,
            keep_alive_s=_KEEP_ALIVE_S,
        )
        self.is_closed = False

    async def send(
        self, method: str, url: str, headers: Headers = (), body: bytes = b"", *, deadline_s: float = inf
    ) -> Reply:
        """Send one request and return its whole answer. Raises NoReply; ToolFailure for an address that may not be
        reached."""
        if self.is_closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The source has been closed.")
        checked, delivery = check_url(url, method, self._rules), Delivery()
        extensions = {**checked_extensions(checked, delivery), "timeout": self._timeouts}
        request = httpx.Request(method, self._origin, headers=[*_FIELDS, *headers], content=body, extensions=extensions)
        try:
            async with asyncio.timeout_at(None if deadline_s == inf else deadline_s):
                return await self._request_reply(request)
        except TimeoutError:
            raise NoReply("It did not answer in time.", was_sent=delivery.was_sent, is_late=True) from None
        except WireError as error:
            raise NoReply(f"{error.clause[:1].upper()}{error.clause[1:]}.", was_sent=error.was_sent) from None

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            await self._transport.aclose()

    async def _request_reply(self, request: httpx.Request) -> Reply:
        response = await self._transport.handle_async_request(request)
        try:
            headers: dict[str, str] = {}
            for name, value in response.headers.raw:
                # The first of a repeated header counts.
                headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
            chunks = response.aiter_raw()

            async def pull() -> bytes:
                return await anext(chunks, b"")

            body = BoundedBody(decoder_of(headers.get("content-encoding", ""), pull), self._max_bytes)
            data = await body.whole()
            return Reply(response.status_code, headers, data, body.is_cut)
        finally:
            await response.aclose()


def _context(tls: ClientTls, scheme: str) -> ssl.SSLContext | None:
    """Return None for the hub's usual verification of servers; where TLS is never used, a context that trusts
    nobody."""
    if scheme == "http":
        # Never used over http, so the system's certificates are not loaded.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not (tls.ca_file or tls.certificate_file):
        return None
    return client_context(tls)
