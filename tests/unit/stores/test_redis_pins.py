"""The suite on a real Redis, with another process's link beside; what is left of a forgotten source, and outages."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from tests.ports.pin_store_suite import T0, Damage, PinStoreSuite, WrittenPinsSuite, a_pin, then
from tests.unit.stores.redis_links import data_keys, link, other_link
from toolhub_service.app.deps import SystemRandomness
from toolhub_service.domain.errors import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.source import Pin, PinFilter, PinStore
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_records import RedisPins

__all__ = ["link", "other_link"]


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


async def test_redis_that_is_away_is_unavailable() -> None:
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
