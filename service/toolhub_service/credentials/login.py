"""A login at a source's authorization server: register the hub as its client, redeem its code.

The server is found by `issuers.py`. The client is the configured one, else one registered for this login (RFC 7591).
Codes are requested with PKCE (S256), for the source as the resource (RFC 8707), and redeemed where the login began. The
state between the two steps is sealed and carried by the user: any hub of several can do the second.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from toolhub_service import __version__
from toolhub_service.credentials.answers import TOKEN_MAX_CHARS, lists, text_in
from toolhub_service.credentials.issuers import NamedIssuer, issuer_metadata, named_issuer
from toolhub_service.credentials.sealing import SealBroken, SealingKeys
from toolhub_service.credentials.secret import (
    ClientAt,
    Hidden,
    PerUserTerms,
    Secret,
    pack,
    unpack,
)
from toolhub_service.credentials.token_requests import (
    GrantRefused,
    TokenRequests,
    Unanswered,
    Unreachable,
    check_named_url,
)
from toolhub_service.domain.credential import CredentialKey
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason

LOGIN_S: Final = 600
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


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
            raise login_refusal("The redirect URI must be a loopback address, or one of the source's `redirect_uris`.")
        try:
            server = await self._server(terms)
            client = await self._client(terms, server, redirect_uri)
        except (Unreachable, GrantRefused) as failed:
            raise login_refusal(f"The login at {terms.source} cannot begin. {failed}") from None
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
        sealed = self._keys.seal(pack(begun), *_seal_context(terms, key))
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
            raise login_refusal("The login has taken longer than ten minutes.")
        # In constant time, because the other side of the comparison comes from outside.
        if not hmac.compare_digest(begun.state.encode(), state.encode()):
            raise login_refusal("What came back belongs to another login: `state` differs.")
        # RFC 9207: without this an attacker's server could make the hub redeem another server's code at the attacker's.
        if (issuer or begun.names_issuer) and issuer != begun.issuer:
            raise login_refusal("What came back is of another authorization server: `iss` differs.")
        form = {"code": code, "redirect_uri": begun.redirect_uri, "code_verifier": begun.verifier}
        if begun.resource:
            form["resource"] = begun.resource
        try:
            return await self._requests.code(terms, begun.client, form, now_unix_ms)
        except Unanswered as lost:
            raise login_refusal(
                f"Nobody can tell whether the login at {terms.source} was completed. {lost} Its code may be used up: "
                "begin another login."
            ) from None
        except (Unreachable, GrantRefused) as failed:
            raise login_refusal(f"The login at {terms.source} failed. {failed}") from None

    def open_login(self, terms: PerUserTerms, key: CredentialKey, login: str) -> Begun:
        """Return the opened login. Raises HubFailure for one that this caller has not begun, or not for this
        purpose."""
        key_id, _, rest = login.partition(":")
        try:
            # Non-ASCII characters are replaced, so that the login fails to open, instead of an error of its own.
            sealed = base64.urlsafe_b64decode(rest.partition(":")[2].encode("ascii", "replace"))
            return unpack(self._keys.open(key_id, sealed, *_seal_context(terms, key)), Begun)
        except (SealBroken, ValueError):
            raise login_refusal("This login was begun by another caller or at another hub.") from None

    async def names_issuer(self, terms: PerUserTerms) -> bool:
        """Return whether somebody can log in: the operator names the authorization server, or the source's server does
        (RFC 9728)."""
        try:
            return bool(terms.oauth.issuer or await named_issuer(self._requests, terms.oauth, terms.server_url))
        except Unreachable:
            return False  # as a login at it would find

    async def _server(self, terms: PerUserTerms) -> Server:
        """Return the authorization server. Raises Unreachable."""
        named = NamedIssuer(terms.oauth.issuer, terms.server_url)
        if not named.issuer:
            named = await named_issuer(self._requests, terms.oauth, terms.server_url)
        document = await issuer_metadata(self._requests, terms.oauth, terms.server_url, named.issuer)
        return _server_of(terms, document, named)

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


def _seal_context(terms: PerUserTerms, key: CredentialKey) -> tuple[str, ...]:
    """Return what a sealed login is bound to: a login of the source is no login of the operator who makes it."""
    return ("source login" if terms.is_source_login else "login", *key)


def _server_of(terms: PerUserTerms, document: Mapping[str, Any], named: NamedIssuer) -> Server:
    issuer = text_in(document, "issuer")

    def url(name: str, *, needed: bool = False) -> str:
        if value := text_in(document, name):
            check_named_url(terms.oauth, terms.server_url, value)
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
        scope=named.scope,
        resource=named.resource,
    )


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


def login_refusal(message: str) -> HubFailure:
    return HubFailure(Reason.LOGIN_REFUSED, message)
