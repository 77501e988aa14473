"""The suite, and what only a shared engine can be asked: other processes, kills, outages, words and pickles."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from prometheus_client import REGISTRY

from tests.ports.job_engine_suite import AT_ONCE_S, LONG_S, Engines, FakeRunner, JobEngineSuite, ids
from tests.services import RedisServer
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.job_engines.docket_engine import DocketEngine

SOON_S = 1.0
"""Redelivery where a test waits for it."""
NEVER_S = 600.0
"""Redelivery where a test must not owe its success to it."""

Make = Callable[..., DocketEngine]


@pytest.fixture
async def make(redis_url: str) -> AsyncIterator[Make]:
    made: list[DocketEngine] = []

    def one(max_running: int, *, url: str = redis_url, redelivery_s: float = SOON_S) -> DocketEngine:
        made.append(DocketEngine(url, "jobs", max_running, redelivery_s))
        return made[-1]

    yield one
    for engine in made:
        await engine.close(AT_ONCE_S)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


class TestDocketEngine(JobEngineSuite):
    @pytest.fixture
    def engines(self, make: Make) -> Engines:
        def one(max_running: int) -> JobEngine:
            return make(max_running)

        return one


@asynccontextmanager
async def victim(redis_url: str, room: int, redelivery_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.job_engines.docket_victim", redis_url, str(room), str(redelivery_s)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await line_of(process) == "serving"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LONG_S):
        return (await process.stdout.readline()).decode().strip()


async def test_jobs_run_wherever_there_is_room(make: Make) -> None:
    here, there = FakeRunner(held=True), FakeRunner(held=True)
    first, second = make(2), make(3)
    await first.start(here.run)
    await second.start(there.run)
    await asyncio.gather(*(first.enqueue(job_id) for job_id in ids(5)))
    await here.until(lambda: len(here.begun) == 2)
    await there.until(lambda: len(there.begun) == 3)
    assert set(here.begun) | set(there.begun) == set(ids(5))
    here.let_go()
    there.let_go()


@pytest.mark.promise("jobs.delivered")
async def test_jobs_of_a_killed_process_run_elsewhere_once(make: Make, redis_url: str, runner: FakeRunner) -> None:
    async with victim(redis_url, 8, SOON_S) as process:
        engine = make(8)
        await engine.start(runner.run)
        runner.held = True
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(16)))
        lost = {await line_of(process) for _ in range(8)}
        process.kill()
        runner.let_go()
        await runner.until(lambda: len(runner.ended) == 16)
    assert lost <= set(runner.ended)
    assert set(runner.begun.values()) == {1}


async def test_a_job_of_a_killed_process_is_taken_over_at_the_next_request(
    make: Make, redis_url: str, runner: FakeRunner
) -> None:
    """Without waiting for docket to find out: it still counts the dead delivery as running."""
    async with victim(redis_url, 1, NEVER_S) as process:
        engine = make(1, redelivery_s=NEVER_S)
        runner.held = True
        await engine.start(runner.run)
        await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(2)))
        lost = await line_of(process)
        await runner.until(lambda: len(runner.begun) == 1)
        process.kill()
        await process.wait()
        runner.let_go()
        await engine.enqueue(lost)
        await runner.until(lambda: len(runner.ended) == 2)
    assert runner.ended[lost] == 1


async def test_job_enqueued_while_it_runs_elsewhere_is_delivered_at_once(make: Make) -> None:
    here, there = FakeRunner(held=True), FakeRunner(held=True)
    first, second = make(1, redelivery_s=NEVER_S), make(1, redelivery_s=NEVER_S)
    await first.start(here.run)
    await first.enqueue("job-1")
    await here.until(lambda: here.begun["job-1"] == 1)
    await second.start(there.run)
    await second.enqueue("job-1")
    await there.until(lambda: there.begun["job-1"] == 1)
    assert not here.ended
    here.let_go()
    there.let_go()


@pytest.mark.parametrize("room", [8, 20], ids=["full", "with room"])
async def test_closed_process_hands_its_jobs_over_at_once(make: Make, room: int) -> None:
    here, there = FakeRunner(held=True), FakeRunner()
    first, second = make(room, redelivery_s=NEVER_S), make(8, redelivery_s=NEVER_S)
    await first.start(here.run)
    await asyncio.gather(*(first.enqueue(job_id) for job_id in ids(8)))
    await here.until(lambda: len(here.begun) == 8)
    await second.start(there.run)
    await first.close(AT_ONCE_S)
    await there.until(lambda: len(there.ended) == 8)
    assert len(here.cancelled) == 8


async def test_waiting_jobs_outlive_all_processes(make: Make, runner: FakeRunner) -> None:
    busy = FakeRunner(held=True)
    first = make(1, redelivery_s=NEVER_S)
    await first.start(busy.run)
    for job_id in ids(10):
        await first.enqueue(job_id)
    await busy.until(lambda: len(busy.begun) == 1)
    await first.close(AT_ONCE_S)
    second = make(4)
    await second.start(runner.run)
    await runner.until(lambda: len(runner.ended) == 10)
    assert set(runner.ended) == set(ids(10))


async def test_connections_are_bounded_for_any_number_of_jobs(make: Make, redis_url: str, runner: FakeRunner) -> None:
    engine = make(300)
    await engine.start(runner.run)
    await asyncio.gather(*(engine.enqueue(job_id) for job_id in ids(400)))
    await runner.until(lambda: len(runner.ended) == 400)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        database = client.connection_pool.connection_kwargs["db"]
        mine = [known for known in await client.client_list() if known["db"] == str(database)]
    assert len(mine) <= 48


@pytest.mark.slow
async def test_run_goes_on_while_redis_is_away_and_new_jobs_come_when_it_is_back(
    make: Make, own_redis: RedisServer, runner: FakeRunner
) -> None:
    runner.held = True
    engine = make(2, url=own_redis.url)
    await engine.start(runner.run)
    await engine.enqueue("long")
    await runner.until(lambda: runner.begun["long"] == 1)
    worker_lost_redis = engine._docket.session
    assert worker_lost_redis is not None
    own_redis.kill()
    with pytest.raises(ToolFailure) as refused:
        await engine.enqueue("early")
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert refused.value.error.is_retryable
    assert engine.running == 1
    async with asyncio.timeout(LONG_S):
        await worker_lost_redis
    own_redis.start()
    await engine.enqueue("late")
    await runner.until(lambda: runner.begun["late"] == 1)
    assert runner.begun["long"] == 1, "it never stopped"
    runner.let_go()
    await runner.until(lambda: runner.ended["long"] >= 1)
    await engine.enqueue("later")
    await runner.until(lambda: runner.ended["later"] == 1)


async def test_run_that_ends_in_the_moment_in_which_redis_is_lost_is_not_confused_with_the_next(make: Make) -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    begun: asyncio.Queue[str] = asyncio.Queue()
    let_go: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(job_id: str) -> None:
        begun.put_nowait(job_id)
        await let_go

    engine = make(4)
    await engine.start(run)
    async with asyncio.timeout(LONG_S):
        while engine._docket.session is None:  # noqa: ASYNC110 - docket has no event
            await asyncio.sleep(0)
    session, lost = engine._docket.session, asyncio.get_running_loop().create_future()
    engine._docket.session = lost
    await engine.enqueue("job-1")
    assert await begun.get() == "job-1"
    engine._again.add("job-1")
    lost.set_result(None)
    let_go.set_result(None)
    await asyncio.sleep(0)
    engine._docket.session = session
    await engine.enqueue("job-2")
    assert await begun.get() == "job-2"
    assert unhandled == []


@pytest.mark.slow
async def test_enqueue_gives_up_when_redis_is_frozen(make: Make, own_redis: RedisServer, runner: FakeRunner) -> None:
    engine = make(2, url=own_redis.url)
    await engine.start(runner.run)
    await engine.enqueue("job-1")
    await runner.until(lambda: runner.ended["job-1"] == 1)
    own_redis.freeze()
    try:
        with pytest.raises(ToolFailure) as refused:
            await engine.enqueue("job-2")
        assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    finally:
        own_redis.thaw()
    await engine.enqueue("job-2")
    await runner.until(lambda: runner.ended["job-2"] >= 1)


@pytest.mark.slow
async def test_password_of_redis_is_in_no_log_and_few_words_are_made(
    make: Make, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = make(2, url="redis://hub:open-sesame@127.0.0.1:1/0")
    await engine.start(runner.run)
    with pytest.raises(ToolFailure) as refused:
        await engine.enqueue("job-1")
    await engine.close(AT_ONCE_S)
    logged = [f"{record.getMessage()} {record.exc_info} {record.exc_text}" for record in caplog.records]
    assert not any("sesame" in line for line in logged)
    assert "sesame" not in str(refused.value.error)
    assert len([record for record in caplog.records if record.levelno >= logging.INFO]) <= 3


async def test_a_malformed_url_fails_at_the_start(make: Make, runner: FakeRunner) -> None:
    with pytest.raises(ValueError, match="URL must specify"):
        await make(2, url="http://hub:open-sesame@127.0.0.1/").start(runner.run)


async def test_pickles_found_in_redis_are_never_loaded(
    make: Make, redis_url: str, runner: FakeRunner, tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    poison = pickle.dumps(Trap())
    engine = make(2)
    await engine.start(runner.run)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        message: dict[Any, Any] = {
            "key": "0:trap",
            "when": "2026-01-01T00:00:00+00:00",
            "function": "job",
            "attempt": "1",
        }
        await client.xadd("jobs:stream", {**message, "args": poison, "kwargs": poison})
        await client.xadd("jobs:strikes", {"direction": "strike", "operator": "==", "value": poison})
    await runner.until(lambda: runner.ended["trap"] == 1)
    assert not (tmp_path / "sprung").exists()


async def test_a_malformed_message_does_not_end_the_deliveries(make: Make, redis_url: str, runner: FakeRunner) -> None:
    unhandled: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context["exception"]))
    engine = make(2)
    await engine.start(runner.run)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.xadd("jobs:stream", {"key": "0:nonsense"})
    await engine.enqueue("job-1")
    await runner.until(lambda: runner.ended["job-1"] == 1)
    assert len(unhandled) <= 1


def test_docket_has_no_metrics_in_our_registry() -> None:
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("docket")]
