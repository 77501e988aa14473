"""Requests to one ComfyUI server, bounded in bytes and time, through the egress guard; redirects are never followed.

About a failed request callers need to know one thing: whether the server may have received it (`NoReply.was_sent`).
JSON that strict parsers refuse is repaired: servers write NaN and Infinity into descriptions of nodes, and halves of
characters into texts.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.upstream import retry_after_s
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.credentials.secret import CallerCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.breakage import WireError
from toolhub_service.guards.urls import parse_url
from toolhub_service.schema.repaired_json import Repaired, read_repaired

# The operator's configuration of ComfyUI servers, as plain values.

METHODS = frozenset({"GET", "POST"})
ALL_NETWORKS = ("0.0.0.0/0", "::/0")
"""An operator's own server may have any address; metadata services remain blocked, as none of these names them."""


@dataclass(frozen=True, slots=True)
class BackendTerms:
    """One server."""

    name: str
    url: str
    """Base URL, without credentials and without a slash at its end."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request; may hold credentials."""

    @property
    def rule(self) -> EgressRule:
        """Return a rule that allows egress to this server only. Raises ValueError for an invalid URL."""
        try:
            place = parse_url(self.url)
        except ToolFailure as wrong:
            raise ValueError(f"backend {self.name}: {wrong.error.message}") from wrong
        return EgressRule(
            (place.host,), frozenset({place.scheme}), frozenset({place.port}), METHODS, cidrs=ALL_NETWORKS
        )


@dataclass(frozen=True, slots=True)
class ComfyTerms:
    """A source: servers that all run the same templates."""

    name: str
    entry: ComfyUiSource
    backends: tuple[BackendTerms, ...]
    shown_as: str = ""
    """Shown instead of its URLs; empty: the URLs themselves."""

    @property
    def upstream(self) -> str:
        """Key of the breaker that its tools share: one for all backends, because a backend that is down is skipped
        here."""
        return f"comfyui:{self.name}"

    @property
    def endpoint(self) -> str:
        return self.shown_as or ", ".join(backend.url for backend in self.backends)


def backend_at(name: str, url: str, headers: Mapping[str, str]) -> BackendTerms:
    """Return the terms of a server. User and password of the URL become a header, unless the operator configures one.
    Raises ValueError."""
    parts = urlsplit(url)
    userinfo, at, place = parts.netloc.rpartition("@")
    named = {key.lower(): value for key, value in headers.items()}
    if at:
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        named = {"authorization": f"Basic {b64encode(pair).decode()}", **named}
    base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return BackendTerms(name, base, named)


ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
LISTS_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a queue or history, which contain whole graphs."""
# JSON of this size is parsed in a thread.
_LARGE_BYTES: Final = 256 * 1024
_TEXT_BYTES: Final = 4_000
# A whole answer may take this many times the read timeout.
_WHOLE_ANSWER: Final = 4


class NoReply(Exception):
    """No usable answer; `reason` is a clause for people, without foreign text."""

    def __init__(
        self, reason: str, *, was_sent: bool = True, retry_after_s: float = 0.0, is_broken: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
        """Whether the server may have acted on the request."""
        self.retry_after_s = retry_after_s
        self.is_broken = is_broken
        """Whether the connection broke or was not made, as during a restart of the server."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status below 500 (of `get`), or with any (of `post`)."""

    status: int
    body: Any
    """The JSON value; None when the body is not JSON."""
    text: str
    """The beginning of the body, for people."""
    retry_after_s: float = 0.0
    repairs: tuple[str, ...] = ()
    """What was repaired in its JSON."""

    @property
    def processing(self) -> Processing:
        """Return whether the server has processed the request."""
        return processing_of(self.status)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the JSON object; empty when the body is none."""
        return self.body if isinstance(self.body, dict) else {}


class Caller(Protocol):
    """The caller of a request, for servers that know callers by their own credentials."""

    async def credential(self) -> CallerCredential | None:
        """Return the credential; None where a caller without one is served as well. Raises ToolFailure."""

    async def renew(self, used: CallerCredential) -> CallerCredential | None:
        """Return a credential in place of one that the server refused; None: there is none. Raises ToolFailure."""

    def refusal(self) -> ToolFailure: ...


class NoCookies(CookieJar):
    """Stores no cookies."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Leave the cookies in the response."""


class ComfyClient:
    """Client of one server; `http` is shared and belongs to the source."""

    def __init__(
        self,
        terms: BackendTerms,
        http: httpx.AsyncClient,
        *,
        read_timeout_s: float,
        redact: Callable[[str], str] = str,
        caller: Caller | None = None,
    ) -> None:
        """`redact` is for code that truncates what the server says."""
        self.name = terms.name
        self.redact = redact
        self.terms = terms
        self._http = http
        self._fields = {**terms.headers, "accept": "*/*", "accept-encoding": "identity"}
        self._answer_s = read_timeout_s * _WHOLE_ANSWER
        self.parsing = asyncio.Semaphore(1)
        self._caller = caller

    def by(self, caller: Caller) -> ComfyClient:
        """Return the same client with the caller's credential on its requests."""
        read_timeout_s = self._answer_s / _WHOLE_ANSWER
        other = ComfyClient(self.terms, self._http, read_timeout_s=read_timeout_s, redact=self.redact, caller=caller)
        other.parsing = self.parsing
        return other

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, max_bytes: int = ANSWER_MAX_BYTES
    ) -> Reply:
        """Raises NoReply, also for 5xx, 429 and what a proxy answers: a GET changes nothing, so it can be repeated."""
        reply = await self._read_reply("GET", path, params=params, max_bytes=max_bytes)
        is_answered = reply.processing is Processing.ANSWERED
        if reply.status >= httpx.codes.INTERNAL_SERVER_ERROR or not is_answered:
            # While a server is down, a proxy answers for it.
            is_broken = not is_answered and reply.status != httpx.codes.TOO_MANY_REQUESTS
            raise NoReply(f"it answered {reply.status}", retry_after_s=reply.retry_after_s, is_broken=is_broken)
        return reply

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Raises NoReply."""
        content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        return await self._read_reply("POST", path, content=content, fields={"content-type": "application/json"})

    async def post_stream(
        self, path: str, content: Callable[[], AsyncIterator[bytes]], fields: Mapping[str, str]
    ) -> Reply:
        """Raises NoReply, and any exception of `content`, which is called for each attempt to send."""
        return await self._read_reply("POST", path, content=content, fields=fields)

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Yield a response whose body is read inside the block, by `aiter_raw`. Raises NoReply."""
        with _errors_as_no_reply():
            response = await self._response("GET", path, params=params)
            try:
                yield response
            finally:
                await response.aclose()

    async def _response(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Return the response, its body not read yet. Raises ToolFailure where the server rejects the caller's
        credential."""
        caller = self._caller
        used = await caller.credential() if caller is not None else None
        response = await self._send(method, path, used, **more)
        if caller is None or used is None or response.status_code != httpx.codes.UNAUTHORIZED:
            return response
        # A server answers 401 before it processes the request, so nothing runs twice.
        await response.aclose()
        other = await caller.renew(used)
        if other is None:
            raise caller.refusal()
        response = await self._send(method, path, other, **more)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            await response.aclose()
            raise caller.refusal()
        return response

    async def _send(
        self,
        method: str,
        path: str,
        credential: CallerCredential | None,
        *,
        fields: Mapping[str, str] | None = None,
        content: bytes | Callable[[], AsyncIterator[bytes]] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        headers = {**self._fields, **(fields or {})}
        if credential is not None:
            headers = {
                name: value for name, value in headers.items() if name not in ("authorization", credential.header)
            }
            headers[credential.header] = credential.value
        body = content() if callable(content) else content
        request = self._http.build_request(method, self.terms.url + path, headers=headers, content=body, params=params)
        return await self._http.send(request, stream=True)

    async def _read_reply(self, method: str, path: str, *, max_bytes: int = ANSWER_MAX_BYTES, **more: Any) -> Reply:
        try:
            with _errors_as_no_reply():
                async with asyncio.timeout(self._answer_s):
                    response = await self._response(method, path, **more)
                    try:
                        data = await _whole(response, max_bytes)
                    finally:
                        await response.aclose()
        except TimeoutError:
            raise NoReply("its response did not finish in time") from None
        if len(data) <= _LARGE_BYTES:
            read = _parse_json(data)
        else:
            # One at a time, because empty lists take twenty times the memory of their text.
            async with self.parsing:
                read = await in_thread(_parse_json, data)
        text = data[:_TEXT_BYTES].decode("utf-8", "replace")
        waits_s = retry_after_s(response.headers.get("retry-after"))
        return Reply(response.status_code, read.value, text, waits_s, read.remarks)


@contextmanager
def _errors_as_no_reply() -> Iterator[None]:
    """Raises NoReply for network errors."""
    try:
        yield
    except WireError as error:
        raise NoReply(error.clause, was_sent=error.was_sent, is_broken=True) from error
    except httpx.HTTPError as error:
        raise NoReply("its response is not valid HTTP") from error
    except ToolFailure as error:
        if error.error.kind is not ErrorKind.HTTP_DISALLOWED_HOST:
            raise
        raise NoReply("its host resolves to a forbidden address", was_sent=False) from error


async def _whole(response: httpx.Response, max_bytes: int) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > max_bytes:
            raise NoReply(f"its response is larger than {max_bytes:,} bytes")
    return bytes(data)


def _parse_json(data: bytes) -> Repaired:
    return read_repaired(data) or Repaired(None)
