"""The suite on a real Redis, with another process's link beside; outages, and what is left of forgotten jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from tests.ports.job_store_suite import HOUR_MS, T0, Ear, JobStoreSuite, a_job, ended, kept, running
from tests.services import RedisServer
from tests.unit.stores.redis_links import data_keys, link, other_link
from toolhub_service.app.system import SystemRandomness
from toolhub_service.domain.call import ExecContext
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobNews
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.progress import Progress
from toolhub_service.stores.redis_jobs import RedisJobs
from toolhub_service.stores.redis_link import RedisLink

SHORT_S = 0.3
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
async def outage_link(own_redis: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(own_redis.url, SystemRandomness(), patience_s=SHORT_S)
    yield link
    await link.close()


async def until_served(attempt: Callable[[], Awaitable[T]]) -> T:
    """The answer once the server is back."""
    async with asyncio.timeout(30):
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


async def test_news_of_open_jobs_outlives_the_forgetting_of_older_ones(link: RedisLink) -> None:
    store = RedisJobs(link)
    await kept(store, a_job("old"), ended(a_job("old")))
    await kept(store, a_job("new"))
    assert await store.forget(T0 + HOUR_MS, 100) == 1
    assert await link.run("XLEN", link.key("feed")) == 1


async def test_large_entries_are_told_of_and_read_from_the_store(link: RedisLink, other_link: RedisLink) -> None:
    store, other, ear = RedisJobs(link), RedisJobs(other_link), Ear()
    other.listen(ear)
    await other.start()
    job = running(a_job())
    large = moved(job, JobState.RUNNING, T0 + 2, progress=Progress(1, message="x" * 10_000))
    await kept(store, a_job(), job, large)
    await ear.until(lambda: ear.sequences("job-1") == [1, 2, 3])
    assert [news.status for news in ear.news] == [a_job().status, job.status, None]
    assert list(await other.history("job-1", 2, 10)) == [large.status]


async def test_arguments_are_written_once(link: RedisLink) -> None:
    store = RedisJobs(link)
    job = running(a_job(args={"text": "x" * 1_000_000}))
    await kept(store, a_job(args=job.call.args), job)
    before = int(_fact(await link.run("INFO", "stats"), "total_net_input_bytes"))
    for step in range(10):
        job = moved(job, JobState.RUNNING, T0 + 2, progress=Progress(step))
        assert await store.put(job)
    assert int(_fact(await link.run("INFO", "stats"), "total_net_input_bytes")) - before < 100_000
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


async def test_outage_in_the_middle_loses_nothing_that_was_answered_and_tears_nothing(
    own_redis: RedisServer, outage_link: RedisLink
) -> None:
    store = RedisJobs(outage_link)
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
            job = moved(job, JobState.RUNNING, T0 + 2, progress=Progress(job.version))
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
        assert await store.put(moved(found, JobState.QUEUED, T0 + 3, runner=""))
    assert (await store.tally()).by_state == {JobState.QUEUED: 20}
    assert await store.create(a_job("job-x", key="key-7")) is not None


async def test_listener_hears_of_the_gap_and_goes_on_after_an_outage(
    own_redis: RedisServer, outage_link: RedisLink
) -> None:
    store, ear = RedisJobs(outage_link), Ear()
    store.listen(ear)
    await store.start()
    await kept(store, a_job())
    await ear.until(lambda: ear.sequences("job-1") == [1])
    await asyncio.to_thread(own_redis.restart)
    await ear.until(lambda: JobNews("") in ear.news)
    assert await until_served(lambda: store.put(running(a_job())))
    await ear.until(lambda: 2 in ear.sequences("job-1"))


async def test_five_hundred_changes_at_once_are_all_kept(link: RedisLink) -> None:
    store = RedisJobs(link)
    jobs = [a_job(f"job-{number}") for number in range(500)]
    assert await asyncio.gather(*(store.create(job) for job in jobs)) == [None] * 500
    assert all(await asyncio.gather(*(store.put(running(job)) for job in jobs)))
    assert (await store.tally()).by_state == {JobState.RUNNING: 500}


def _fact(info: bytes, name: str) -> str:
    return next(line.partition(":")[2] for line in info.decode().splitlines() if line.startswith(name))
