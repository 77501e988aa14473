"""What every store of credentials must do, for all processes. Inherit `CredentialStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started), `other` (a second instance on the same storage, as another process has
it, not started either; None where nothing is shared).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.credential import (
    CredentialKey,
    CredentialKind,
    CredentialState,
    CredentialStore,
    StoredCredential,
)

T0 = 1_700_000_000_000


def a_credential(principal: str = "alice", source: str = "shop", tenant: str = "", **more: Any) -> StoredCredential:
    stored = StoredCredential(
        tenant=tenant,
        principal=principal,
        source=source,
        kind=CredentialKind.OAUTH,
        key_id="k1",
        sealed=b"\x00\xff sealed",
        generation="g1",
        created_at_unix_ms=T0,
        changed_at_unix_ms=T0,
    )
    return replace(stored, **more)


class CredentialStoreSuite:
    @pytest.fixture
    async def started(self, store: CredentialStore) -> AsyncIterator[CredentialStore]:
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def beside(self, started: CredentialStore, other: CredentialStore | None) -> AsyncIterator[CredentialStore]:
        """What another process sees; the same where nothing is shared."""
        if other is None:
            yield started
            return
        await other.start()
        yield other
        await other.close()

    async def test_one_place_has_one_credential_and_the_first_change_of_a_version_counts(
        self, started: CredentialStore, beside: CredentialStore
    ) -> None:
        first = a_credential()
        assert await started.put(first)
        assert not await beside.put(replace(first, generation="g2")), "the place is taken"
        second = replace(first, version=2, state=CredentialState.LOGIN_NEEDED, renewed_by="hub", scopes=("a", "b"))
        assert [await beside.put(second), await started.put(replace(second, key_id="k2"))] == [True, False]
        assert await started.get(first.key) == second

    async def test_a_change_that_was_prepared_before_a_removal_fits_none_of_the_credentials_that_follow(
        self, started: CredentialStore, beside: CredentialStore
    ) -> None:
        first = a_credential()
        assert await started.put(first)
        stale = [replace(first, version=version, sealed=b"stale") for version in (2, 3)]
        assert await beside.put(replace(first, version=2, sealed=b""))
        assert not await started.put(stale[0]), "it was removed since"
        for version in (3, 4):
            login = replace(first, version=version, generation=f"g{version}")
            assert await started.put(login)
            assert [await beside.put(each) for each in stale] == [False, False]
            assert await beside.get(first.key) == login
        removed = replace(first, version=5, sealed=b"")
        assert await beside.put(removed)
        left = await started.get(first.key)
        assert left is not None
        assert left.is_removed
        assert [each.is_removed for each in await beside.page(owner=None, source="", after=None, limit=9)] == [True]

    async def test_any_two_principals_have_different_keys(
        self, started: CredentialStore, beside: CredentialStore
    ) -> None:
        keys = [
            CredentialKey("", "a b", "s"),
            CredentialKey("", "a", "b"),
            CredentialKey("a", "", "b"),
            CredentialKey("", "a\0b", "s"),
            CredentialKey("t", "issuer:ä/x*", "s"),
        ]
        for at, key in enumerate(keys):
            stored = a_credential(key.principal, key.source, key.tenant, generation=f"g{at}")
            assert await started.put(stored)
        found = [await beside.get(key) for key in keys]
        assert [each and each.generation for each in found] == [f"g{at}" for at in range(len(keys))]

    async def test_pages_hold_an_owners_or_everybodys_the_last_changed_first(
        self, started: CredentialStore, beside: CredentialStore
    ) -> None:
        for at, (principal, source) in enumerate([("alice", "a"), ("bob", "a"), ("alice", "b"), ("alice", "c")]):
            assert await started.put(a_credential(principal, source, changed_at_unix_ms=T0 + at))
        assert await started.put(a_credential("alice", "a", "other tenant", changed_at_unix_ms=T0 + 9))
        own = await beside.page(owner=("", "alice"), source="", after=None, limit=9)
        assert [each.source for each in own] == ["c", "b", "a"]
        of_a = await beside.page(owner=None, source="a", after=None, limit=9)
        assert [(each.tenant, each.principal) for each in of_a] == [
            ("other tenant", "alice"),
            ("", "bob"),
            ("", "alice"),
        ]
        narrow = await beside.page(owner=("", "alice"), source="b", after=None, limit=9)
        assert [each.source for each in narrow] == ["b"]
        assert len(await beside.page(owner=None, source="", after=None, limit=2)) == 2
