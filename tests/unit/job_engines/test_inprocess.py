"""The suite, and what is the embedded engine's own: memory, context and what is left at the end."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest

from tests.ports.job_engine_suite import AT_ONCE_S, Engines, FakeRunner, JobEngineSuite, ids
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.job_engines.inprocess import InprocessEngine

CURRENT: ContextVar[str] = ContextVar("current", default="nobody")


class TestInprocessEngine(JobEngineSuite):
    @pytest.fixture
    async def engines(self) -> AsyncIterator[Engines]:
        made: list[JobEngine] = []

        def make(max_running: int) -> JobEngine:
            made.append(InprocessEngine(max_running))
            return made[-1]

        yield make
        for engine in made:
            await engine.close(AT_ONCE_S)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


async def test_job_enqueued_before_the_start_waits_for_it(runner: FakeRunner) -> None:
    engine = InprocessEngine(1)
    await engine.enqueue("job-1")
    assert engine.waiting == 1
    await engine.start(runner.run)
    await runner.until(lambda: runner.ended["job-1"] == 1)
    assert engine.waiting == 0


async def test_job_enqueued_again_while_it_runs_goes_behind_those_that_wait(runner: FakeRunner) -> None:
    runner.held = True
    engine = InprocessEngine(1)
    await engine.start(runner.run)
    for job_id in ("a", "a", "b", "a"):
        await engine.enqueue(job_id)
        await runner.until(lambda: runner.begun["a"] == 1)
    assert engine.waiting == 2
    runner.let_go()
    await runner.until(lambda: runner.ended["a"] == 2)
    assert runner.order == ["a", "b", "a"]


@pytest.mark.promise("tenants.bounds")
async def test_jobs_of_several_tenants_start_in_turn(runner: FakeRunner) -> None:
    engine = InprocessEngine(1)
    for number in range(1_000):
        await engine.enqueue(f"a-{number}", "acme")
    for job_id, tenant in (("b-0", "globex"), ("c-0", "initech"), ("b-1", "globex"), ("a-0", "globex")):
        await engine.enqueue(job_id, tenant)
    assert engine.waiting == 1_003
    await engine.start(runner.run)
    await runner.until(lambda: runner.ended.total() == 1_003)
    assert runner.order[:7] == ["a-0", "b-0", "c-0", "a-1", "b-1", "a-2", "a-3"]
    assert runner.order[7:] == [f"a-{number}" for number in range(4, 1_000)]


async def test_two_thousand_waiting_jobs_cost_little(runner: FakeRunner) -> None:
    runner.held = True
    engine = InprocessEngine(1)
    await engine.start(runner.run)
    names = ids(2_001)
    await engine.enqueue(names[0])
    await runner.until(lambda: runner.begun[names[0]] == 1)
    tracemalloc.start()
    for name in names[1:]:
        await engine.enqueue(name)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert engine.waiting == 2_000
    assert size_bytes < 500_000
    await engine.close(AT_ONCE_S)


async def test_run_has_the_context_of_the_start_not_of_who_enqueued() -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    engine = InprocessEngine(1)

    async def run(_: str) -> None:
        await seen.put(CURRENT.get())

    CURRENT.set("the hub")
    await engine.start(run)
    CURRENT.set("a caller")
    await engine.enqueue("job-1")
    assert await seen.get() == "the hub"


async def test_nothing_is_delivered_after_the_close_has_begun(runner: FakeRunner) -> None:
    engine = InprocessEngine(1)
    await engine.start(runner.run)
    await engine.close(AT_ONCE_S)
    await engine.enqueue("job-1")
    assert engine.waiting == 0
    assert not runner.begun
