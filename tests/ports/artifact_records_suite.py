"""What every store of artifacts' records must do, for all processes. Inherit `ArtifactRecordsSuite`; the fixtures
`store` and `other` (a second instance on the same storage, or None where nothing is shared) are the subclass's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from toolhub_service.domain.artifact import Artifact, ArtifactRecords

T0 = 1_700_000_000_000
SHA = "a" * 64


def an_artifact(artifact_id: str = "art-1", **changes: Any) -> Artifact:
    return replace(Artifact(artifact_id, SHA, 100, "agent-a", T0, T0 + 1_000), **changes)


class ArtifactRecordsSuite:
    @pytest.fixture
    async def started(self, store: ArtifactRecords) -> AsyncIterator[ArtifactRecords]:
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: ArtifactRecords | None, started: ArtifactRecords) -> AsyncIterator[ArtifactRecords]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()

    async def test_added_artifact_is_read_whole_by_everyone(
        self, started: ArtifactRecords, another: ArtifactRecords
    ) -> None:
        artifact = an_artifact(media_type="text/plain", name="é.txt", task_id="t-1", call_id="c-1", size_bytes=2**40)
        await started.add(artifact)
        assert await another.get("art-1") == artifact
        assert await started.get("art-2") is None

    async def test_expired_artifact_is_read_until_it_is_removed(self, started: ArtifactRecords) -> None:
        await started.add(an_artifact(expires_at_unix_ms=1))
        assert await started.get("art-1") is not None
        await started.remove("art-1")
        assert await started.get("art-1") is None

    async def test_expired_ones_come_first_expired_first(self, started: ArtifactRecords) -> None:
        for number in (2, 0, 3, 1):
            await started.add(an_artifact(f"art-{number}", expires_at_unix_ms=T0 + number))
        assert list(await started.read_expired(T0 - 1, 10)) == []
        assert [each.artifact_id for each in await started.read_expired(T0 + 2, 10)] == ["art-0", "art-1", "art-2"]
        assert [each.artifact_id for each in await started.read_expired(T0 + 9, 2)] == ["art-0", "art-1"]

    async def test_pages_show_what_expires_last_first_of_one_owner_or_content_or_all(
        self, started: ArtifactRecords, another: ArtifactRecords
    ) -> None:
        for number in range(6):
            await started.add(
                an_artifact(
                    f"art-{number}",
                    principal="agent-b" if number == 2 else "agent-a",
                    sha256="b" * 64 if number % 2 else SHA,
                    expires_at_unix_ms=T0 + number // 2,  # each moment twice
                )
            )

        async def names(principal: str = "", sha256: str = "", limit: int = 10) -> list[str]:
            found, after = list[str](), None
            while page := await another.page(principal, sha256, after=after, limit=limit):
                found += [each.artifact_id for each in page]
                after = page[-1].expires_at_unix_ms, page[-1].artifact_id
            return found

        newest_first = [f"art-{number}" for number in (5, 4, 3, 2, 1, 0)]
        for limit in (1, 2, 5, 10):
            assert await names(limit=limit) == newest_first
            assert await names("agent-a", limit=limit) == [name for name in newest_first if name != "art-2"]
            assert await names("agent-a", "b" * 64, limit) == ["art-5", "art-3", "art-1"]
        assert await names("agent-c") == await names("agent-b", "b" * 64) == []

    async def test_bytes_may_go_with_the_last_artifact_that_has_them(
        self, started: ArtifactRecords, another: ArtifactRecords
    ) -> None:
        await started.add(an_artifact("art-1"))
        await another.add(an_artifact("art-2", principal="agent-b"))
        await started.add(an_artifact("art-3", sha256="b" * 64))
        assert not await started.remove("art-1")
        assert await another.remove("art-2")
        assert await started.remove("art-3")

    async def test_removing_an_unknown_artifact_frees_nothing(self, started: ArtifactRecords) -> None:
        await started.add(an_artifact())
        assert not await started.remove("art-2")
        assert await started.remove("art-1")
        assert not await started.remove("art-1")

    async def test_one_of_many_concurrent_removals_frees_the_bytes(
        self, started: ArtifactRecords, another: ArtifactRecords
    ) -> None:
        await asyncio.gather(*(started.add(an_artifact(f"art-{number}")) for number in range(20)))
        removals = [(started, another)[n % 2].remove(f"art-{n}") for n in range(20)]
        assert (await asyncio.gather(*removals)).count(True) == 1

    async def test_usage_is_what_a_principal_owns(self, started: ArtifactRecords, another: ArtifactRecords) -> None:
        assert await started.usage("agent-a") == (0, 0)
        await asyncio.gather(
            started.add(an_artifact("art-1", size_bytes=2**40)),
            another.add(an_artifact("art-2", size_bytes=5)),
            started.add(an_artifact("art-3", principal="agent-b", size_bytes=0)),
        )
        assert await another.usage("agent-a") == (2, 2**40 + 5)
        assert await started.usage("agent-b") == (1, 0)
        assert await another.usage_of(lambda owner: owner.startswith("agent-")) == (3, 2**40 + 5)
        assert await started.usage_of(lambda owner: owner == "agent-a") == (2, 2**40 + 5)
        assert await started.usage_of(lambda _: False) == (0, 0)
        await started.remove("art-1")
        assert await another.usage("agent-a") == (1, 5)
        await another.remove("art-2")
        assert await started.usage("agent-a") == (0, 0)
