"""The suites on a real Redis, with another process's link beside; what is left of what was forgotten, and outages."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from tests.ports.approval_store_suite import ENDED, ApprovalStoreSuite, an_approval
from tests.ports.approval_store_suite import T0 as ASKED_AT
from tests.ports.approval_store_suite import then as decided
from tests.ports.artifact_records_suite import ArtifactRecordsSuite, an_artifact
from tests.ports.pin_store_suite import T0, Damage, PinStoreSuite, WrittenPinsSuite, a_pin, then
from tests.unit.stores.redis.redis_links import data_keys, link, other_link
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.artifact import ArtifactRecords
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.pin import Pin, PinFilter
from toolhub_service.domain.source import PinStore
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.records import RedisApprovals, RedisArtifacts, RedisPins

__all__ = ["link", "other_link"]


class TestRedisApprovals(ApprovalStoreSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> ApprovalStore:
        return RedisApprovals(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> ApprovalStore:
        return RedisApprovals(other_link)


async def test_nothing_is_left_of_forgotten_approvals(link: RedisLink) -> None:
    store = RedisApprovals(link)
    for number, state in enumerate(ENDED):
        approval = an_approval(f"apr-{number}", args_summary_json='"canary-4711"')
        await store.create(approval)
        assert await store.put(decided(approval, state))
    assert await store.forget(ASKED_AT * 2, 100) == len(ENDED)
    assert await data_keys(link) == set()
    assert await link.run("XLEN", link.key("feed")) == 0


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


async def overwrite(link: RedisLink, pin: Pin, record: bytes) -> None:
    assert await link.run("HSET", link.key("pin:" + " ".join(pin.key)), "record", record) == 0


class TestRedisPins(PinStoreSuite, WrittenPinsSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> PinStore:
        return RedisPins(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> PinStore:
        return RedisPins(other_link)

    @pytest.fixture
    def damage(self, link: RedisLink) -> Damage:
        return partial(overwrite, link)


async def test_pin_whose_record_the_server_has_lost_blocks_its_source(link: RedisLink) -> None:
    store = RedisPins(link)
    await store.put([a_pin(), a_pin("notes/write")])
    await link.run("DEL", link.key("pin:" + " ".join(a_pin().key)))
    with pytest.raises(HubFailure) as refused:
        await store.of_source("notes")
    assert refused.value.metadata["tool"] == "notes/read"


async def test_only_the_revision_is_left_of_forgotten_sources(link: RedisLink) -> None:
    store = RedisPins(link)
    await store.put([a_pin(), a_pin("notes/write"), a_pin("time/now")])
    await store.put([then(a_pin()), then(a_pin("time/now"))])
    for source in ("notes", "time"):
        await store.forget_source(source)
    assert await data_keys(link) == {"pins:revision"}


async def test_pin_that_is_seen_at_another_time_is_listed_once(link: RedisLink) -> None:
    store = RedisPins(link)
    await store.put([a_pin()])
    await store.put([moved := replace(then(a_pin()), seen_at_unix_ms=T0 + 5)])
    assert await store.page(PinFilter(), after=None, limit=10) == ([moved], 1)
    assert list(await store.of_source("notes")) == [moved]


async def test_change_whose_answer_was_lost_is_known_when_it_comes_again(
    link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["one", "one", "two"])
    monkeypatch.setattr(link, "token", lambda: next(tokens))
    store = RedisPins(link)
    assert [await store.put([a_pin()]) for _ in range(3)] == [True, True, False]
    assert await store.revision() == 1


async def test_redis_that_is_away_is_unavailable_to_pins() -> None:
    link = RedisLink("redis://127.0.0.1:1", SystemRandomness(), patience_s=0.05)
    store = RedisPins(link)
    asked = (
        store.of_source("notes"),
        store.put([a_pin()]),
        store.page(PinFilter(), after=None, limit=1),
        store.revision(),
        store.forget_source("notes"),
    )
    for refused in asked:
        with pytest.raises(ToolFailure) as failure:
            await refused
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    await link.close()
