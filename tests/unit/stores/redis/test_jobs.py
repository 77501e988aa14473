"""The suite on a real Redis, with another process's link beside; outages, and what is left of forgotten jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from tests.ports.job_records import HOUR_MS, RESULT, T0, a_job, ended, kept, running
from tests.ports.job_store_suite import JobStoreSuite
from tests.ports.recording_listener import JobListener
from tests.services import RedisServer
from tests.unit.stores.redis.redis_links import data_keys, link, other_link
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.call import ExecContext
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobFilter, JobNews, may_follow, move_job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.result import JobState, Progress
from toolhub_service.stores.memory.jobs import MemoryJobs
from toolhub_service.stores.redis import pages as redis_pages
from toolhub_service.stores.redis.jobs import RedisJobs
from toolhub_service.stores.redis.link import RedisLink

SHORT_S = 2.0
T = TypeVar("T")

__all__ = ["link", "other_link"]


class TestRedisJobs(JobStoreSuite):
    @pytest.fixture
    def store(self, link: RedisLink) -> JobStore:
        return RedisJobs(link)

    @pytest.fixture
    def other(self, other_link: RedisLink) -> JobStore:
        return RedisJobs(other_link)


@pytest.fixture
async def own_link(own_redis: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(own_redis.url, SystemRandomness(), patience_s=SHORT_S)
    yield link
    await link.close()


async def until_served(attempt: Callable[[], Awaitable[T]]) -> T:
    """The answer once the server is back."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await attempt()
            except ToolFailure as refused:
                if refused.error.kind is not ErrorKind.TOOL_UNAVAILABLE or not refused.error.is_retryable:
                    raise


async def test_nothing_is_left_of_forgotten_jobs(link: RedisLink) -> None:
    store = RedisJobs(link)
    for number in range(3):
        context = ExecContext("r-1", "t-1" if number else "", session_id="s-1")
        job = a_job(f"job-{number}", key=f"key-{number}", context=context)
        await kept(store, job, running(job), ended(running(job)))
    assert await store.forget(T0 + HOUR_MS, 100) == 3
    assert await data_keys(link) == set()
    assert await link.run("XLEN", link.key("feed")) == 0, "what was told of them is gone, too"


async def test_updates_of_open_jobs_outlive_the_forgetting_of_older_ones(link: RedisLink) -> None:
    store = RedisJobs(link)
    await kept(store, a_job("old"), ended(a_job("old")))
    await kept(store, a_job("new"))
    assert await store.forget(T0 + HOUR_MS, 100) == 1
    assert await link.run("XLEN", link.key("feed")) == 1


async def test_large_entries_are_announced_and_read_from_the_store(link: RedisLink, other_link: RedisLink) -> None:
    store, other, listener = RedisJobs(link), RedisJobs(other_link), JobListener()
    other.listen(listener)
    await other.start()
    job = running(a_job())
    large = move_job(job, JobState.RUNNING, T0 + 2, progress=Progress(1, message="x" * 10_000))
    await kept(store, a_job(), job, large)
    await listener.until(lambda: listener.sequences("job-1") == [1, 2, 3])
    assert [news.status for news in listener.news] == [a_job().status, job.status, None]
    assert list(await other.history("job-1", 2, 10)) == [large.status]


async def test_arguments_are_written_once(own_link: RedisLink) -> None:
    store = RedisJobs(own_link)
    job = running(a_job(args={"text": "x" * 1_000_000}))
    await kept(store, a_job(args=job.call.args), job)
    before = int(_fact(await own_link.run("INFO", "stats"), "total_net_input_bytes"))
    for step in range(10):
        job = move_job(job, JobState.RUNNING, T0 + 2, progress=Progress(step))
        assert await store.put(job)
    assert int(_fact(await own_link.run("INFO", "stats"), "total_net_input_bytes")) - before < 100_000
    assert await store.get("job-1") == job


async def test_change_whose_answer_was_lost_is_known_again(link: RedisLink) -> None:
    store, token = RedisJobs(link), link.token()
    link.token = lambda: token  # type: ignore[method-assign]
    job = running(a_job())
    for _ in range(2):
        assert await store.create(a_job()) is None
    for _ in range(2):
        assert await store.put(job), "the very same change, sent again"
    assert [entry.sequence for entry in await store.history("job-1", 0, 10)] == [1, 2]
    del link.token
    assert not await store.put(job), "another writer's change to the same"


@pytest.mark.promise("store.outage")
async def test_outage_in_the_middle_loses_nothing_that_was_answered_and_tears_nothing(
    own_redis: RedisServer, own_link: RedisLink
) -> None:
    store = RedisJobs(own_link)
    await store.start()
    jobs = {f"job-{number}": a_job(f"job-{number}", key=f"key-{number}") for number in range(20)}
    answered: dict[str, Job] = {}
    enough = asyncio.Event()

    async def work(job: Job) -> None:
        await store.create(job)
        job = answered[job.job_id] = running(job)
        assert await store.put(job)
        with pytest.raises(ToolFailure):
            await report(job)

    async def report(job: Job) -> None:
        while True:
            job = move_job(job, JobState.RUNNING, T0 + 2, progress=Progress(job.version))
            assert await store.put(job)
            answered[job.job_id] = job
            if job.version == 20:
                enough.set()

    async with asyncio.TaskGroup() as all_work:
        for job in jobs.values():
            all_work.create_task(work(job))
        await enough.wait()
        await asyncio.to_thread(own_redis.kill)
    await asyncio.to_thread(own_redis.start)
    for job_id in jobs:
        found = await until_served(partial(store.get, job_id))
        assert found is not None
        assert found.version - answered[job_id].version in {0, 1}, "what was answered, or the one change that was not"
        history = await store.history(job_id, 0, 1_000)
        assert [entry.sequence for entry in history] == list(range(1, found.status.sequence + 1))
        assert history[-1] == found.status
        assert await store.put(move_job(found, JobState.QUEUED, T0 + 3, runner=""))
    assert (await store.count_jobs()).by_state == {JobState.QUEUED: 20}
    assert await store.create(a_job("job-x", key="key-7")) is not None


async def test_a_listener_is_notified_of_the_gap_and_goes_on_after_an_outage(
    own_redis: RedisServer, own_link: RedisLink
) -> None:
    store, listener = RedisJobs(own_link), JobListener()
    store.listen(listener)
    await store.start()
    await kept(store, a_job())
    await listener.until(lambda: listener.sequences("job-1") == [1])
    await asyncio.to_thread(own_redis.restart)
    await listener.until(lambda: JobNews("") in listener.news)
    assert await until_served(lambda: store.put(running(a_job())))
    await listener.until(lambda: 2 in listener.sequences("job-1"))


async def test_five_hundred_changes_at_once_are_all_kept(link: RedisLink) -> None:
    store = RedisJobs(link)
    jobs = [a_job(f"job-{number}") for number in range(500)]
    assert await asyncio.gather(*(store.create(job) for job in jobs)) == [None] * 500
    assert all(await asyncio.gather(*(store.put(running(job)) for job in jobs)))
    assert (await store.count_jobs()).by_state == {JobState.RUNNING: 500}


def _fact(info: bytes, name: str) -> str:
    return next(line.partition(":")[2] for line in info.decode().splitlines() if line.startswith(name))


@pytest.mark.parametrize("seed", range(4))
async def test_redis_pages_equal_those_of_a_store_in_memory(
    link: RedisLink, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(redis_pages, "_CHECKED_AT_ONCE", 7)
    chance = random.Random(seed)
    store, oracle = RedisJobs(link), MemoryJobs()
    jobs: dict[str, Job] = {}
    for at in range(200):
        now = T0 + at * 10
        change = _next_change(chance, jobs, now)
        if change.version == 1:
            assert await store.create(change) == await oracle.create(change)
        else:
            assert await store.put(change) == await oracle.put(change)
        jobs[change.job_id] = change
        alive_until = chance.choice([0, now + 500])
        for each in (store, oracle):
            await each.beat(f"runner-{at % 3}", alive_until)
        await _agree(chance, store, oracle, now)


async def _agree(chance: random.Random, store: RedisJobs, oracle: MemoryJobs, now: int) -> None:
    where = JobFilter(
        principal=chance.choice(["", "agent-0", "agent-1"]),
        states=frozenset(chance.sample(list(JobState), chance.choice([0, 0, 3]))),
        tool=chance.choice(["", "core/math.*", "x/*"]),
        request_id=chance.choice(["", "r-1"]),
        task_id=chance.choice(["", "t-1"]),
    )
    after = chance.choice([None, (now - 300, "job-05")])
    assert await store.page(where, after=after, limit=5) == await oracle.page(where, after=after, limit=5)
    assert await store.count_jobs() == await oracle.count_jobs()
    before, limit = now - chance.choice([0, 200]), chance.choice([3, 100])
    assert await store.find_unattended(now, before, limit) == await oracle.find_unattended(now, before, limit)
    assert await store.awaiting(after, limit) == await oracle.awaiting(after, limit)
    if not chance.randrange(10):
        assert await store.forget(now, limit) == await oracle.forget(now, limit)


def _next_change(chance: random.Random, jobs: dict[str, Job], now: int) -> Job:
    """A new job, or one of the changes that may come next."""
    open_jobs = [job for job in jobs.values() if not job.state.is_final]
    if not open_jobs or not chance.randrange(3):
        number = len(jobs)
        return a_job(
            f"job-{number:02}",
            principal=f"agent-{number % 3}",
            context=ExecContext(f"r-{number % 3}", f"t-{number % 2}"),
            created_at_unix_ms=now - now % 40,
            deadline_unix_ms=now + chance.choice([300, HOUR_MS]),
        )
    job = chance.choice(open_jobs)
    state = chance.choice([state for state in JobState if may_follow(job.state, state)])
    runner = f"runner-{chance.randrange(3)}" if state in {JobState.RUNNING, JobState.CANCELLING} else ""
    result, expires = (RESULT, now + chance.randrange(500)) if state.is_final else (None, 0)
    return move_job(job, state, now, result=result, runner=runner, expires_at_unix_ms=expires)
