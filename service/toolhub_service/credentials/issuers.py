"""Which authorization server issues the tokens of a source's server.

The one named by the operator, else by the source's own server (RFC 9728), with metadata that must name itself (RFC 8414
§3.3). A server without metadata of its own may be its own authorization server, as in MCP 2025-03-26.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from toolhub_service.credentials.answers import first_text, scope_of, text_in
from toolhub_service.credentials.secret import OAuthSettings
from toolhub_service.credentials.token_requests import TokenRequests, Unreachable

_METADATA: Final = re.compile(r'resource_metadata\s*=\s*"([^"]{1,2048})"', re.IGNORECASE)


class NamedIssuer(NamedTuple):
    issuer: str
    resource: str
    """For whom tokens are to be (RFC 8707)."""
    scope: str = ""
    """Scopes that the source's server requires; empty: none."""


async def named_issuer(
    requests: TokenRequests, oauth: OAuthSettings, server_url: str, challenge: str | None = None
) -> NamedIssuer:
    """Return the issuer that the source's server names. `challenge`: its WWW-Authenticate; None: it is asked for one.
    Raises Unreachable."""
    found = await _protected_resource(requests, oauth, server_url, challenge)
    if not found:
        own = "{0.scheme}://{0.netloc}".format(urlsplit(server_url))
        await issuer_metadata(requests, oauth, server_url, own, missing=_UNNAMED)
        return NamedIssuer(own, server_url)
    resource, issuer = text_in(found, "resource"), first_text(found.get("authorization_servers"))
    if not resource or not _covers(resource, server_url):
        raise Unreachable(_UNNAMED)
    # RFC 9728 lets the client choose among several; an operator who wants another sets `issuer`.
    if not issuer:
        raise Unreachable("Its server names no authorization server: name `issuer`.")
    return NamedIssuer(issuer, resource, scope_of(found.get("scopes_supported")))


_UNNAMED: Final = "Its server does not say who issues its tokens (RFC 9728): name `issuer`."


async def issuer_metadata(
    requests: TokenRequests, oauth: OAuthSettings, server_url: str, issuer: str, *, missing: str = ""
) -> Mapping[str, Any]:
    """Return the metadata of the authorization server. `missing`: the reason when it is not there. Raises
    Unreachable."""
    document = await _first(requests, oauth, server_url, _metadata_urls(issuer))
    # RFC 8414 §3.3: otherwise a server could publish metadata that sends codes to another one.
    if not is_same_issuer(text_in(document, "issuer"), issuer):
        raise Unreachable(missing or f"The metadata at {issuer} is missing, or of another issuer.")
    return document


def is_same_issuer(one: str, other: str) -> bool:
    """Return whether two texts name the same issuer: equal ones do, and a server's root with and without its slash,
    which URL types of many servers add."""
    shorter, longer = sorted((one, other), key=len)
    parts = urlsplit(shorter)
    return one == other or (longer == f"{shorter}/" and shorter == f"{parts.scheme}://{parts.netloc}")


async def _protected_resource(
    requests: TokenRequests, oauth: OAuthSettings, server_url: str, challenge: str | None
) -> Mapping[str, Any]:
    """Return what a server says of its protection (RFC 9728); empty: nothing."""
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
