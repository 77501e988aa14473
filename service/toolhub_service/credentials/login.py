"""A login at a source's authorization server: find the server, register the hub as its client, redeem its code.

The server is the one named by the operator, else the one named by the source's own server (RFC 9728), with metadata
that must name itself (RFC 8414 §3.3). The client is the configured one, else one registered for this login (RFC 7591).
Codes are requested with PKCE (S256), for the source as the resource (RFC 8707), and redeemed where the login began. The
state between the two steps is sealed and carried by the user: any hub of several can do the second.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from toolhub_service import __version__
from toolhub_service.credentials.answers import TOKEN_MAX_CHARS, first_text, lists, scope_of, text_in
from toolhub_service.credentials.sealing import SealBroken, SealingKeys
from toolhub_service.credentials.secret import (
    ClientAt,
    Hidden,
    OAuthSettings,
    PerUserTerms,
    Secret,
    packed,
    unpacked,
)
from toolhub_service.credentials.token_requests import GrantRefused, TokenRequests, Unanswered, Unreachable, checked
from toolhub_service.domain.credential import CredentialKey
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.reasons import Reason

LOGIN_S: Final = 600
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_METADATA: Final = re.compile(r'resource_metadata\s*=\s*"([^"]{1,2048})"', re.IGNORECASE)


class Begun(Hidden, frozen=True, gc=False):
    """A login between its two steps."""

    state: str
    verifier: str
    redirect_uri: str
    issuer: str
    names_issuer: bool
    """Whether the response must have `iss` (RFC 9207)."""
    client: ClientAt
    resource: str
    scope: str
    expires_at_unix_ms: int


class Server(NamedTuple):
    """An authorization server, from its metadata."""

    issuer: str
    authorization_url: str
    registration_url: str
    client: ClientAt
    names_issuer: bool
    scope: str
    """Scopes that the source's server requires; empty: none."""
    resource: str


class Logins:
    def __init__(self, requests: TokenRequests, keys: SealingKeys) -> None:
        self._requests = requests
        self._keys = keys

    async def begin(
        self, terms: PerUserTerms, key: CredentialKey, redirect_uri: str, now_unix_ms: int
    ) -> tuple[str, str]:
        """Return the URL for a person's browser, and the sealed login. `key`: of the one who logs in, also where the
        login is the source's. Raises HubFailure."""
        if not may_lead_back(terms, redirect_uri):
            raise refused("The redirect URI must be a loopback address, or one of the source's `redirect_uris`.")
        try:
            server = await self._server(terms)
            client = await self._client(terms, server, redirect_uri)
        except (Unreachable, GrantRefused) as failed:
            raise refused(f"The login at {terms.source} cannot begin. {failed}") from None
        begun = Begun(
            state=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(64),
            redirect_uri=redirect_uri,
            issuer=server.issuer,
            names_issuer=server.names_issuer,
            client=client,
            resource=server.resource,
            scope=" ".join(terms.oauth.scopes) or server.scope,
            expires_at_unix_ms=now_unix_ms + LOGIN_S * 1_000,
        )
        # RFC 7636 §4.2: the challenge is the unpadded base64url of the verifier's sha256.
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "state": begun.state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            **({"scope": begun.scope} if begun.scope else {}),
            **({"resource": begun.resource} if begun.resource else {}),
            # OpenID Connect Core §11: without it many servers return no refresh token.
            **({"prompt": "consent"} if "offline_access" in begun.scope.split() else {}),
        }
        joint = "&" if urlsplit(server.authorization_url).query else "?"
        # Bound to the caller and the source: another caller who obtains it cannot complete it.
        sealed = self._keys.seal(packed(begun), *_bound(terms, key))
        login = f"{self._keys.current}:{key.source}:{base64.urlsafe_b64encode(sealed).decode()}"
        return f"{server.authorization_url}{joint}{urlencode(query)}", login

    async def complete(
        self,
        terms: PerUserTerms,
        begun: Begun,
        code: str,
        answer: tuple[str, str],
        now_unix_ms: int,
    ) -> Secret:
        """Return the tokens; `answer` has state and issuer as they came back. Raises HubFailure."""
        state, issuer = answer
        if begun.expires_at_unix_ms < now_unix_ms:
            raise refused("The login has taken longer than ten minutes.")
        # In constant time, because the other side of the comparison comes from outside.
        if not hmac.compare_digest(begun.state.encode(), state.encode()):
            raise refused("What came back belongs to another login: `state` differs.")
        # RFC 9207: without this an attacker's server could make the hub redeem another server's code at the attacker's.
        if (issuer or begun.names_issuer) and issuer != begun.issuer:
            raise refused("What came back is of another authorization server: `iss` differs.")
        form = {"code": code, "redirect_uri": begun.redirect_uri, "code_verifier": begun.verifier}
        if begun.resource:
            form["resource"] = begun.resource
        try:
            return await self._requests.code(terms, begun.client, form, now_unix_ms)
        except Unanswered as lost:
            raise refused(
                f"Nobody can tell whether the login at {terms.source} was completed. {lost} Its code may be used up: "
                "begin another login."
            ) from None
        except (Unreachable, GrantRefused) as failed:
            raise refused(f"The login at {terms.source} failed. {failed}") from None

    def opened(self, terms: PerUserTerms, key: CredentialKey, login: str) -> Begun:
        """Return the opened login. Raises HubFailure for one that this caller has not begun, or not for this
        purpose."""
        key_id, _, rest = login.partition(":")
        try:
            # Non-ASCII characters are replaced, so that the login fails to open, instead of an error of its own.
            sealed = base64.urlsafe_b64decode(rest.partition(":")[2].encode("ascii", "replace"))
            return unpacked(self._keys.open(key_id, sealed, *_bound(terms, key)), Begun)
        except (SealBroken, ValueError):
            raise refused("This login was begun by another caller or at another hub.") from None

    async def names_issuer(self, terms: PerUserTerms) -> bool:
        """Return whether somebody can log in: the operator names the authorization server, or the source's server does
        (RFC 9728)."""
        if terms.oauth.issuer:
            return True
        try:
            found = await protected_resource(self._requests, terms.oauth, terms.server_url)
            return bool(first_text(found.get("authorization_servers")))
        except Unreachable:
            return False  # as a login at it would find

    async def _server(self, terms: PerUserTerms) -> Server:
        """Return the authorization server. Raises Unreachable."""
        issuer, scope, resource = terms.oauth.issuer, "", terms.server_url
        if not issuer:
            found = await protected_resource(self._requests, terms.oauth, terms.server_url)
            resource, issuer = text_in(found, "resource"), first_text(found.get("authorization_servers"))
            if not resource or not _covers(resource, terms.server_url):
                raise Unreachable("Its server does not say who issues its tokens (RFC 9728): name `issuer`.")
            # RFC 9728 lets the client choose among several; an operator who wants another sets `issuer`.
            if not issuer:
                raise Unreachable("Its server names no authorization server: name `issuer`.")
            scope = scope_of(found.get("scopes_supported"))
        document = await _first(self._requests, terms.oauth, terms.server_url, _metadata_urls(issuer))
        # RFC 8414 §3.3: otherwise a server could publish metadata that sends codes to another one.
        if document.get("issuer") != issuer:
            raise Unreachable(f"The metadata at {issuer} is missing, or of another issuer.")
        return _server_of(terms, document, issuer, scope, resource)

    async def _client(self, terms: PerUserTerms, server: Server, redirect_uri: str) -> ClientAt:
        """Return the client. Raises Unreachable, GrantRefused."""
        if terms.oauth.client_id:
            return ClientAt(
                token_url=server.client.token_url,
                revocation_url=server.client.revocation_url,
                client_id=terms.oauth.client_id,
                in_body=server.client.in_body,
            )
        if not server.registration_url:
            raise Unreachable("Its authorization server registers no clients: set `client_id`.")
        wanted = {
            "client_name": "tool-hub",
            "software_id": "tool-hub",
            "software_version": __version__,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            # A public client, whose codes PKCE protects; a secret that the server returns all the same is stored and
            # used.
            "token_endpoint_auth_method": "none",
            "application_type": "native",
        }
        answer = await self._requests.ask(terms.oauth, terms.server_url, server.registration_url, document=wanted)
        client_id = text_in(answer.document, "client_id")
        if answer.status not in (200, 201) or not client_id:
            raise Unreachable(
                f"Its authorization server registers no client (status {answer.status}): set `client_id`."
            )
        return ClientAt(
            token_url=server.client.token_url,
            revocation_url=server.client.revocation_url,
            client_id=client_id,
            client_secret=text_in(answer.document, "client_secret", TOKEN_MAX_CHARS),
            in_body=answer.document.get("token_endpoint_auth_method") == "client_secret_post",
        )


async def protected_resource(
    requests: TokenRequests, oauth: OAuthSettings, server_url: str, challenge: str | None = None
) -> Mapping[str, Any]:
    """Return what a server says of its protection (RFC 9728); empty: nothing. `challenge`: its WWW-Authenticate; None:
    it is asked for one. Raises Unreachable."""
    if challenge is None:
        challenge = (await requests.ask(oauth, server_url, server_url)).challenge
    advertised = _METADATA.search(challenge)
    parts = urlsplit(server_url)
    base, path = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource", parts.path.rstrip("/")
    # The URL that the server advertises has priority over the well-known one, as in MCP's authorization.
    urls = [advertised[1]] if advertised else [f"{base}{path}", *([base] if path else [])]
    return await _first(requests, oauth, server_url, urls)


async def _first(requests: TokenRequests, oauth: OAuthSettings, server_url: str, urls: list[str]) -> Mapping[str, Any]:
    for url in urls:
        answer = await requests.ask(oauth, server_url, url)
        if answer.status == 200 and answer.document:
            return answer.document
    return {}


def _bound(terms: PerUserTerms, key: CredentialKey) -> tuple[str, ...]:
    """Return what a sealed login is bound to: a login of the source is no login of the operator who makes it."""
    return ("source login" if terms.is_source_login else "login", *key)


def _server_of(terms: PerUserTerms, document: Mapping[str, Any], issuer: str, scope: str, resource: str) -> Server:
    def url(name: str, *, needed: bool = False) -> str:
        if value := text_in(document, name):
            checked(terms.oauth, terms.server_url, value)
            return value
        if needed:
            raise Unreachable(f"The metadata of {issuer} has no `{name}`.")
        return ""

    # MCP's authorization forbids continuing without PKCE: an intercepted code could be redeemed.
    if not lists(document, "code_challenge_methods_supported", "S256"):
        raise Unreachable(f"{issuer} does not support PKCE with S256.")
    accepted = "token_endpoint_auth_methods_supported"
    # Basic where both are supported, because RFC 6749 §2.3.1 recommends against secrets in the body.
    in_body = lists(document, accepted, "client_secret_post") and not lists(document, accepted, "client_secret_basic")
    return Server(
        issuer=issuer,
        authorization_url=url("authorization_endpoint", needed=True),
        registration_url=url("registration_endpoint"),
        client=ClientAt(
            token_url=url("token_endpoint", needed=True), revocation_url=url("revocation_endpoint"), in_body=in_body
        ),
        names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        scope=scope,
        resource=resource,
    )


def _metadata_urls(issuer: str) -> list[str]:
    """Return the URLs by RFC 8414 §3.1, then by OpenID Connect Discovery, in the order of MCP."""
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [f"{base}/.well-known/oauth-authorization-server{path}", f"{base}{path}/.well-known/openid-configuration"]
    return [*urls, f"{base}/.well-known/openid-configuration{path}"] if path else urls


def _covers(named: str, server_url: str) -> bool:
    """RFC 9728 §3.3: metadata is valid only for the resource that it names: the server itself or a path above it."""
    own, resource = urlsplit(server_url), urlsplit(named)
    if (own.scheme, own.netloc.lower()) != (resource.scheme, resource.netloc.lower()):
        return False
    return f"{own.path.rstrip('/')}/".startswith(f"{resource.path.rstrip('/')}/")


def may_lead_back(terms: PerUserTerms, redirect_uri: str) -> bool:
    """Return whether a login may end there: at a loopback address of the user's own machine (RFC 8252 §7.3), or at one
    that the operator lists."""
    try:
        parts = urlsplit(redirect_uri)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # also for a port beyond 65535
        host, port, parts = "", 0, urlsplit("")
    is_plain = not parts.username and not parts.fragment and port != 0
    is_loopback = parts.scheme == "http" and host in _LOOPBACK and is_plain
    return is_loopback or redirect_uri in terms.oauth.redirect_uris


def refused(message: str) -> HubFailure:
    return HubFailure(Reason.LOGIN_REFUSED, message)
