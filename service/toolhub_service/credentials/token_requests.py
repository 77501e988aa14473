"""Requests to authorization servers, each to an origin that the operator has named, limited in time and bytes.

Tokens by an authorization code with PKCE (RFC 6749 §4.1, RFC 7636), by a refresh token (§6); revocation (RFC 7009).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import orjson

from toolhub_service.credentials.answers import TOKEN_MAX_CHARS, access_token_in, lifetime_s, scope_of, text_in
from toolhub_service.credentials.secret import ClientAt, OAuthSettings, PerUserTerms, Secret
from toolhub_service.domain.call import SubjectToken
from toolhub_service.domain.errors.failure import WAS_SENT, ToolFailure
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import EgressClient, HttpRequest
from toolhub_service.egress.resolver import SystemResolver
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.schema.repaired_json import loads_repaired

TIMEOUT_S: Final = 10.0
_ANSWER_MAX_BYTES: Final = 256 * 1024
_LEEWAY_S: Final = 30.0
_LEEWAY_SHARE: Final = 0.1
_WORDS_MAX_CHARS: Final = 200
# The operator names the servers, so they may be in any network.
_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name, no token
_FORM: Final = ("content-type", "application/x-www-form-urlencoded")


class Unreachable(Exception):
    """An authorization server gives no usable answer, which may pass; the message is fit for users."""


class Unanswered(Unreachable):
    """A request for tokens was sent and not answered: its code or its refresh token may be used up."""


class GrantRefused(Exception):
    """An authorization server refuses permanently; `error` is its code (RFC 6749 §5.2), `words` its own text, cut."""

    def __init__(self, error: str, words: str) -> None:
        super().__init__(f"{error}: {words}" if words else error)


class Answer(NamedTuple):
    status: int
    document: Mapping[str, Any]
    """Empty when it is not a JSON object."""
    challenge: str
    """WWW-Authenticate; empty without one."""


class TokenRequests:
    """For all sources. Call `close` when it is no longer used."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[EgressClient, SystemResolver]] = {}

    async def code(self, terms: PerUserTerms, client: ClientAt, form: Mapping[str, str], now_unix_ms: int) -> Secret:
        """Return the tokens of a login. Raises Unreachable, GrantRefused."""
        answer = await self._request_grant(terms, client, {"grant_type": "authorization_code", **form})
        former = Secret("", client=client, resource=form.get("resource", ""), server=terms.origin)
        return secret_from_answer(answer, former, now_unix_ms)

    async def refresh(self, terms: PerUserTerms, secret: Secret, now_unix_ms: int) -> Secret:
        """Return another access token, and another refresh token where the server rotates them. Raises the same."""
        form = {"grant_type": "refresh_token", "refresh_token": secret.refresh_token}
        if secret.resource:
            form["resource"] = secret.resource
        return secret_from_answer(await self._request_grant(terms, secret.client, form), secret, now_unix_ms)

    async def exchange(self, terms: PerUserTerms, subject: SubjectToken, now_unix_ms: int) -> Secret:
        """Return a token of the caller's for the source, in exchange for the one that it presented (RFC 8693 §2.1).
        Raises the same."""
        own = terms.oauth
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": subject.text,
            "subject_token_type": _ACCESS_TOKEN,
            "requested_token_type": _ACCESS_TOKEN,
            **({"audience": own.audience} if own.audience else {"resource": terms.server_url}),
            **({"scope": " ".join(own.scopes)} if own.scopes else {}),
        }
        client = ClientAt(token_url=own.token_url, client_id=own.client_id)
        fresh = secret_from_answer(await self._request_grant(terms, client, form), Secret(""), now_unix_ms)
        # If a server returned the caller's own token, it would be sent to the source, which must never see it.
        if fresh.value == subject.text:
            raise GrantRefused("invalid_response", "the caller's own token came back")
        return fresh

    async def revoke(self, terms: PerUserTerms, secret: Secret) -> bool:
        """Return whether the server has accepted the revocation. Raises nothing."""
        client, token = secret.client, secret.refresh_token or secret.value
        if not client.revocation_url:
            return False
        hint = "refresh_token" if secret.refresh_token else "access_token"
        try:
            form = {"token": token, "token_type_hint": hint}
            answer = await self.ask(
                terms.oauth, _of(terms), client.revocation_url, *_authenticate_client(terms, client, form)
            )
        except Unreachable:
            return False
        return answer.status == 200

    async def _request_grant(self, terms: PerUserTerms, client: ClientAt, form: Mapping[str, str]) -> Mapping[str, Any]:
        answer = await self.ask(terms.oauth, _of(terms), client.token_url, *_authenticate_client(terms, client, form))
        if answer.status == 200:
            return answer.document
        error = answer.document.get("error")
        # A permanent refusal marks the credential, so only what RFC 6749 §5.2 describes counts as one.
        if 400 <= answer.status < 500 and answer.status not in (408, 429) and isinstance(error, str):
            raise GrantRefused(_words(error), _words(answer.document.get("error_description")))
        kind = Unanswered if processing_of(answer.status) is Processing.UNKNOWN else Unreachable
        raise kind(f"Its authorization server answers with status {answer.status}.")

    async def ask(
        self,
        settings: OAuthSettings,
        server_url: str,
        url: str,
        form: Mapping[str, str] | None = None,
        authorization: str = "",
        document: Mapping[str, Any] | None = None,
    ) -> Answer:
        """GET, or POST a form or JSON. Raises Unreachable, also for an origin that nobody has named."""
        parsed = check_named_url(settings, server_url, url)
        headers: list[tuple[str, str]] = []
        body = b""
        if form is not None:
            headers, body = [_FORM], urlencode(form).encode()
        elif document is not None:
            headers, body = [("content-type", "application/json")], orjson.dumps(document)
        if authorization:
            headers.append(("authorization", authorization))
        method = "GET" if form is None and document is None else "POST"
        rule = EgressRule(
            hosts=(parsed.host,),
            schemes=frozenset({parsed.scheme}),
            ports=frozenset({parsed.port}),
            methods=frozenset({method}),
            cidrs=_ANY_NETWORK,
        )
        request = HttpRequest(url, method, tuple(headers), body, accept="application/json")
        deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
        try:
            async with self._client(settings.ca_file).open(request, (rule,), deadline_s=deadline_s) as response:
                data = await response.body(_ANSWER_MAX_BYTES).whole()
                return Answer(response.status, _object(data), response.header(b"www-authenticate"))
        except ToolFailure as failure:
            if failure.error.details.get(WAS_SENT) is True:
                raise Unanswered(f"{parsed.host} was asked, and its answer did not come.") from None
            raise Unreachable(f"{parsed.host} cannot be asked: {failure.error.message}") from None
        except (OSError, ValueError):
            raise Unreachable(f"{parsed.host} cannot be asked: the CA file of the source cannot be used.") from None

    def _client(self, ca_file: str) -> EgressClient:
        known = self._clients.get(ca_file)
        if known is None:
            tls = None
            if ca_file:
                tls = ssl.create_default_context(cafile=ca_file)
                tls.minimum_version = ssl.TLSVersion.TLSv1_2
            resolver = SystemResolver()
            transport = GuardedTransport(resolver, tls=tls, max_connections=20)
            # No redirects: a code or a refresh token must not be sent on to where a server points.
            known = self._clients[ca_file] = EgressClient(transport, redirects_max=0), resolver
        return known[0]

    async def close(self) -> None:
        for client, resolver in self._clients.values():
            await client.aclose()
            resolver.close()
        self._clients.clear()


def check_named_url(settings: OAuthSettings, server_url: str, url: str) -> ParsedUrl:
    """Return the URL if the operator has named its origin: tokens and codes go nowhere else. Raises Unreachable."""
    try:
        parsed = parse_url(url)
        named = {
            parse_url(each).origin
            for each in (server_url, settings.issuer, settings.token_url, *settings.origins)
            if each
        }
    except ToolFailure as failure:
        raise Unreachable(f"A URL of its authorization server cannot be used: {failure.error.message}") from None
    if parsed.origin not in named:
        origin = f"{parsed.scheme}://{parsed.authority}"
        raise Unreachable(
            f"The source does not name {origin}: an operator adds it to its `origins`, if it is the right one."
        )
    # RFC 6749 §3.2: tokens need TLS; a server on this machine is for tests and sidecars.
    if parsed.scheme != "https" and parsed.host not in _LOOPBACK:
        raise Unreachable(f"{url} must begin with https://")
    return parsed


def secret_from_answer(answer: Mapping[str, Any], former: Secret, now_unix_ms: int) -> Secret:
    """Return the secret with the response of a token endpoint. Raises GrantRefused unless it is a bearer token."""
    token, kind = access_token_in(answer), answer.get("token_type", "bearer")
    if not token or not isinstance(kind, str) or kind.lower() not in ("bearer", "n_a"):
        raise GrantRefused("invalid_response", "the answer has no bearer token")
    life_s = lifetime_s(answer.get("expires_in"))
    # A fraction of short lifetimes: with a fixed half minute a token of 20 seconds would be due at once.
    leeway_s = min(_LEEWAY_S, life_s * _LEEWAY_SHARE)
    return Secret(
        value=token,
        # RFC 6749 §6: a server that does not rotate omits it, and the previous one stays valid.
        refresh_token=text_in(answer, "refresh_token", TOKEN_MAX_CHARS) or former.refresh_token,
        expires_at_unix_ms=now_unix_ms + int(life_s * 1_000) if life_s else 0,
        renew_at_unix_ms=now_unix_ms + int((life_s - leeway_s) * 1_000) if life_s else 0,
        client=former.client,
        resource=former.resource,
        scope=scope_of(answer.get("scope")) or former.scope,
        server=former.server,
    )


def _authenticate_client(terms: PerUserTerms, client: ClientAt, form: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the form and the header that authenticate the client (RFC 6749 §2.3.1)."""
    own = terms.oauth
    # The configured secret belongs to the configured client only, not to one registered for a login.
    secret = client.client_secret or (own.client_secret if client.client_id == own.client_id else "")
    if not secret:
        return {**form, "client_id": client.client_id}, ""
    if client.in_body:
        return {**form, "client_id": client.client_id, "client_secret": secret}, ""
    # RFC 6749 §2.3.1 requires both percent-encoded before Basic joins them by a colon.
    pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
    return dict(form), f"Basic {base64.b64encode(pair.encode()).decode()}"


def _of(terms: PerUserTerms) -> str:
    return terms.server_url


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        # Repaired where that is possible: of a rotated refresh token nobody gets a second copy.
        value = loads_repaired(data, max_bytes=_ANSWER_MAX_BYTES, max_depth=16).value
    except ToolFailure:
        return {}
    return value if isinstance(value, Mapping) else {}


def _words(text: Any) -> str:
    """Text of another server, cut and printable."""
    shown = (
        "".join(char if char.isprintable() else " " for char in text[:_WORDS_MAX_CHARS])
        if isinstance(text, str)
        else ""
    )
    return shown.strip()
