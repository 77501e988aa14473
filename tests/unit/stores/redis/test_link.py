"""One link a process: many callers, outages of every kind, and how they are reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress

import pytest
import redis

from tests.overtaken import overtaken
from tests.rpc.severable_proxy import wire_to
from tests.services import RedisServer
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.stores.redis import feed as redis_feed
from toolhub_service.stores.redis.feed import KEPT
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.script import LuaText

SHORT_S = 0.3
LONG_S = 60.0
NOTIFY = LuaText("return tell('test', ARGV[1])")
INCREMENT = LuaText("return call('INCRBY', P .. 'number', ARGV[1])")
Links = Callable[..., RedisLink]


@pytest.fixture
async def links() -> AsyncIterator[Links]:
    """Makes links that are closed at the end."""
    async with AsyncExitStack() as open_links:

        def link(url: str, *, patience_s: float = LONG_S, max_waiting: int = 20_000) -> RedisLink:
            made = RedisLink(url, SystemRandomness(), patience_s=patience_s, max_waiting=max_waiting)
            open_links.push_async_callback(made.close)
            return made

        yield link


class RecordedEvents:
    """What a listener received, to be waited for."""

    def __init__(self, link: RedisLink) -> None:
        self.received: list[str | None] = []
        self._more = asyncio.Event()
        self.unlisten = link.listen(b"test", self._on_event)

    def _on_event(self, values: tuple[bytes, ...] | None) -> None:
        self.received.append(None if values is None else values[0].decode())
        self._more.set()

    async def until(self, holds: Callable[[list[str | None]], bool]) -> list[str | None]:
        async with asyncio.timeout(LONG_S):
            while not holds(self.received):
                self._more.clear()
                await self._more.wait()
        return self.received


@contextmanager
def hurried(link: RedisLink, patience_s: float = SHORT_S) -> Iterator[None]:
    """Only for what it has to refuse: nothing else is to be lost for time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link._pipeline, "_patience_s", patience_s)
        yield


async def refused(link: RedisLink) -> str:
    """The reason why a command was refused."""
    with pytest.raises(ToolFailure) as failure:
        await link.run("PING")
    error = failure.value.error
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert error.is_retryable
    return str(error.details["reason"])


async def test_five_hundred_callers_at_once_share_two_connections(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    await link.start()
    answers = await asyncio.gather(*(link.run("ECHO", str(number)) for number in range(500)))
    assert answers == [str(number).encode() for number in range(500)]
    database = redis_url.rpartition("/")[2]
    clients = (await link.run("CLIENT", "LIST")).decode().splitlines()
    assert len([line for line in clients if f" db={database} " in line]) == 2


async def test_callers_that_leave_take_no_answer_with_them(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    callers = [asyncio.create_task(link.run("ECHO", str(number))) for number in range(200)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert answers[1::2] == [str(number).encode() for number in range(1, 200, 2)]
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    assert await link.run("ECHO", "and on") == b"and on"


async def test_more_callers_than_there_is_room_for_are_refused_at_once(redis_url: str, links: Links) -> None:
    link = links(redis_url, max_waiting=10)
    answers = await asyncio.gather(*(link.run("PING") for _ in range(12)), return_exceptions=True)
    assert answers[:10] == [b"PONG"] * 10
    for answer in answers[10:]:
        assert isinstance(answer, ToolFailure)
        assert answer.error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_script_is_known_again_after_the_server_forgot_it(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    assert await link.call(INCREMENT, 1) == 1
    assert await link.call(INCREMENT, 1) == 2
    await link.run("SCRIPT", "FLUSH")
    assert await link.call(INCREMENT, 1) == 3


async def test_a_defect_of_a_script_reports_a_code_and_no_text(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    await link.run("SET", link.key("number"), "canary-4711")
    with pytest.raises(ToolFailure) as failure:
        await link.call(INCREMENT, "canary-4711")
    assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert "canary" not in repr(failure.value.error)
    with pytest.raises(ToolFailure) as failure:
        await link.run("LPUSH", link.key("number"), "1")
    assert failure.value.error.details["reason"] == "it answered WRONGTYPE"


@pytest.mark.promise("store.outage")
async def test_stopped_server_refuses_within_patience_and_serves_again_when_it_is_back(
    own_redis: RedisServer, links: Links
) -> None:
    link = links(own_redis.url)
    assert await link.call(INCREMENT, 5) == 5
    own_redis.kill()
    with hurried(link):
        async with asyncio.timeout(LONG_S):
            assert "no connection" in await refused(link)
    own_redis.start()
    patient = links(own_redis.url)
    assert await patient.call(INCREMENT, 1) == 6
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                assert await link.call(INCREMENT, 1) == 7
                break
            except ToolFailure:
                continue


async def test_call_waits_out_an_outage_that_is_shorter_than_its_patience(own_redis: RedisServer, links: Links) -> None:
    link = links(own_redis.url)
    assert await link.run("PING") == b"PONG"
    own_redis.kill()
    waiting = [asyncio.create_task(link.call(INCREMENT, 1)) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.to_thread(own_redis.start)
    assert sorted(await asyncio.gather(*waiting)) == list(range(1, 101))


async def test_call_after_a_long_outage_is_served_within_its_patience(redis_url: str, links: Links) -> None:
    async with wire_to(redis_url) as wire:

        async def served(patience_s: float) -> bool:
            link = links(wire.url, patience_s=patience_s)
            await link.run("PING")
            wire.cut()
            for _ in range(2):
                await refused(link)
            wire.mend()
            return bool(await link.run("PING") == b"PONG")

        async def in_time(patience_s: float) -> bool:
            with suppress(ToolFailure):
                return await served(patience_s)
            return False

        assert await overtaken(in_time, bool, first_s=0.8)


async def test_command_that_may_run_once_is_not_sent_again(own_redis: RedisServer, links: Links) -> None:
    link = links(own_redis.url)
    assert await link.call(INCREMENT, 1) == 1
    own_redis.freeze()
    sent = [asyncio.create_task(link.call(INCREMENT, 1, once=True)) for _ in range(10)]
    await asyncio.sleep(0)
    again = asyncio.create_task(link.call(INCREMENT, 100))
    await asyncio.to_thread(own_redis.restart)
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert all(isinstance(answer, ToolFailure) for answer in answers)
    assert await again == 101


async def test_frozen_server_refuses_within_patience_and_mixes_no_answers_up_when_it_thaws(
    own_redis: RedisServer, links: Links
) -> None:
    link = links(own_redis.url)
    assert await link.run("ECHO", "before") == b"before"
    own_redis.freeze()
    asked = [link.run("ECHO", f"lost-{number}") for number in range(20)]
    with hurried(link):
        lost = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, ToolFailure) for answer in lost)
    own_redis.thaw()
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                answers = await asyncio.gather(*(link.run("ECHO", str(number)) for number in range(20)))
                break
            except ToolFailure:
                continue
    assert answers == [str(number).encode() for number in range(20)]


async def test_a_listener_reconnects_after_an_outage_and_is_notified_of_the_gap(
    own_redis: RedisServer, links: Links
) -> None:
    link = links(own_redis.url)
    news = RecordedEvents(link)
    await link.start()
    await link.call(NOTIFY, "one")
    await news.until(lambda received: received == ["one"])
    own_redis.kill()
    await asyncio.to_thread(own_redis.start)
    other = links(own_redis.url)
    await other.call(NOTIFY, "two")
    await news.until(lambda received: None in received)
    await other.call(NOTIFY, "three")
    received = await news.until(lambda received: received[-1] == "three")
    assert received in (["one", None, "three"], ["one", None, "two", "three"])


async def test_a_listener_that_lagged_behind_the_stream_is_notified_of_the_gap(redis_url: str, links: Links) -> None:
    link, other = links(redis_url), links(redis_url)
    news = RecordedEvents(link)
    await link.start()
    await other.call(NOTIFY, "one")
    await news.until(lambda received: received == ["one"])
    await other.call(LuaText("for n = 1, 3 do tell('test', n) end call('XTRIM', P .. 'feed', 'MAXLEN', 1)"))
    assert await news.until(lambda received: received[-1] == "3") == ["one", None, "3"]


async def test_listener_notices_that_the_server_has_lost_its_data(
    redis_url: str, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_feed, "_BLOCK_S", 0.1)
    link, other = links(redis_url), links(redis_url)
    news = RecordedEvents(link)
    await link.start()
    for word in ("one", "two"):
        await other.call(NOTIFY, word)
    await news.until(lambda received: received == ["one", "two"])
    await other.run("FLUSHDB")
    await news.until(lambda received: received[-1] is None)
    await other.call(NOTIFY, "three")
    assert await news.until(lambda received: received[-1] == "three") == ["one", "two", None, "three"]


async def test_updates_come_in_order_and_only_from_after_the_start(redis_url: str, links: Links) -> None:
    link, other = links(redis_url), links(redis_url)
    await other.call(NOTIFY, "before")
    news = RecordedEvents(link)
    await link.start()
    words = [f"word-{number}" for number in range(1_200)]
    await asyncio.gather(*(other.call(NOTIFY, word) for word in words))
    assert await news.until(lambda received: received[-1:] == words[-1:]) == words


async def test_a_removed_listener_is_not_notified(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    left, stayed = RecordedEvents(link), RecordedEvents(link)
    await link.start()
    left.unlisten()
    await link.call(NOTIFY, "one")
    await stayed.until(lambda received: received == ["one"])
    assert left.received == []


async def test_the_feed_is_bounded_in_length(redis_url: str, links: Links) -> None:
    link = links(redis_url)
    await link.call(LuaText(f"for n = 1, {2 * KEPT} do tell('test', n) end"))
    assert await link.run("XLEN", link.key("feed")) <= KEPT + 100


async def test_wrong_password_is_reported_without_it(own_redis: RedisServer, links: Links) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("requirepass", "right")
    link = links(own_redis.url.replace("redis://", "redis://:canary-4711@"), patience_s=SHORT_S)
    with pytest.raises(ToolFailure) as failure:
        await link.start()
    assert failure.value.error.details["reason"] == "it refuses the user or the password"
    assert "canary" not in repr(failure.value.error)


@pytest.mark.parametrize(
    "url", ["http://:canary-4711@host/0", "redis://canary-4711:port/0", "redis://host/0?socket_timeout=canary-4711"]
)
def test_a_malformed_url_is_reported_without_it(url: str) -> None:
    with pytest.raises(HubFailure) as failure:
        RedisLink(url, SystemRandomness())
    assert failure.value.reason.code is Code.INVALID_ARGUMENT
    assert "canary" not in str(failure.value)
    assert failure.value.__suppress_context__


@pytest.mark.promise("store.no-eviction")
async def test_server_that_evicts_keys_is_refused_at_start(own_redis: RedisServer, links: Links) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(HubFailure) as failure:
        await links(own_redis.url).start()
    assert failure.value.reason.name == "REDIS_EVICTS"


async def test_full_server_refuses_and_loses_nothing(own_redis: RedisServer, links: Links) -> None:
    link = links(own_redis.url)
    await link.run("SET", "kept", "yes")
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory", "1")
    with pytest.raises(ToolFailure) as failure:
        await link.call(INCREMENT, 1)
    assert failure.value.error.details["reason"] == "its memory is full"
    assert await link.run("GET", "kept") == b"yes"


async def test_call_waits_for_a_primary_when_the_server_was_demoted(own_redis: RedisServer, links: Links) -> None:
    link = links(own_redis.url)
    assert await link.call(INCREMENT, 1) == 1
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.replicaof("127.0.0.1", 1)
        served = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
        waiting = asyncio.create_task(link.call(INCREMENT, 1))
        while admin.info("commandstats")["cmdstat_evalsha"]["calls"] == served:
            await link.run("PING")
        admin.replicaof("no", "one")
    assert await waiting == 2


async def test_callers_are_notified_when_the_link_closes(own_redis: RedisServer, links: Links) -> None:
    link = links(own_redis.url)
    await link.run("PING")
    own_redis.freeze()
    waiting = asyncio.create_task(link.run("PING"))
    await asyncio.sleep(0)
    await link.close()
    with pytest.raises(ToolFailure) as failure:
        await waiting
    assert failure.value.error.details["reason"] == "the hub stops"
