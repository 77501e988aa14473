"""Callers' own credentials of sources, as stored: metadata in clear text, the secret itself sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from toolhub_service.domain.tool import IdentityEnum


class CredentialKind(IdentityEnum):
    HEADER = "HEADER"
    """A header, token or key that its user has set."""
    OAUTH = "OAUTH"
    """Tokens of an OAuth login."""
    EXCHANGED = "EXCHANGED"
    """A token that the caller's own was exchanged for (RFC 8693)."""


class CredentialState(IdentityEnum):
    ACTIVE = "ACTIVE"
    LOGIN_NEEDED = "LOGIN_NEEDED"
    """Its authorization server no longer refreshes it."""


class CredentialKey(NamedTuple):
    """Whose credential it is, and for what."""

    tenant: str
    principal: str
    source: str


class StoredCredential(Struct, frozen=True, gc=False):
    """Every change is a new record with the next version."""

    tenant: str
    principal: str
    source: str
    kind: CredentialKind
    key_id: str
    """Id of the key that seals it."""
    sealed: bytes
    """AES-256-GCM: nonce, then ciphertext and tag; bound to the owner, the source, `kind` and `generation`. Empty: it
    was removed."""
    generation: str
    """Random, new with each login and each value that is set; a refresh keeps it."""
    created_at_unix_ms: int
    changed_at_unix_ms: int
    state: CredentialState = CredentialState.ACTIVE
    expires_at_unix_ms: int = 0
    """0: never, or unknown."""
    scopes: tuple[str, ...] = ()
    renewed_by: str = ""
    """The process that is refreshing it; empty: none."""
    renewed_until_unix_ms: int = 0
    """Until when others wait for that process."""
    version: int = 1
    """Incremented by every change; compare-and-set compares it."""

    @property
    def key(self) -> CredentialKey:
        return CredentialKey(self.tenant, self.principal, self.source)

    @property
    def is_removed(self) -> bool:
        """The record of a removed credential keeps its version, and the next one continues it, so that no change
        prepared for the former one applies."""
        return not self.sealed

    def __repr__(self) -> str:
        # Without `sealed`: not even the ciphertext belongs in a log or a traceback.
        return f"StoredCredential({self.key}, {self.kind.value}, {self.state.value}, version {self.version})"


class CredentialStore(Protocol):
    """Credentials in a store that others may share; when a method has returned, its change is durable.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def put(self, credential: StoredCredential) -> bool:
        """Replace the record whose version is one less; version 1 requires that there is none. Return False when
        another change came first."""

    async def get(self, key: CredentialKey) -> StoredCredential | None:
        """Return a record, also a removed one. Raises ToolFailure when it cannot be read."""

    async def page(
        self, *, owner: tuple[str, str] | None, source: str, after: tuple[int, str] | None, limit: int
    ) -> Sequence[StoredCredential]:
        """Return records, latest change first, removed ones too, of one owner (tenant, principal) or of everybody; an
        empty `source` matches all."""

    def place(self, credential: StoredCredential) -> tuple[int, str]:
        """Return the cursor of a page that ends with it."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
