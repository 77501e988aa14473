"""Redis stops under two hubs at work and comes back: calls report it, watchers stay, and nothing that ran is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.rpc.principals import (
    IMPATIENT,
    WAIT,
    WRITE,
    Client,
    CountedWaits,
    CountedWrites,
    Principals,
    hubs_of,
    hurry_links,
    is_gapless,
    merged,
    state,
    states,
)
from tests.rpc.statuses import failed
from tests.services import RedisServer
from toolhub.v1 import error_pb2

JOBS = 20


class OutageHarness:
    """Two hubs, the tools of each, and a client at each."""

    def __init__(self) -> None:
        self.waits = (CountedWaits(), CountedWaits())
        self.writes = (CountedWrites(), CountedWrites())
        self.here: Client
        self.there: Client

    @property
    def runs(self) -> tuple[int, int]:
        """Of the tool that may be repeated, and of the one that may not."""
        return sum(tool.runs for tool in self.waits), sum(tool.runs for tool in self.writes)

    def let_go(self) -> None:
        for tool in (*self.waits, *self.writes):
            tool.let_go.set()


@asynccontextmanager
async def site_on(
    redis: RedisServer, folder: Path, engine: str, *, dead_after_s: float
) -> AsyncIterator[OutageHarness]:
    harness = OutageHarness()
    jobs = {"jobs": {"engine": engine, "dead_after_s": dead_after_s}}
    settings = merged(IMPATIENT, jobs, {"stores": {"redis_url": redis.url}})
    tools = [[wait, write] for wait, write in zip(harness.waits, harness.writes, strict=True)]
    async with hubs_of(folder, settings, *tools) as hubs:
        people = Principals(*hubs)
        harness.here, harness.there = people.at(hubs[0]), people.at(hubs[1])
        yield harness


async def _through(harness: OutageHarness, redis: RedisServer, away_s: float) -> None:
    """Jobs run and are watched at both hubs while Redis is away; they end while it is, and it must show afterwards."""
    jobs = [
        await client.submit(tool) for tool in (WAIT, WRITE) for client in (harness.here, harness.there) * (JOBS // 4)
    ]
    watches = [aiter(harness.there.watch(job.job_id, timeout_s=60)) for job in jobs]
    seen = [[(await anext(watch)).status] for watch in watches]
    for job in jobs:
        await harness.here.reached(job.job_id, "RUNNING")
    await asyncio.to_thread(redis.stop)
    over = asyncio.get_running_loop().create_task(asyncio.sleep(away_s))
    harness.let_go()
    refused = await asyncio.gather(
        failed(harness.here.submit(WAIT)),
        failed(harness.there.job(jobs[0].job_id)),
        failed(harness.there.cancel(jobs[0].job_id)),
        failed(harness.here.page()),
    )
    assert {each.code for each in refused} == {grpc.StatusCode.UNAVAILABLE}
    keyed = await harness.here.call(WRITE, idempotency_key="k-1", request_id="work")
    assert (keyed.error.kind, keyed.error.retryable) == (error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, True)
    assert (await harness.here.call(WAIT)).ok, "what needs no store goes on"
    await over
    await asyncio.to_thread(redis.start)
    for job, watch, entries in zip(jobs, watches, seen, strict=True):
        entries += [answer.status async for answer in watch]
        assert is_gapless(entries), states(entries)
        assert state(entries[-1]) == "SUCCEEDED", entries[-1].error.message
        assert entries == [*entries[:1], *await harness.here.ended(job.job_id, entries[0].sequence)]


@pytest.mark.parametrize("engine", ["inprocess", "docket"])
@pytest.mark.promise("watch.gapless")
async def test_jobs_end_and_watchers_miss_nothing_although_redis_was_away(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """For longer than a process that gives no sign of life counts as alive."""
    hurry_links(monkeypatch)
    async with site_on(own_redis, tmp_path, engine, dead_after_s=1.5) as harness:
        await _through(harness, own_redis, away_s=3.0)
        assert harness.runs == (JOBS // 2 + 1, JOBS // 2), "nothing ran twice"
        fresh = [await client.submit(WRITE, idempotency_key="k-2") for client in (harness.here, harness.there)]
        assert states(await harness.there.ended(fresh[0].job_id))[-1] == "SUCCEEDED"
        assert fresh[0].job_id == fresh[1].job_id


@pytest.mark.slow
@pytest.mark.promise("store.outage")
async def test_ten_seconds_without_redis_lose_no_job(own_redis: RedisServer, tmp_path: Path) -> None:
    """As hubs are by default, and as impatient as they are."""
    async with site_on(own_redis, tmp_path, "docket", dead_after_s=5.0) as harness:
        await _through(harness, own_redis, away_s=10.0)
        assert harness.runs == (JOBS // 2 + 1, JOBS // 2), "nothing ran twice"


async def test_redis_that_stands_still_for_a_moment_loses_no_call(own_redis: RedisServer, tmp_path: Path) -> None:
    async with site_on(own_redis, tmp_path, "inprocess", dead_after_s=0.5) as harness:
        job = await harness.here.submit(WRITE)
        await harness.here.reached(job.job_id, "RUNNING")
        own_redis.freeze()
        waiting: list[Any] = [asyncio.create_task(harness.there.job(job.job_id)) for _ in range(5)]
        late = asyncio.create_task(harness.here.submit(WAIT))
        answered, _ = await asyncio.wait({late, *waiting}, timeout=1.0)
        assert not answered
        own_redis.thaw()
        assert {answer.job_id for answer in await asyncio.gather(*waiting)} == {job.job_id}
        harness.let_go()
        for job_id in (job.job_id, (await late).job_id):
            assert states(await harness.there.ended(job_id))[-1] == "SUCCEEDED"
        assert harness.runs == (1, 1)
