"""Bounds of what callers store, for tests without a policy."""

from __future__ import annotations

from msgspec import Struct

from toolhub_service.domain.call import Tenancy
from toolhub_service.domain.storage import StorageTerms
from toolhub_service.policy.storage import DEFAULT_TERMS


class FixedStorage(Struct):
    """Implements `domain.storage.StorageDirectory`: the same bounds for everybody, and no tenants."""

    terms: StorageTerms = DEFAULT_TERMS

    def tenant_of(self, principal_id: str) -> str:
        return ""

    def tenancy_of(self, principal_id: str) -> Tenancy | None:
        return None

    def storage_of(self, principal_id: str) -> StorageTerms:
        return self.terms


def with_quota(*, workspace: int | None = None, artifact: int | None = None, memory: int | None = None) -> FixedStorage:
    """These bounds, and the defaults for the others."""
    named = {"workspace": workspace, "artifact": artifact, "memory": memory}
    changed = {
        name: getattr(DEFAULT_TERMS, name)._replace(max_bytes=most) for name, most in named.items() if most is not None
    }
    return FixedStorage(DEFAULT_TERMS._replace(**changed))
