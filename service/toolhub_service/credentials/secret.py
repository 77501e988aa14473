"""The sealed part of a credential, the settings of a source about credentials, and what a call receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolhub_service.credentials.sealing import SealBroken, SealingKeys
from toolhub_service.domain.credential import CredentialKind, CredentialState, StoredCredential
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.source import OPERATORS_LOGIN

T = TypeVar("T")


class Hidden(Struct, frozen=True, gc=False):
    """A struct whose values are never shown."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class ClientAt(Hidden, frozen=True, gc=False, kw_only=True):
    """The hub's client at one authorization server."""

    token_url: str = ""
    """The token endpoint; no other is used."""
    revocation_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    """Secret of a client that was registered for one login; a configured one's is in the configuration only."""
    in_body: bool = False
    """Whether it accepts the secret in the form only."""


class Secret(Hidden, frozen=True, gc=False):
    """The sealed content."""

    value: str
    """A value that a user has set, or an access token."""
    refresh_token: str = ""
    expires_at_unix_ms: int = 0
    """0: never, or unknown."""
    renew_at_unix_ms: int = 0
    """A little before the expiry."""
    client: ClientAt = ClientAt()
    resource: str = ""
    scope: str = ""
    server: str = ""
    """Origin of the server that it was given for: it is never sent to another one that its source may have later."""

    def is_due(self, now_unix_ms: int) -> bool:
        return 0 < self.renew_at_unix_ms <= now_unix_ms


def pack(value: Struct) -> bytes:
    return msgspec.json.encode(value)


def unpack(data: bytes, kind: type[T]) -> T:
    """Return the secret. Raises ValueError, which contains nothing of the data."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        # Without its cause, because msgspec's message may quote a value.
        raise ValueError("it was written by a newer version") from None


class CallerCredential(NamedTuple):
    """For one caller's requests to one source. Never shown, never kept longer than these requests take."""

    header: str
    """Name of the header, in lower case."""
    value: str
    """The whole value of the header."""
    secret: str
    """The part that must not appear in an answer."""
    generation: str
    """Changes when its user has given another credential."""
    kind: CredentialKind

    def __repr__(self) -> str:
        return "CallerCredential(…)"


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """How tokens for one source are had."""

    issuer: str = ""
    """Of the authorization server; empty: the source's server names it."""
    client_id: str = ""
    """Empty: the hub registers itself (RFC 7591). An https URL: its metadata stands there (CIMD)."""
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    """`scheme://host[:port]` that may be asked besides those of the server and of `issuer`."""
    redirect_uris: tuple[str, ...] = ()
    """To which a login may lead besides loopback addresses."""
    token_url: str = ""
    """Where callers' own tokens are exchanged (RFC 8693), and nowhere else."""
    audience: str = ""
    """For whom exchanged tokens are; empty: the source's URL as the `resource`."""
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class PerUserTerms:
    """One source's `auth.per_user`, with references resolved."""

    source: str
    kind: CredentialKind
    header: str = "authorization"
    """Lower case."""
    prefix: str = "Bearer "
    is_required: bool = True
    """False: who has none is served with what the source itself is configured with."""
    server_url: str = field(default="", repr=False)
    """Of the source, without credentials: the resource that tokens are made for."""
    oauth: OAuthSettings = OAuthSettings()
    is_source_login: bool = False
    """Whether this is the login of the source itself, which an operator makes for all callers."""

    @property
    def command(self) -> str:
        """With which its user gives a credential."""
        if self.is_source_login:
            return f"{OPERATORS_LOGIN} {self.source}"
        verb = "set" if self.kind is CredentialKind.HEADER else "login"
        return f"toolhub credentials {verb} {self.source}"

    @property
    def origin(self) -> str:
        """Of its server: `scheme://host:port`."""
        parts = urlsplit(self.server_url)
        # The default port is written out, so that two forms of one server are equal.
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"

    def credential_from(self, stored: StoredCredential, secret: Secret) -> CallerCredential:
        value = f"{self.prefix}{secret.value}"
        return CallerCredential(self.header, value, secret.value, stored.generation, stored.kind)


class Envelopes:
    """Seals and opens stored credentials."""

    def __init__(self, keys: SealingKeys) -> None:
        self.keys = keys

    def seal(self, stored: StoredCredential, secret: Secret) -> StoredCredential:
        """Return the record with another secret, sealed under the current key."""
        return replace(
            stored,
            key_id=self.keys.current,
            sealed=self.keys.seal(pack(secret), *_seal_context(stored)),
            expires_at_unix_ms=secret.expires_at_unix_ms,
            scopes=tuple(secret.scope.split()),
        )

    def open(self, terms: PerUserTerms, stored: StoredCredential) -> Secret:
        """Return the opened secret. Raises ToolFailure."""
        try:
            return unpack(self.keys.open(stored.key_id, stored.sealed, *_seal_context(stored)), Secret)
        except SealBroken as broken:
            raise _unreadable(terms, broken.key_id) from None
        except ValueError:
            raise _unreadable(terms, "") from None


def _seal_context(stored: StoredCredential) -> tuple[str, ...]:
    """Return what its seal is bound to."""
    return (stored.tenant, stored.principal, stored.source, stored.kind.value, stored.generation)


def missing(terms: PerUserTerms, state: CredentialState | None = None) -> ToolFailure:
    """The caller, or the source itself, has no usable credential."""
    ended = "its authorization server does not renew the last login"
    if terms.is_source_login:
        message = f"The source {terms.source} wants a login{f' again: {ended}' if state is not None else ''}. "
        message += f"Nothing was sent. An operator logs in with: {terms.command}"
    else:
        why = "has none" if state is None else f"must log in again: {ended}"
        message = f"The source {terms.source} wants a credential of the caller's own, and the caller {why}. "
        message += f"Nothing was sent. The user gives one with: {terms.command}"
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        message,
        blames_upstream=False,
        source=terms.source,
        command=terms.command,
        state=state.value if state is not None else "NONE",
    )


def of_another_server(terms: PerUserTerms) -> ToolFailure:
    """The credential was given for the server that the source had then, and identifies its owner only there."""
    giver = "an operator logged in" if terms.is_source_login else "the caller gave a credential"
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        f"The source {terms.source} has another server than the one for which {giver}. Nothing was sent. To "
        f"store a credential for the new server: {terms.command}",
        blames_upstream=False,
        source=terms.source,
        command=terms.command,
        state="OTHER_SERVER",
    )


def _unreadable(terms: PerUserTerms, key_id: str) -> ToolFailure:
    if key_id:
        message = (
            f"The credential for {terms.source} is sealed under the key `{key_id}`, which this hub does not have. "
        )
        message += "An operator must add it to `credentials.keys`."
        return refuse(
            ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, blames_upstream=False, reason="SEALING_KEY_MISSING"
        )
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        f"The credential for {terms.source} is damaged and was not used. The user gives it again with: {terms.command}",
        blames_upstream=False,
        source=terms.source,
        command=terms.command,
        state="DAMAGED",
    )
