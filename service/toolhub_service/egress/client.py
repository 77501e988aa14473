"""Outgoing requests under egress rules: each hop is checked and limited in time, with typed failures.

One client for the process, by httpx through `GuardedTransport`. Redirects are followed here, at most five, each checked
as a new request; https never leads to http; fields that may be credentials never cross an origin (RFC 9110 §15.4).
Proxies, certificates and credentials of the environment have no effect; no cookie is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookiejar import CookieJar

import httpx
import msgspec

from toolhub_service import __version__
from toolhub_service.domain.errors.failure import WAS_SENT, ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.bodies import BoundedBody, decoder_of
from toolhub_service.egress.breakage import (
    CHECK_EFFECT,
    REPEATABLE,
    Delivery,
    Repeat,
    WireError,
    failure_of,
    out_of_time,
)
from toolhub_service.egress.transport import GuardedTransport, address_of, checked_extensions
from toolhub_service.guards.headers import Headers, bodiless_headers, cross_origin_headers
from toolhub_service.guards.urls import CheckedUrl, check_url, join_url

# Their targets are checked like a first request (RFC 9110 §15.4).
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Those after which nothing was processed: with the others a server may have processed the request before it answered.
_UNPROCESSED_REDIRECTS = frozenset({307, 308})
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
    only_reads: bool = False
    """Whether it changes nothing, whatever its method."""

    @property
    def repeat(self) -> Repeat:
        if self.only_reads or self.method in REPEATABLE:
            return Repeat.READS
        return Repeat.KEYED if self.is_keyed else Repeat.NEVER


def first_hop(request: HttpRequest, egress: tuple[EgressRule, ...]) -> Hop:
    """Return the request as it is sent. Raises ToolFailure HTTP_DISALLOWED_HOST or INVALID_INPUT."""
    url, headers = check_url(request.url, request.method, egress), request.headers
    is_keyed = bool(request.idempotency_key) and url.retry_with_key and request.method not in REPEATABLE
    if is_keyed and all(name != IDEMPOTENCY_KEY for name, _ in headers):
        # A string of a structured field (RFC 8941): no character of a key needs escaping in it.
        headers = (*headers, (IDEMPOTENCY_KEY, f'"{request.idempotency_key}"'))
    return Hop(url, request.method, headers, request.body, is_keyed, request.only_reads)


class Chain:
    """The requests of one exchange so far: the first one, and those of its redirects."""

    def __init__(self, first: Hop) -> None:
        self.hops = [first]
        self.delivery = Delivery()
        """Of the last request."""
        self._redirects: list[int] = []

    def note_redirect(self, status: int) -> None:
        """Note the status of the redirect that answers the last request."""
        self._redirects.append(status)

    def follow(self, hop: Hop) -> None:
        """Add the request that the redirect asks for."""
        self.hops.append(hop)
        self.delivery = Delivery()

    @property
    def repeat(self) -> Repeat:
        """Whether the exchange may be repeated: only if each of its requests may."""
        every = {hop.repeat for hop in self.hops}
        return next((repeat for repeat in (Repeat.NEVER, Repeat.KEYED) if repeat in every), Repeat.READS)

    @property
    def may_have_acted(self) -> bool:
        """Whether a peer may have received a request that can have an effect, other than one that it redirected
        unprocessed."""
        is_answered = len(self._redirects) == len(self.hops)
        is_last_acting = not is_answered and self.delivery.was_sent and self.hops[-1].repeat is not Repeat.READS
        return is_last_acting or self.has_acted

    @property
    def has_acted(self) -> bool:
        """Whether a request that can have an effect was answered by a redirect that does not exclude it."""
        return any(
            hop.repeat is not Repeat.READS and status not in _UNPROCESSED_REDIRECTS
            for hop, status in zip(self.hops, self._redirects, strict=False)
        )

    @property
    def is_at_home(self) -> bool:
        """Whether the first and the last origin are the same."""
        return self.hops[0].url.origin == self.hops[-1].url.origin

    def refuse_to_continue(self, failure: ToolFailure) -> ToolFailure:
        """Return the refusal to continue, which says so when an earlier request may have had its effect."""
        if not self.may_have_acted:
            return failure
        error = failure.error
        message = f"{error.message} {CHECK_EFFECT}"
        return ToolFailure(msgspec.structs.replace(error, message=message, details={**error.details, WAS_SENT: True}))


def next_hop(hop: Hop, status: int, location: str, egress: tuple[EgressRule, ...]) -> Hop:
    """Return the request that a redirect asks for.

    Raises: ToolFailure: HTTP_DISALLOWED_HOST when the target is refused or leads from https to http.
    """
    method = hop.method
    # RFC 9110 §15.4.2 and §15.4.3 allow this for POST, because browsers have always done so.
    if (status == 303 and method != "HEAD") or (status in {301, 302} and method == "POST"):
        method = "GET"
    try:
        url = check_url(join_url(hop.url, location), method, egress)
    except ToolFailure as failure:
        raise refuse_redirect(hop, failure.error.message, failure.error.details.get("host")) from None
    if hop.url.scheme == "https" and url.scheme == "http":
        raise refuse_redirect(hop, "It redirects from https to http.", url.host)
    headers = hop.headers if url.origin == hop.url.origin else cross_origin_headers(hop.headers)
    if method == hop.method:
        is_keyed = hop.is_keyed and url.retry_with_key and any(name == IDEMPOTENCY_KEY for name, _ in headers)
        return Hop(url, method, headers, hop.body, is_keyed, hop.only_reads)
    return Hop(url, method, bodiless_headers(headers), b"")


def refuse_redirect(hop: Hop, reason: str, host: object) -> ToolFailure:
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
    only_reads: bool = False
    """Whether it changes nothing although its method may, such as the POST of a search: a repeat is safe."""


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
    has_acted: bool
    """Whether a request that led here by a redirect may have had its effect."""
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
        UPSTREAM_ERROR when the answer is not HTTP or not decodable. Each says in its details whether a request that may
        have an effect was sent.
        """
        chain = Chain(first_hop(request, egress))
        first = chain.hops[0].url
        started_s = asyncio.get_running_loop().time()
        clock = asyncio.timeout_at(deadline_s)
        try:
            async with clock:
                response = await self._follow(chain, request, egress)
                try:
                    yield response
                finally:
                    await response.answer.aclose()
        except WireError as error:
            raise failure_of(
                error,
                request.method,
                first,
                chain.repeat,
                may_have_acted=chain.may_have_acted,
                blames_upstream=chain.is_at_home,
            ) from None
        except TimeoutError:
            if not clock.expired():
                raise
            given_s = deadline_s - started_s
            raise out_of_time(
                request.method,
                first,
                given_s,
                chain.repeat,
                may_have_acted=chain.may_have_acted,
                blames_upstream=given_s >= fair_s and chain.is_at_home,
            ) from None

    async def _follow(self, chain: Chain, request: HttpRequest, egress: tuple[EgressRule, ...]) -> HttpResponse:
        """Return the last response; each request is added to the chain."""
        try:
            while len(chain.hops) <= self._redirects_max + 1:
                response = await self._exchange(chain, request)
                if response.status not in _REDIRECTS or not response.header(b"location"):
                    return response
                chain.note_redirect(response.status)
                await response.answer.aclose()
                chain.follow(next_hop(chain.hops[-1], response.status, response.header(b"location"), egress))
        except ToolFailure as failure:
            raise chain.refuse_to_continue(failure) from None
        last = chain.hops[-2].url
        raise chain.refuse_to_continue(
            refuse(
                ErrorKind.UPSTREAM_ERROR,
                f"There were more than {self._redirects_max} redirects, the last by {last.host}. "
                "Request the final URL itself.",
                retryable=False,
                host=last.host,
            )
        )

    async def _exchange(self, chain: Chain, request: HttpRequest) -> HttpResponse:
        """Exchange one request for one response head. A kept connection may have died unnoticed: a repeatable request
        is sent again."""
        for _ in range(_DEAD_CONNECTIONS_MAX):
            try:
                return await self._send(chain, request)
            except WireError as error:
                if not error.on_kept or chain.hops[-1].repeat is Repeat.NEVER:
                    raise
        return await self._send(chain, request)

    async def _send(self, chain: Chain, request: HttpRequest) -> HttpResponse:
        *before, hop = chain.hops
        answer = await self._http.send(self._prepare_request(hop, request, chain.delivery), stream=True)
        return HttpResponse(
            url=hop.url,
            method=hop.method,
            status=answer.status_code,
            headers=answer.extensions[_FIELDS],
            address=address_of(answer),
            redirects=tuple(earlier.url for earlier in before),
            repeat=chain.repeat,
            has_acted=chain.has_acted,
            answer=answer,
        )

    def _prepare_request(self, hop: Hop, request: HttpRequest, delivery: Delivery) -> httpx.Request:
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
        extensions = checked_extensions(hop.url, delivery)
        return httpx.Request(hop.method, origin, headers=fields, content=hop.body or None, extensions=extensions)


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
