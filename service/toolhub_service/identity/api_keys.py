"""API keys: what is stored of one, whether a presented one is valid, and which have been used.

A key is `thk_<id>_<secret>`. The ID is public; of the secret, which has 256 random bits, one round of sha256 is stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from toolhub_service.domain.call import Principal, Role, Tenancy

KEY_PREFIX: Final = "thk_"


class StoredKey(msgspec.Struct, frozen=True):
    """An API key as stored: its name and hash. Times are Unix seconds."""

    name: str
    """The principal."""
    sha256: str
    """Hex digest of the whole key text."""
    created_s: int | None = None
    """None: stored by a version without this field."""
    expires_s: int | None = None
    """None: valid until it is revoked."""
    roles: frozenset[Role] | None = None
    """The only roles, of those that the policy gives; None: all."""
    capabilities: frozenset[str] | None = None
    """Globs over capabilities, with the same meaning."""
    tenant: str = ""
    replaced_by: str = ""
    """ID of the key that replaced it; it stays valid until `expires_s`, so that callers have time to change."""

    @property
    def is_narrowed(self) -> bool:
        return self.roles is not None or self.capabilities is not None or bool(self.tenant)

    def has_expired(self, now_s: float) -> bool:
        return self.expires_s is not None and now_s >= self.expires_s


class KeyRefused(Exception):
    """The key is refused; the message says why, and contains nothing of the key but its ID."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        """A code for programs: `unknown`, `expired`, `replaced` or `tenant`."""
        self.message = message


_UNKNOWN: Final = "The API key is unknown or was revoked."
_OPAQUE: Final = (
    "The credential is no API key of a hub, which begins with `thk_`, and no JSON Web Token: it looks like an opaque "
    "token of another service, which the hub cannot check. An operator makes a key with `toolhub keys create NAME`."
)


def key_id_of(key: str) -> str:
    """Return the public part of a key: `thk_<id>`; empty when it does not look like a key."""
    # The secret may contain underscores: only the first two separate prefix, id and secret.
    parts = key.split("_", 2)
    return f"{parts[0]}_{parts[1]}" if len(parts) == 3 and key.startswith(KEY_PREFIX) else ""


def moment(unix_s: float) -> str:
    """Return a time such as `2026-11-24 04:06 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


class KnownKeys:
    """The current keys. Looking up a valid key counts as its use."""

    def __init__(
        self,
        keys: Mapping[str, StoredKey],
        describe: Callable[[str], Principal],
        now_s: Callable[[], float],
        tenancy: Callable[[str], Tenancy | None] = lambda _: None,
    ) -> None:
        """`describe` returns roles and rights of a principal under the policy in force; `now_s` Unix seconds; `tenancy`
        that of a tenant, None where the policy has none."""
        self._keys = dict(keys)
        self._describe = describe
        self._tenancy = tenancy
        self.now_s = now_s
        self._used: set[str] = set()
        self._narrowed: dict[str, tuple[StoredKey, Principal, Principal]] = {}

    def replace(self, keys: Mapping[str, StoredKey]) -> None:
        """Use another set from now on: a revoked key is refused at once."""
        self._keys = dict(keys)
        # Narrowed principals of removed keys are dropped; a changed key is noticed when it is used.
        self._narrowed = {key_id: kept for key_id, kept in self._narrowed.items() if key_id in self._keys}

    def all(self) -> Mapping[str, StoredKey]:
        return self._keys

    def take_used(self) -> set[str]:
        """Return IDs of the keys that were used since the last call."""
        used, self._used = self._used, set()
        return used

    def verify(self, key: str) -> StoredKey:
        """Return the valid key. Raises KeyRefused."""
        key_id = key_id_of(key)
        stored = self._keys.get(key_id)
        # An unknown ID costs no digest, and only a caller that has the whole key learns why it is refused.
        if stored is None or not hmac.compare_digest(stored.sha256, hashlib.sha256(key.encode()).hexdigest()):
            raise KeyRefused("unknown", _UNKNOWN if key.startswith(KEY_PREFIX) else _OPAQUE)
        if stored.expires_s is not None and stored.has_expired(self.now_s()):
            raise _expiry_refusal(key_id, stored)
        self._used.add(key_id)
        return stored

    def principal(self, key_id: str, stored: StoredKey) -> Principal:
        """Return the key's principal: what the policy gives, as far as the key allows it. The same object as long as
        neither changes. Raises KeyRefused for a key of a tenant other than the one in which the policy puts its
        principal."""
        described = self._describe(stored.name)
        if not stored.is_narrowed:
            return described
        kept = self._narrowed.get(key_id)
        # By identity: the policy creates a new principal whenever anything about it may have changed.
        if kept is None or kept[0] != stored or kept[1] is not described:
            roles = described.roles if stored.roles is None else described.roles & stored.roles
            if stored.tenant and described.tenant != stored.tenant and self._tenancy(stored.tenant) is not None:
                raise _of_another_tenant(key_id, stored)
            tenant = described.tenant or stored.tenant  # or a narrowed key would not be subject to its tenant's rules
            principal = replace(described, roles=roles, permissions=stored.capabilities, tenant=tenant)
            kept = self._narrowed[key_id] = stored, described, principal
        return kept[2]


def _expiry_refusal(key_id: str, stored: StoredKey) -> KeyRefused:
    assert stored.expires_s is not None
    when = moment(stored.expires_s)
    if stored.replaced_by:
        message = f"The API key {key_id} was replaced by {stored.replaced_by} and held until {when}. Use the new one."
        return KeyRefused("replaced", message)
    advice = f"An operator makes a new one with `toolhub keys rotate {key_id}`."
    return KeyRefused("expired", f"The API key {key_id} expired on {when}. {advice}")


def _of_another_tenant(key_id: str, stored: StoredKey) -> KeyRefused:
    return KeyRefused(
        "tenant",
        f"The API key {key_id} is of the tenant {stored.tenant}, and the policy does not put {stored.name} into it. An "
        "operator adds the principal to that entry of `tenants` in policy.yaml, or makes a key without --tenant.",
    )
