"""Many jobs and several processes on one store: each effect once, each job to its end, although processes die."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.unit.runtime.jobs.faulty_jobs import Fault
from tests.unit.runtime.jobs.job_harness import AGENT, JobHarness, Process, ScriptedRun, a_job, turn
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.result import JobState, ToolResult

JOBS = [f"job-{number}" for number in range(200)]


async def _few_turns(run: ScriptedRun) -> ToolResult:
    await run.begin()
    run.act()
    for _ in range(sum(run.call.job_id.encode()) % 11):
        await turn()
    return run.ok()


async def test_two_processes_race_for_two_hundred_jobs(harness: JobHarness) -> None:
    harness.world.script = _few_turns
    processes = [harness.process(max_running=16), harness.process(max_running=16)]
    for job_id in JOBS:
        await harness.kept(a_job(job_id))
    for process in processes:
        await process.engine.start(process.runs.run)
    for job_id in JOBS:
        for process in processes:
            await process.engine.enqueue(job_id)
            await process.engine.enqueue(job_id)
    await harness.until(lambda: not any(process.engine.running + process.engine.waiting for process in processes))
    for job_id in JOBS:
        assert (await harness.check(job_id)).state is JobState.SUCCEEDED
    assert [harness.world.effects[job_id] for job_id in JOBS] == [1] * len(JOBS)


@pytest.mark.parametrize("seed", range(6))
async def test_processes_come_and_go_and_jobs_are_cancelled_while_the_store_fails(
    harness: JobHarness, seed: int
) -> None:
    """What always holds: every job ends once, with its reason, and no effect happens twice."""
    chance = random.Random(seed)
    harness.world.script = _few_turns
    for job_id in JOBS:
        await harness.kept(a_job(job_id))
    harness.store.faults = {number: chance.choice(list(Fault)) for number in range(2_000) if chance.random() < 0.05}
    process: Process = harness.process(max_running=8)
    for _ in range(4):
        await process.engine.start(process.runs.run)
        for job_id in chance.sample(JOBS, len(JOBS)):
            await process.engine.enqueue(job_id)
        for job_id in chance.sample(JOBS, 10):
            try:
                await process.jobs.cancel(AGENT, job_id, "enough")
            except ToolFailure:
                continue
        await process.engine.close(0)
        await process.heartbeat.leave()
        process = harness.process(max_running=8)
        harness.clock.advance(60)
    harness.store.faults = {}
    await process.steady()
    await process.engine.start(process.runs.run)
    async with asyncio.timeout(60):
        while sum((await harness.store.count_jobs()).by_state.values()):
            await process.heartbeat.beat()
            await process.reconciler.sweep()
            await turn()
    for job_id in JOBS:
        job = await harness.check_history(job_id)
        assert harness.world.effects[job_id] <= 1
        assert job.state is not JobState.SUCCEEDED or harness.world.effects[job_id] == 1
