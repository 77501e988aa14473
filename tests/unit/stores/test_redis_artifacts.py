"""The suite on a real Redis, with another process's link beside; and what is left of removed ones."""

from __future__ import annotations

import pytest

from tests.ports.artifact_records_suite import ArtifactRecordsSuite, an_artifact
from tests.unit.stores.redis_links import data_keys, link, other_link
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_records import RedisArtifacts

__all__ = ["link", "other_link"]


class TestRedisArtifacts(ArtifactRecordsSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> ArtifactRecords:
        return RedisArtifacts(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> ArtifactRecords:
        return RedisArtifacts(other_link)


async def test_nothing_is_left_of_removed_artifacts(link: RedisLink) -> None:
    store = RedisArtifacts(link)
    for number in range(3):
        await store.add(an_artifact(f"art-{number}", size_bytes=0 if number else 5))
    for number in range(3):
        await store.remove(f"art-{number}")
    assert await data_keys(link) == set()
