"""`auth.per_user` of sources: callers authenticate to the source's server with their own credentials
(docs/credentials.md).

A kind that supports this has `auth: SourceAuth` in its section, and reads the credential from the vault in step 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec import Meta

from toolhub_service.credentials.secret import OAuthSettings, PerUserTerms
from toolhub_service.domain.credential import CredentialKind
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.headers import check_request_headers
from toolhub_service.sections.source_config import Section, SourceInvalid, SourceValues, Value

_PREFIX: Final = "Bearer "
_URLS: Final = ("issuer", "origins` or `token_url")
_OF_KINDS: Final = {
    "issuer": ("oauth",),
    "origins": ("oauth",),
    "redirect_uris": ("oauth",),
    "client_id": ("oauth", "exchange"),
    "client_secret": ("oauth", "exchange"),
    "scopes": ("oauth", "exchange"),
    "token_url": ("exchange",),
    "audience": ("exchange",),
}


_KINDS: Final = {
    "header": CredentialKind.HEADER,
    "oauth": CredentialKind.OAUTH,
    "exchange": CredentialKind.EXCHANGED,
}


class PerUser(Section, frozen=True):
    """Each caller has a credential of its own for the source, which the hub keeps sealed."""

    kind: Annotated[
        Literal["header", "oauth", "exchange"],
        Meta(
            description="header: what a user sets (`toolhub credentials set`); oauth: tokens of a user's login "
            "(`toolhub credentials login`); exchange: a token that the caller's own is exchanged for (RFC 8693)."
        ),
    ]
    issuer: Annotated[
        str, Meta(description="oauth: issuer of the authorization server; empty: an MCP server names it.")
    ] = ""
    client_id: Annotated[
        str,
        Meta(
            description="oauth: the hub's client there, or the https URL of its metadata; empty: it registers itself."
        ),
    ] = ""
    client_secret: Annotated[Value, Meta(description="oauth: its secret, preferably a reference; with `issuer`.")] = ""
    scopes: Annotated[
        tuple[str, ...], Meta(description="oauth: scopes to ask for; empty: those that the server names.")
    ] = ()
    origins: Annotated[
        tuple[str, ...],
        Meta(description="oauth: `https://HOST` of authorization servers that may be asked, besides that of `issuer`."),
    ] = ()
    token_url: Annotated[str, Meta(description="exchange: token endpoint that callers' own tokens are sent to.")] = ""
    audience: Annotated[
        str, Meta(description="exchange: for whom tokens are to be; empty: the source's URL as the `resource`.")
    ] = ""
    redirect_uris: Annotated[
        tuple[str, ...], Meta(description="oauth: where logins may lead back to, besides loopback addresses.")
    ] = ()
    header: Annotated[str, Meta(description="Header that carries it.")] = "Authorization"
    prefix: Annotated[
        str | None,
        Meta(description='Before it in the header; default: "Bearer " in Authorization, else nothing.'),
    ] = None
    required: Annotated[
        bool,
        Meta(description="false: callers without one are served with the source's own `headers` or `oauth`."),
    ] = True


class SourceAuth(Section, frozen=True):
    per_user: Annotated[
        PerUser | None,
        Meta(description="Calls carry their caller's own credential; see [credentials](credentials.md)."),
    ] = None


NO_AUTH: Final = SourceAuth()


def check_auth(place: str, auth: SourceAuth) -> None:
    """Raises SourceInvalid when the section is inconsistent."""
    if auth.per_user is None:
        return
    per_user = auth.per_user
    try:
        check_request_headers({per_user.header: per_user.prefix or ""})
    except ToolFailure as failure:
        raise SourceInvalid(f"{place}.per_user.header: {failure.error.message}") from failure
    for key, kinds in _OF_KINDS.items():
        if per_user.kind not in kinds and getattr(per_user, key):
            raise SourceInvalid(f"{place}.per_user.{key}: needs `kind: {' or '.join(kinds)}`")
    if per_user.kind == "exchange" and not (per_user.token_url and per_user.client_id):
        raise SourceInvalid(f"{place}.per_user: `kind: exchange` needs `token_url` and `client_id`")
    if per_user.kind == "oauth" and per_user.client_secret and not (per_user.client_id and per_user.issuer):
        # Otherwise the secret would be sent to any issuer that the server names (SEP-2352).
        raise SourceInvalid(f"{place}.per_user.client_secret: needs `client_id` and `issuer`")
    for at, url in enumerate((per_user.issuer, *per_user.origins, per_user.token_url)):
        if url and not url.startswith(("http://", "https://")):
            raise SourceInvalid(f"{place}.per_user.{_URLS[min(at, 1)]}: must begin with https://")


def auth_values(auth: SourceAuth) -> Iterator[tuple[str, Value]]:
    """Yield each value that may be a reference, with its place in the entry."""
    if auth.per_user is not None:
        yield "auth.per_user.client_secret", auth.per_user.client_secret


def per_user_terms(
    source: str, auth: SourceAuth, server_url: str, values: SourceValues, ca_file: str
) -> PerUserTerms | None:
    """Return the terms, or None without `per_user`. `server_url` holds no credentials. Raises ValueMissing."""
    per_user = auth.per_user
    if per_user is None:
        return None
    header = per_user.header.lower()
    prefix = per_user.prefix
    if prefix is None:
        prefix = _PREFIX if header == "authorization" else ""
    return PerUserTerms(
        source=source,
        kind=_KINDS[per_user.kind],
        header=header,
        prefix=prefix,
        is_required=per_user.required,
        server_url=server_url,
        oauth=OAuthSettings(
            issuer=per_user.issuer,
            client_id=per_user.client_id,
            client_secret=values.one(per_user.client_secret),
            scopes=per_user.scopes,
            origins=per_user.origins,
            redirect_uris=per_user.redirect_uris,
            token_url=per_user.token_url,
            audience=per_user.audience,
            ca_file=ca_file,
        ),
    )
