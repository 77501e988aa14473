"""Requests to one n8n server, and to nothing else: judged, dialled and bounded by the egress guard.

Only the origin of the operator's URL may be reached, whatever networks it stands in. Redirects are not followed, no
cookie is kept, and nothing of the environment has an effect. A request is sent once: on a kept connection that turns
out to be dead nobody can tell whether it was taken. Connections are given up before n8n does so (Node: after 5 s idle).
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple

import httpx

from toolhub_service import __version__
from toolhub_service.adapters.source_config import NO_TLS_FILES, ClientTls
from toolhub_service.adapters.upstream import client_context
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Resolver
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secrets import Redact
from toolhub_service.guards.urls import judge_url, parse_url
from toolhub_service.tools.egress.transport import GuardedTransport, judged_as
from toolhub_service.tools.egress.wire import BoundedBody, WireError, decoder_of

WITHOUT_BODY = frozenset({"GET", "DELETE"})
"""Methods whose arguments go into the query."""


@dataclass(frozen=True, slots=True)
class FailureSign:
    """What in a result means that the workflow has not done what it was asked to."""

    at: str
    """JSON Pointer into the result."""
    equals: JsonValue = None
    """The value there that means failure; None: anything but null, false and empty."""
    message: str = ""
    """JSON Pointer to what the caller is told; empty: a general text."""


@dataclass(frozen=True, slots=True)
class WorkflowTerms:
    """One workflow, by the path of its webhook or by its id."""

    description: str = ""
    webhook: str = ""
    """Below `/webhook/`; empty: looked up by `workflow_id`."""
    workflow_id: str = ""
    method: str = "POST"
    is_async: bool = False
    """Whether the answer names an execution that goes on, instead of being the result."""
    execution_id: str = "/executionId"
    """JSON Pointer into the answer."""
    input_schema: JsonObject | None = None
    """None: any object."""
    output_schema: JsonObject = field(default_factory=dict)
    version: str = "1.0.0"
    headers: Headers = field(default=(), repr=False)
    """All that its calls are sent with besides the hub's own."""
    idempotency_field: str = ""
    derived_key: bool = True
    deduplicates: bool = False
    fails_when: tuple[FailureSign, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveryTerms:
    tags: tuple[str, ...] = ()
    """Only workflows that bear all of them."""
    mode: Literal["auto", "sync", "async"] = "auto"


@dataclass(frozen=True, slots=True)
class N8nTerms:
    """One server."""

    name: str
    """Of the source."""
    url: str
    """Base, without a slash at its end."""
    api_key: str = field(default="", repr=False)
    headers: Headers = field(default=(), repr=False)
    """Sent to webhooks of discovered workflows."""
    workflows: Mapping[str, WorkflowTerms] = field(default_factory=dict)
    discover: DiscoveryTerms | None = None
    api_path: str = "/api/v1"
    webhook_path: str = "/webhook"
    tls: ClientTls = NO_TLS_FILES
    connect_timeout_s: float = 10.0
    max_response_bytes: int = 8 * 1024 * 1024
    capabilities: tuple[str, ...] = ()
    """What a principal must hold to call its tools; empty: `n8n:<name>`."""
    tags: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_concurrency: int = 0
    shown_as: str = ""
    """What stands for its URL wherever that is shown; empty: the URL itself."""

    @property
    def upstream(self) -> str:
        """Key of the breaker and the concurrency limit that its tools share."""
        return f"n8n:{self.name}"


# n8n's own errors carry `stacktrace` and `hint`; errors of nodes carry `stack` and the parameters of the node. These
# and paths of its machine are removed before n8n's words are passed on, redacted and cut.

EXCERPT_MAX_CHARS: Final = 2_000
MESSAGE_MAX_CHARS: Final = 500
_JUDGED_CHARS: Final = 8_000
"""What the redactor sees: more than is shown, so that no secret straddles the cut."""
_TRACES: Final = frozenset({"stacktrace", "stack", "hint"})
_MEMBERS_MAX: Final = 50
_DEPTH_MAX: Final = 4
_STACK: Final = re.compile(r"\n[ \t]+at .*", re.DOTALL)
_PLACE: Final = re.compile(
    r"(?<![\w/.:])(?:file://)?(?:/(?:app|data|etc|home|mnt|opt|root|srv|tmp|usr|var)|[A-Za-z]:\\)[^\s'\"()<>,;]*"
)
_TAGS: Final = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)


def quoted(text: str, redact: Redact, max_chars: int = EXCERPT_MAX_CHARS) -> str:
    """Somebody else's words: redacted, printable, without traces and paths, at most so many characters."""
    plain = _PLACE.sub("[path]", _STACK.sub("", text[:_JUDGED_CHARS]))
    clean = redact(plain)
    shown = "".join(char if char.isprintable() or char in "\n\t" else " " for char in clean).strip()
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


def said(body: bytes) -> tuple[str, JsonValue]:
    """What an error answer says, before it is redacted: its message or its text, and its JSON where it is some."""
    text = body[:_JUDGED_CHARS].decode("utf-8", "replace")
    value: JsonValue = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(body[: 8 * _JUDGED_CHARS])
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Mapping) and isinstance(value.get("message"), str):
        return str(value["message"]), value
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
    """Sends requests to one server, and to nothing else."""

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


def _context(tls: ClientTls, scheme: str) -> ssl.SSLContext | None:
    """None: as everything else in the hub verifies servers. Where TLS is never spoken, one that trusts nobody."""
    if scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not (tls.ca_file or tls.certificate_file):
        return None
    return client_context(tls)


def refused_url(failure: ToolFailure) -> ValueError:
    """What keeps a URL of the operator from being used, for whoever opens the source."""
    return ValueError(f"its `url` cannot be used: {failure.error.message}")
