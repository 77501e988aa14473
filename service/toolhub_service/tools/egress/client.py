"""Outgoing requests under egress rules: each hop is checked and limited in time, with typed failures.

One client for the process, by httpx through `GuardedTransport`. Redirects are followed here, at most five, each checked
as a new request; https never leads to http; fields that may be credentials never cross an origin (RFC 9110 §15.4).
Proxies, certificates and credentials of the environment have no effect; no cookie is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookiejar import CookieJar

import httpx
import msgspec

from toolhub_service import __version__
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.guards.headers import Headers, bodiless_headers, cross_origin_headers
from toolhub_service.guards.urls import CheckedUrl, check_url, join_url
from toolhub_service.tools.egress.transport import GuardedTransport, address_of, checked_as
from toolhub_service.tools.egress.wire import (
    REPEATABLE,
    BoundedBody,
    Repeat,
    WireError,
    decoder_of,
    failure_of,
    out_of_time,
)

# The target of a redirect is checked like a first request (RFC 9110 §15.4).

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
IDEMPOTENCY_KEY = "idempotency-key"
"""The header of draft-ietf-httpapi-idempotency-key-header."""


class Hop(msgspec.Struct, frozen=True):
    """One request of a chain."""

    url: CheckedUrl
    method: str
    headers: Headers
    body: bytes
    is_keyed: bool = False
    """Whether it carries the call's idempotency key, to a host that honours it according to policy."""

    @property
    def repeat(self) -> Repeat:
        if self.method in REPEATABLE:
            return Repeat.READS
        return Repeat.KEYED if self.is_keyed else Repeat.NEVER


def first_hop(request: HttpRequest, egress: tuple[EgressRule, ...]) -> Hop:
    """Return the request as it is sent. Raises ToolFailure HTTP_DISALLOWED_HOST or INVALID_INPUT."""
    url, headers = check_url(request.url, request.method, egress), request.headers
    is_keyed = bool(request.idempotency_key) and url.retry_with_key and request.method not in REPEATABLE
    if is_keyed and all(name != IDEMPOTENCY_KEY for name, _ in headers):
        # A string of a structured field (RFC 8941): no character of a key needs escaping in it.
        headers = (*headers, (IDEMPOTENCY_KEY, f'"{request.idempotency_key}"'))
    return Hop(url, request.method, headers, request.body, is_keyed)


def repeat_of(hops: Sequence[Hop]) -> Repeat:
    """Return whether an exchange may be repeated: only if each of its requests may."""
    every = {hop.repeat for hop in hops}
    return next((repeat for repeat in (Repeat.NEVER, Repeat.KEYED) if repeat in every), Repeat.READS)


def next_hop(hop: Hop, status: int, location: str, egress: tuple[EgressRule, ...]) -> Hop | None:
    """Return the request that a redirect asks for; None when the response is no redirect.

    Raises: ToolFailure: HTTP_DISALLOWED_HOST when the target is refused or leads from https to http.
    """
    if status not in _REDIRECTS or not location:
        return None
    method = hop.method
    # RFC 9110 §15.4.2 and §15.4.3 allow this for POST, because browsers have always done so.
    if (status == 303 and method != "HEAD") or (status in {301, 302} and method == "POST"):
        method = "GET"
    try:
        url = check_url(join_url(hop.url, location), method, egress)
    except ToolFailure as failure:
        raise _refused(hop, failure.error.message, failure.error.details.get("host")) from None
    if hop.url.scheme == "https" and url.scheme == "http":
        raise _refused(hop, "It redirects from https to http.", url.host)
    headers = hop.headers if url.origin == hop.url.origin else cross_origin_headers(hop.headers)
    if method == hop.method:
        is_keyed = hop.is_keyed and url.retry_with_key and any(name == IDEMPOTENCY_KEY for name, _ in headers)
        return Hop(url, method, headers, hop.body, is_keyed)
    return Hop(url, method, bodiless_headers(headers), b"")


def _refused(hop: Hop, reason: str, host: object) -> ToolFailure:
    return refuse(
        ErrorKind.HTTP_DISALLOWED_HOST,
        f"{hop.url.host} redirects to a URL that is not allowed. {reason}",
        host=host if isinstance(host, str) else "",
        redirected_from=hop.url.host,
    )


USER_AGENT = f"tool-hub/{__version__}"
_DEAD_CONNECTIONS_MAX = 3
_FIELDS = "toolhub.fields"


class HttpRequest(msgspec.Struct, frozen=True):
    """What to request. Only the headers have been checked."""

    url: str
    method: str = "GET"
    headers: Headers = ()
    """From `check_request_headers`."""
    body: bytes = b""
    accept: str = "*/*"
    accept_encoding: str = "gzip"
    """`gzip` or `identity`."""
    idempotency_key: str = ""
    """The call's key; sent, unless a header of that name exists, if the method may change something and the egress rule
    says that the host honours it."""


@dataclass(slots=True)
class HttpResponse:
    """The answer of the last hop; its body is read piece by piece within limits."""

    url: CheckedUrl
    method: str
    status: int
    headers: list[tuple[bytes, bytes]]
    """As sent, names in lower case."""
    address: str
    """The literal address of the connection."""
    redirects: tuple[CheckedUrl, ...]
    """The URLs that led here, first to last; empty without redirects."""
    repeat: Repeat
    """Whether the whole exchange may be repeated."""
    answer: httpx.Response = field(repr=False)

    def header(self, name: bytes) -> str:
        """Return a field's value, several joined by commas; empty when absent. `name` in lower case."""
        return ", ".join(value.decode("latin-1") for known, value in self.headers if known == name)

    @property
    def announced_bytes(self) -> int | None:
        """Return the Content-Length of a body that is not encoded; None when there is no reliable one."""
        length = self.header(b"content-length")
        return int(length) if length.isdecimal() and not self.header(b"content-encoding") else None

    def body(self, max_bytes: int) -> BoundedBody:
        """Return the decoded body, at most `max_bytes`. Call it once per response. Reading raises WireError, which
        `open` converts."""
        chunks = self.answer.aiter_raw()

        async def pull() -> bytes:
            return await anext(chunks, b"")

        return BoundedBody(decoder_of(self.header(b"content-encoding"), pull), max_bytes)

    async def beginning(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` of the body, for an error message; empty when it cannot be read."""
        try:
            return await self.body(max_bytes).whole()
        except WireError:
            return b""


class EgressClient:
    """The one HTTP client."""

    def __init__(
        self,
        transport: GuardedTransport,
        *,
        user_agent: str = USER_AGENT,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 30.0,
        redirects_max: int = 5,
    ) -> None:
        """`idle_timeout_s`: seconds for which a server that should answer may send nothing."""
        self._user_agent = user_agent
        self._redirects_max = redirects_max
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(idle_timeout_s, connect=connect_timeout_s, pool=None),
            cookies=_NoCookies(),
            event_hooks={"response": [_take_fields]},
        )
        # httpx's own defaults (such as Accept-Encoding: br) would request what is refused here.
        self._http.headers.clear()

    async def aclose(self) -> None:
        """Close the transport with its idle connections; connections in use are closed when their exchange ends."""
        await self._http.aclose()

    @asynccontextmanager
    async def open(
        self, request: HttpRequest, egress: tuple[EgressRule, ...], *, deadline_s: float, fair_s: float = 0.0
    ) -> AsyncIterator[HttpResponse]:
        """Send the request, follow redirects and yield the response; the body is read inside the block.

        `deadline_s` (loop clock) ends the whole block; if it is less than `fair_s` from now, a timeout is not blamed on
        the upstream. Leaving the block keeps the connection when the exchange is complete and closes it at once
        otherwise.

        Raises: ToolFailure: HTTP_DISALLOWED_HOST or INVALID_INPUT when a hop is refused; HTTP_TIMEOUT; NETWORK_ERROR;
        UPSTREAM_ERROR when the answer is not HTTP or not decodable.
        """
        hops = [first_hop(request, egress)]
        first = hops[0].url
        started_s = asyncio.get_running_loop().time()
        clock = asyncio.timeout_at(deadline_s)
        try:
            async with clock:
                response = await self._follow(hops, request, egress)
                try:
                    yield response
                finally:
                    await response.answer.aclose()
        except WireError as error:
            repeat = repeat_of(hops)
            raise failure_of(error, request.method, first, repeat, blames_upstream=_is_at_home(hops)) from None
        except TimeoutError:
            if not clock.expired():
                raise
            given_s = deadline_s - started_s
            blames = given_s >= fair_s and _is_at_home(hops)
            raise out_of_time(request.method, first, given_s, repeat_of(hops), blames_upstream=blames) from None

    async def _follow(self, hops: list[Hop], request: HttpRequest, egress: tuple[EgressRule, ...]) -> HttpResponse:
        """Return the last response; each request is appended to `hops`."""
        while len(hops) <= self._redirects_max + 1:
            response = await self._exchange(hops, request)
            try:
                following = next_hop(hops[-1], response.status, response.header(b"location"), egress)
            except BaseException:
                await response.answer.aclose()
                raise
            if following is None:
                return response
            await response.answer.aclose()
            hops.append(following)
        last = hops[-2].url
        raise refuse(
            ErrorKind.UPSTREAM_ERROR,
            f"There were more than {self._redirects_max} redirects, the last by {last.host}. "
            "Request the final URL itself.",
            retryable=False,
            host=last.host,
        )

    async def _exchange(self, hops: list[Hop], request: HttpRequest) -> HttpResponse:
        """Exchange one request for one response head. A kept connection may have died unnoticed: a repeatable request
        is sent again."""
        for _ in range(_DEAD_CONNECTIONS_MAX):
            try:
                return await self._send(hops, request)
            except WireError as error:
                if not error.on_kept or hops[-1].repeat is Repeat.NEVER:
                    raise
        return await self._send(hops, request)

    async def _send(self, hops: list[Hop], request: HttpRequest) -> HttpResponse:
        *before, hop = hops
        redirects = tuple(earlier.url for earlier in before)
        answer = await self._http.send(self._prepared(hop, request), stream=True)
        fields = answer.extensions[_FIELDS]
        address, repeat = address_of(answer), repeat_of(hops)
        return HttpResponse(hop.url, hop.method, answer.status_code, fields, address, redirects, repeat, answer)

    def _prepared(self, hop: Hop, request: HttpRequest) -> httpx.Request:
        fields = {
            "user-agent": self._user_agent,
            "accept": request.accept,
            "accept-encoding": request.accept_encoding,
            **dict(hop.headers),
        }
        # RFC 9110 §8.6: such a request declares an empty body, others need no declaration.
        if hop.body or hop.method in {"POST", "PUT", "PATCH"}:
            fields["content-length"] = str(len(hop.body))
        origin = _origin(hop.url.scheme, hop.url.authority)
        return httpx.Request(
            hop.method, origin, headers=fields, content=hop.body or None, extensions=checked_as(hop.url)
        )


def _is_at_home(hops: list[Hop]) -> bool:
    """Return whether the first and the last origin are the same."""
    return hops[0].url.origin == hops[-1].url.origin


class _NoCookies(CookieJar):
    """Stores none: a cookie set for one caller must not be sent with another's request."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Leave the cookies in the response."""


async def _take_fields(response: httpx.Response) -> None:
    """Keep the fields separately: httpx parses Location even when it does not follow, and fails where it cannot."""
    response.extensions[_FIELDS] = [(name.lower(), value) for name, value in response.headers.raw]
    response.headers.pop("location", None)


@lru_cache(maxsize=1024)
def _origin(scheme: str, authority: str) -> httpx.URL:
    """Return the URL's origin for httpx; the checked URL itself goes to the transport unchanged, parsed by no other
    library."""
    if authority.startswith("xn--"):  # httpx decodes such a name on access, and cannot decode every one
        authority = "internationalized.invalid"
    return httpx.URL(f"{scheme}://{authority}")
