"""OAuth as a native application does it: discovery, code with PKCE, device code, refresh and revocation.

RFC 8252 (native applications), RFC 7636 (PKCE), RFC 8628 (device code), RFC 9207 (issuer of the answer), RFC 8414 and
OpenID Connect discovery, RFC 8707 (resource), RFC 7591 (registration), RFC 7009 (revocation). The client is public, so
only codes and tokens are secret here, and no message repeats these.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import click
import httpx

from toolhub_service.credentials.answers import TOKEN_MAX_CHARS, access_token_in, lifetime_s, text_in

_ANSWER_MAX_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 15.0
_EXIT_UNREACHABLE: Final = 3
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_OIDC: Final = "/.well-known/openid-configuration"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_TEXT_MAX_CHARS: Final = 300
_DEVICE_INTERVAL_S: Final = 5.0
_DEVICE_LIFETIME_MAX_S: Final = 1_800.0


class LoginFailed(click.ClickException):
    """The issuer answered without a token; the message says what to do."""


class IssuerUnreachable(click.ClickException):
    """The issuer does not answer, or its answer is invalid."""

    exit_code = _EXIT_UNREACHABLE


class GrantRefused(LoginFailed):
    """A refusal by the token endpoint (RFC 6749 §5.2)."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer's metadata; empty where it lacks a member."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    registration_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    names_itself: bool = False
    """Whether its answers have `iss` (RFC 9207)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """An answer of the token endpoint."""

    access_token: str
    refresh_token: str
    lifetime_s: float
    """0: the issuer does not say."""


_NOT_SENT = httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol


@contextmanager
def _answering(where: str) -> Any:
    try:
        yield
    except httpx.HTTPError as failed:
        why = str(failed) or type(failed).__name__
        text = f"{where} does not answer ({why}). Check the address and your network, and try again."
        if not isinstance(failed, _NOT_SENT):
            text = (
                f"{where} was asked, and its answer did not come ({why}). Try again; if it then refuses, log in again."
            )
        raise IssuerUnreachable(text) from failed
    except (httpx.InvalidURL, UnicodeError) as broken:
        raise LoginFailed(f"{where} is no URL: {broken}.") from broken


def open_http(verify: Any = True) -> httpx.Client:
    """Return a client that follows no redirect; proxies are those of the environment. `verify` is httpx's."""
    # No redirects: a code or a refresh token is sent only to the endpoint that the issuer has named.
    return httpx.Client(timeout=_TIMEOUT_S, verify=verify, follow_redirects=False)


def check_url(what: str, url: str) -> str:
    """Return the URL, if nobody on the way can read along. Raises LoginFailed."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.netloc and "@" not in parts.netloc:
        return url
    if parts.scheme == "http" and _is_loopback(parts.hostname or ""):
        return url
    raise LoginFailed(f"{what} is {url[:_TEXT_MAX_CHARS]!r}: it must be an https:// URL.")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def fetch_json(http: httpx.Client, method: str, url: str, **request: Any) -> tuple[int, dict[str, Any]]:
    """Return status and JSON object of an answer, {} for any other body. Raises IssuerUnreachable, LoginFailed."""
    headers = {"accept": "application/json"}
    with _answering(url), http.stream(method, url, headers=headers, **request) as response:
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            # Counted while it arrives: an endless answer must not fill the memory.
            if len(body) > _ANSWER_MAX_BYTES:
                raise IssuerUnreachable(f"{url} answers more than {_ANSWER_MAX_BYTES:,} bytes.")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = {}
        return response.status_code, document if isinstance(document, dict) else {}


def discover_issuer(http: httpx.Client, issuer: str) -> Issuer:
    """Return the metadata by OpenID Connect discovery, else RFC 8414. Raises IssuerUnreachable, LoginFailed."""
    parts = urlsplit(check_url("The issuer", issuer))
    path = parts.path.rstrip("/")
    tried = (f"{issuer.rstrip('/')}{_OIDC}", f"{parts.scheme}://{parts.netloc}{_OAUTH}{path}")
    for url in tried:
        status, found = fetch_json(http, "GET", url)
        if status == 200 and found:
            return _issuer_of(issuer, found)
    raise IssuerUnreachable(f"{issuer} has no metadata at {tried[0]} (HTTP {status}). Check --issuer.")


def _issuer_of(issuer: str, found: dict[str, Any]) -> Issuer:
    """Return the issuer. RFC 8414 §3.3: metadata of another issuer is not used."""
    if found.get("issuer") != issuer:
        named = str(found.get("issuer"))[:_TEXT_MAX_CHARS]
        raise LoginFailed(f"The metadata of {issuer} is that of {named!r}. Write the issuer to the letter.")
    urls: dict[str, str] = {}
    for name in ("token", "authorization", "device_authorization", "revocation", "registration"):
        url = found.get(f"{name}_endpoint")
        urls[f"{name}_endpoint"] = check_url(f"The {name} endpoint of {issuer}", str(url)) if url else ""
    if not urls["token_endpoint"]:
        raise LoginFailed(f"The metadata of {issuer} has no token_endpoint: it gives out no tokens.")
    scopes = found.get("scopes_supported")
    names_itself = found.get("authorization_response_iss_parameter_supported") is True
    known = tuple(map(str, scopes)) if isinstance(scopes, list) else ()
    return Issuer(issuer, scopes=known, names_itself=names_itself, **urls)


def register_client(http: httpx.Client, issuer: Issuer) -> str:
    """Return the ID of a client registered for this command (RFC 7591).

    Raises LoginFailed when the issuer registers none.
    """
    advice = (
        "Ask its administrator for a public client with the redirect URI http://127.0.0.1/callback: --client-id ID."
    )
    if not issuer.registration_endpoint:
        raise LoginFailed(f"Neither the hub nor {issuer.issuer} says as which client to log in. {advice}")
    grants = ["authorization_code", "refresh_token"]
    if issuer.device_authorization_endpoint:
        grants.append(_DEVICE_GRANT)
    wanted = {
        "client_name": "toolhub",
        "application_type": "native",
        # Without a port: RFC 8252 §7.3 has issuers allow any for loopback addresses.
        "redirect_uris": ["http://127.0.0.1/callback"],
        "grant_types": grants,
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    status, made = fetch_json(http, "POST", issuer.registration_endpoint, json=wanted)
    if status not in (200, 201) or not isinstance(made.get("client_id"), str):
        raise LoginFailed(f"{issuer.issuer} registers no client ({_why(status, made)}). {advice}")
    return str(made["client_id"])


def request_tokens(http: httpx.Client, issuer: str, token_endpoint: str, form: dict[str, Any]) -> Tokens:
    """Return the token endpoint's answer. Raises GrantRefused, IssuerUnreachable."""
    status, answer = fetch_json(http, "POST", token_endpoint, data=form)
    # These do not end a login: the refresh token is still valid.
    if status >= 500 or status == 429:
        raise IssuerUnreachable(f"{issuer} answers HTTP {status}. Try again later.")
    if status != 200:
        raise GrantRefused(str(answer.get("error", "")), f"{issuer} refused: {_why(status, answer)}.")
    token, kind = access_token_in(answer), text_in(answer, "token_type")
    # A header can hold nothing else, and the hub would refuse a token of another kind (DPoP).
    if not token or kind.lower() != "bearer":
        raise GrantRefused("", f"{issuer} answered no Bearer token ({kind[:40] or 'no token_type'}).")
    return Tokens(token, text_in(answer, "refresh_token", TOKEN_MAX_CHARS), lifetime_s(answer.get("expires_in")))


def _why(status: int, answer: dict[str, Any]) -> str:
    words = [str(answer[name])[:_TEXT_MAX_CHARS] for name in ("error", "error_description") if answer.get(name)]
    return ": ".join(words).rstrip(".") or f"HTTP {status}"


def revoke_token(http: httpx.Client, endpoint: str, client_id: str, token: str, kind: str) -> bool:
    """Return whether the issuer reports the token as revoked. Raises IssuerUnreachable."""
    form = {"token": token, "token_type_hint": kind, "client_id": client_id}
    return fetch_json(http, "POST", endpoint, data=form)[0] == 200


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a login request."""

    client_id: str
    scopes: Sequence[str]
    resources: Sequence[str]
    """All resources that tokens may be issued for; the first token is for the first of them."""
    audience: str = ""

    @property
    def asks(self) -> dict[str, Any]:
        """Return the parameters of RFC 6749 §4.1.1 and RFC 8707 §2.1 for it."""
        named = {"client_id": self.client_id, "scope": " ".join(self.scopes), "audience": self.audience}
        return {**{name: value for name, value in named.items() if value}, **self._resource_fields(self.resources)}

    def token_form(self, **grant: str) -> dict[str, Any]:
        return {**grant, "client_id": self.client_id, **self._resource_fields(self.resources[:1])}

    @staticmethod
    def _resource_fields(resources: Iterable[str]) -> dict[str, Any]:
        return {"resource": list(resources)} if resources else {}


def by_device(
    http: httpx.Client,
    issuer: Issuer,
    request: Request,
    show: Callable[[str, str, str], object],
    pause: Callable[[float], object],
) -> Tokens:
    """RFC 8628. `show` receives URL, code, and the URL that holds the code or an empty text.

    Raises LoginFailed, IssuerUnreachable.
    """
    status, answer = fetch_json(http, "POST", issuer.device_authorization_endpoint, data=request.asks)
    code, shown, url = (answer.get(name) for name in ("device_code", "user_code", "verification_uri"))
    if status != 200 or not (isinstance(code, str) and isinstance(shown, str) and isinstance(url, str)):
        raise LoginFailed(f"{issuer.issuer} gives out no device code: {_why(status, answer)}.")
    complete = str(answer.get("verification_uri_complete") or "")
    show(check_url("The address to visit", url), shown, check_url("It", complete) if complete else "")
    valid_s = lifetime_s(answer.get("expires_in")) or _DEVICE_LIFETIME_MAX_S
    until_s = time.monotonic() + min(valid_s, _DEVICE_LIFETIME_MAX_S)
    pause_s = lifetime_s(answer.get("interval")) or _DEVICE_INTERVAL_S
    form = request.token_form(grant_type=_DEVICE_GRANT, device_code=code)
    expired = LoginFailed("The code has expired before anybody entered it. Run `toolhub login` again.")
    while time.monotonic() < until_s:
        pause(pause_s)
        try:
            return request_tokens(http, issuer.issuer, issuer.token_endpoint, form)
        except IssuerUnreachable:
            pause_s = min(2 * pause_s, 60.0)  # RFC 8628 §3.5: exponential backoff after a timeout
        except GrantRefused as refused:
            if refused.error == "slow_down":
                pause_s += 5.0
            elif refused.error == "access_denied":
                raise LoginFailed(f"The login was denied at {issuer.issuer}.") from refused
            elif refused.error == "expired_token":
                raise expired from refused
            elif refused.error != "authorization_pending":
                raise
    raise expired
