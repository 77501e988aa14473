"""Callers' own credentials of sources, as stores keep them: what they are in the clear, the secret itself sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from toolhub_service.domain.tool import IdentityEnum


class CredentialKind(IdentityEnum):
    HEADER = "HEADER"
    """A header, token or key that its user has set."""
    OAUTH = "OAUTH"
    """Tokens of a login."""
    EXCHANGED = "EXCHANGED"
    """A token that the caller's own was exchanged for (RFC 8693)."""


class CredentialState(IdentityEnum):
    ACTIVE = "ACTIVE"
    LOGIN_NEEDED = "LOGIN_NEEDED"
    """Its authorization server does not refresh it any more."""


class CredentialKey(NamedTuple):
    """Whose credential it is, and of what."""

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
    """Of the key that it is sealed under."""
    sealed: bytes
    """AES-256-GCM: nonce, then ciphertext and tag; bound to whose it is, of what, `kind` and `generation`. Empty: it
    was removed."""
    generation: str
    """Random, another one with each login and each value that is set; a refresh keeps it."""
    created_at_unix_ms: int
    changed_at_unix_ms: int
    state: CredentialState = CredentialState.ACTIVE
    expires_at_unix_ms: int = 0
    """0: never, or nobody knows."""
    scopes: tuple[str, ...] = ()
    renewed_by: str = ""
    """The process that is refreshing it; empty: none."""
    renewed_until_unix_ms: int = 0
    """Until when that process is waited for."""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""

    @property
    def key(self) -> CredentialKey:
        return CredentialKey(self.tenant, self.principal, self.source)

    @property
    def is_removed(self) -> bool:
        """What is left of a removed one keeps its version: the next one of that place continues it, so that no change
        that was prepared for the former fits."""
        return not self.sealed

    def __repr__(self) -> str:
        # Without `sealed`: not even the ciphertext belongs into a log or a traceback.
        return f"StoredCredential({self.key}, {self.kind.value}, {self.state.value}, version {self.version})"


class CredentialStore(Protocol):
    """Stored credentials, whoever else shares the store; what a method has returned from is durable.

    Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    async def put(self, credential: StoredCredential) -> bool:
        """Replace the record whose version is one less; version 1 takes a place that is free. False when another change
        came first."""

    async def get(self, key: CredentialKey) -> StoredCredential | None:
        """Also one that was removed. Raises ToolFailure when what is there cannot be read."""

    async def page(
        self, *, owner: tuple[str, str] | None, source: str, after: tuple[int, str] | None, limit: int
    ) -> Sequence[StoredCredential]:
        """Those that changed last first, removed ones too, of one owner (tenant, principal) or of everybody; `source`
        empty: of all."""

    def place(self, credential: StoredCredential) -> tuple[int, str]:
        """Where a page ends that ends with it."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
