"""OAuth 2.0 client credentials for a server of streamable HTTP (RFC 6749 §4.4, RFC 8707, MCP authorization).

With a token URL the token is fetched before the first request. Without one the server's 401 leads to its protected
resource metadata (RFC 9728), and this to the authorization server's metadata (RFC 8414); requests go only to origins
that the source names. Credentials are bound to the authorization server that first accepted them: when the server names
another one later, they are not sent to it (SEP-2352). A client authenticates by a secret or by a signature
(`client_key`). The token is cached, and renewed shortly before it expires and once after a 401; concurrent requests
wait for one renewal. The SDK's provider is not used: it holds its lock while a request runs, so that calls run one by
one.

Nothing here raises for a server's answer: a request without a valid token is sent and returns its 401.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_field_from_www_auth,
    issuers_match,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from toolhub_service.adapters.mcp.kind import OAuthTerms
from toolhub_service.adapters.mcp.login.client_key import ASSERTION_TYPE, ClientKey
from toolhub_service.adapters.mcp.messages.http import Answer, HttpRequest, Transport, place_of, same_times
from toolhub_service.credentials.answers import access_token_in, first_text, lifetime_s, lists, scope_of, text_in
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.schema.repaired_json import loads_repaired

_LEEWAY_S = 30.0
_LEEWAY_SHARE = 0.1
_UNKNOWN_LIFE_S = 3600.0
_AGAIN_AFTER_S = 5.0  # before the next request for a token after one has failed
_DOCUMENT_MAX_BYTES = 256 * 1024
_IN_TIME = same_times(10.0)

# Sends a request through a transport that never raises for failures of the network or the server.
Send = Callable[[HttpRequest], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Where and how to request tokens."""

    url: str
    issuer: str = ""
    """Empty: configured by the operator."""
    audience: str = ""
    """Audience of assertions."""
    resource: str = ""
    scope: str = ""
    in_body: bool = False
    """Whether it accepts the client's secret only in the form."""


class AuthorizedTransport:
    """Puts a bearer token on each request, and sends it once more with a new one after a 401.

    A server answers 401 before it processes the request, so nothing runs twice.
    """

    def __init__(self, inner: Transport, tokens: Tokens) -> None:
        self._inner = inner
        self._tokens = tokens

    async def send(self, request: HttpRequest) -> Answer:
        send = self._inner.send
        used = await self._tokens.current(send)
        answer = await send(_bearing(request, used))
        if not _wants_another_token(answer):
            return answer
        token = await self._tokens.renew(used, answer, send)
        if not token or token == used:
            return answer
        answer.close()
        return await send(_bearing(request, token))


class Tokens:
    """The token for one server, shared by its connections. Its repr never shows the token."""

    def __init__(self, terms: OAuthTerms, server_url: str) -> None:
        """Raises ValueError when the private key of the client cannot be used."""
        self._terms = terms
        self._key = (
            ClientKey(terms.client_id, terms.private_key, terms.signing_algorithm) if terms.private_key else None
        )
        self._server_url = server_url
        self._endpoint = (
            _Endpoint(terms.token_url, audience=terms.audience or terms.token_url, scope=" ".join(terms.scopes))
            if terms.token_url
            else None
        )
        self._issuer = ""  # owner of the credentials, once they have obtained a token
        self._token = ""
        self._good_until_s = 0.0
        self._again_at_s = 0.0
        self._lock = asyncio.Lock()

    async def current(self, send: Send) -> str:
        """Return a valid token; empty when none can be obtained, or when its endpoint is not known yet."""
        if self._endpoint is None or (self._token and _now_s() < self._good_until_s):
            return self._token
        return await self.renew(self._token, None, send)

    async def renew(self, used: str, challenge: Answer | None, send: Send) -> str:
        """Return another token than `used`: a new one, unless another request got one meanwhile or failed a
        moment ago."""
        async with self._lock:
            if self._token != used or _now_s() < self._again_at_s:
                return self._token
            # Set before the request, so that tasks waiting for the lock do not ask a server that has just failed.
            self._again_at_s = _now_s() + _AGAIN_AFTER_S
            if challenge is not None and not self._terms.token_url:
                self._endpoint = await self._discover_endpoint(challenge, send)
            if self._endpoint is not None:
                self._take(await _fetch_document(self._token_request(self._endpoint), send), self._endpoint.issuer)
            return self._token

    def _token_request(self, endpoint: _Endpoint) -> HttpRequest:
        """Raises httpx2.InvalidURL."""
        form = {"grant_type": "client_credentials"}
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if endpoint.scope:
            form["scope"] = endpoint.scope
        if endpoint.resource:
            form["resource"] = endpoint.resource
        if self._key is not None:
            form |= {
                "client_assertion_type": ASSERTION_TYPE,
                "client_assertion": self._key.assertion(endpoint.audience),
            }
        elif endpoint.in_body:
            form |= {"client_id": self._terms.client_id, "client_secret": self._terms.client_secret}
        else:
            # Form-encoded before base64, which many clients forget (RFC 6749 §2.3.1).
            pair = f"{quote(self._terms.client_id, safe='')}:{quote(self._terms.client_secret, safe='')}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return HttpRequest("POST", place_of(endpoint.url), headers, urlencode(form).encode(), _IN_TIME)

    def _take(self, document: dict[str, Any], issuer: str) -> None:
        token, kind = access_token_in(document), document.get("token_type", "bearer")
        if not token or not isinstance(kind, str) or kind.lower() != "bearer":
            return
        # `expires_in` is only recommended (RFC 6749 §5.1).
        life_s = lifetime_s(document.get("expires_in")) or _UNKNOWN_LIFE_S
        self._issuer = issuer
        self._token = token
        self._good_until_s = _now_s() + life_s - min(_LEEWAY_S, life_s * _LEEWAY_SHARE)
        self._again_at_s = 0.0

    async def _discover_endpoint(self, challenge: Answer, send: Send) -> _Endpoint | None:
        """Return the token endpoint; None when the metadata is missing, does not match the server, or is of another
        issuer."""
        advertised = _challenge_field(challenge, "resource_metadata")
        resource = await _first(build_protected_resource_metadata_discovery_urls(advertised, self._server_url), send)
        named, own = text_in(resource, "resource"), resource_url_from_server_url(self._server_url)
        if resource and not (named and check_resource_allowed(own, named)):
            return None  # RFC 9728 §3.3: metadata is valid only for the resource that it names
        issuer = first_text(resource.get("authorization_servers")) or None
        metadata = await _first(
            build_oauth_authorization_server_metadata_discovery_urls(issuer, self._server_url), send
        )
        if issuer is None and self._key is not None:
            # Only its location vouches for this metadata: it must not obtain an assertion for another audience.
            issuer = "{0.scheme}://{0.netloc}".format(urlsplit(self._server_url))
        endpoint = _endpoint_of(metadata, issuer, named or own, self._scope(challenge, resource))
        # Once a secret was accepted by one issuer, a server that names another one must not get it.
        is_other = endpoint is not None and self._issuer and not issuers_match(endpoint.issuer, self._issuer)
        return None if is_other else endpoint

    def _scope(self, challenge: Answer, resource: dict[str, Any]) -> str:
        """Return the operator's scopes; else those that the server requires, added to those that were too few
        (SEP-2350)."""
        if self._terms.scopes:
            return " ".join(self._terms.scopes)
        listed = scope_of(resource.get("scopes_supported"))
        wanted = scope_of(_challenge_field(challenge, "scope")) or listed
        # A step-up adds to the present scopes: with a token for the new scope only, earlier calls would fail.
        before = self._endpoint.scope if self._endpoint is not None and challenge.status == 403 else ""
        # Bounded as a whole: a server could ask for others at each step.
        return scope_of([*dict.fromkeys([*before.split(), *wanted.split()])])


def _bearing(request: HttpRequest, token: str) -> HttpRequest:
    if token:
        request.fields["authorization"] = f"Bearer {token}"
    return request


async def _first(urls: list[str], send: Send) -> dict[str, Any]:
    """Return the first document found; empty when there is none."""
    for url in urls:
        try:
            # The URLs come from the server's own header, so they may be invalid.
            request = HttpRequest("GET", place_of(url), {"accept": "application/json"}, times=_IN_TIME)
        except httpx2.InvalidURL:
            continue  # the next one may work; the caller reports when none did
        if document := await _fetch_document(request, send):
            return document
    return {}


async def _fetch_document(request: HttpRequest, send: Send) -> dict[str, Any]:
    """Return the JSON object of a 200 response; empty otherwise."""
    answer = await send(request)
    answer.close()  # an event stream is no document
    try:
        document = loads_repaired(answer.content, max_bytes=_DOCUMENT_MAX_BYTES).value if answer.status == 200 else {}
    except ToolFailure:
        return {}
    return document if isinstance(document, dict) else {}


def _endpoint_of(metadata: dict[str, Any], issuer: str | None, resource: str, scope: str) -> _Endpoint | None:
    """Return the endpoint if the metadata names the issuer that it was fetched for (RFC 8414 §3.3). `resource` is sent
    as the server wrote it."""
    named, url = text_in(metadata, "issuer"), text_in(metadata, "token_endpoint")
    if not url or not isinstance(metadata.get("issuer"), str):
        return None
    if issuer is not None and not issuers_match(named, issuer):
        return None
    methods = "token_endpoint_auth_methods_supported"
    in_body = lists(metadata, methods, "client_secret_post") and not lists(metadata, methods, "client_secret_basic")
    return _Endpoint(url, issuer=named, audience=named or url, resource=resource, scope=scope, in_body=in_body)


def _wants_another_token(answer: Answer) -> bool:
    if answer.status == 403:
        return _challenge_field(answer, "error") == "insufficient_scope"
    return answer.status == 401


def _challenge_field(answer: Answer, name: str) -> str | None:
    """Return a parameter of WWW-Authenticate, as the SDK reads it."""
    return extract_field_from_www_auth(httpx2.Response(answer.status, headers=[*answer.fields]), name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
