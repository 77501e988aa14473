"""The store fails at every request, before or after it did what it was asked: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.faulty_jobs import Fault
from tests.unit.runtime.jobs.job_harness import (
    AGENT,
    MARK,
    JobHarness,
    Process,
    ScriptedRun,
    a_job,
    answered,
    in_state,
    safe,
    turn,
)
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.job import ForbiddenTransition
from toolhub_service.domain.result import JobState, Progress, ToolResult

Script = Callable[[ScriptedRun], Awaitable[ToolResult]]
REQUESTS = range(1, 12)
"""More than any of the runs here makes."""


async def brief(run: ScriptedRun) -> ToolResult:
    """A side effect, as the pipeline has it: a run that cannot say that it begins is refused, and does nothing."""
    try:
        await run.begin()
    except ToolFailure as refused:
        return answered(run.job)._replace(ok=False, value=None, error=refused.error, attempts=0)
    run.act()
    run.sink.progress(Progress(1))
    for _ in range(9):
        await turn()
    return run.ok()


async def patient_remote(run: ScriptedRun) -> ToolResult:
    """Marks what it sends, however long the store is away."""
    runs, job_id = run.process.runs, run.call.job_id
    runs.stopping(job_id)
    while await runs.mark(job_id) is None:
        try:
            await runs.keep_mark(job_id, MARK)
        except ToolFailure:
            continue
        run.act()
    return run.ok()


async def _settled(harness: JobHarness, process: Process) -> None:
    """Deliver as the sweep would, until it is over."""
    async with asyncio.timeout(60):
        while not (await harness.job()).state.is_final:
            await process.deliver()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("script", [brief, safe, patient_remote])
async def test_job_survives_any_one_failed_request_to_the_store(
    harness: JobHarness, process: Process, script: Script, number: int, fault: Fault
) -> None:
    harness.world.script = script
    harness.world.go["job-1"].set()
    harness.store.faults = {number: fault}
    await harness.kept(a_job())
    await _settled(harness, process)
    job = await harness.check()
    assert process.observer.defects == []
    assert job.runs <= 2, "refused before its effect, it may queue again"
    assert (job.state, harness.world.effects["job-1"]) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("script", [brief, safe, patient_remote])
async def test_every_request_from_one_on_fails_for_a_while(
    harness: JobHarness, process: Process, script: Script, number: int, fault: Fault
) -> None:
    harness.world.script = script
    harness.world.go["job-1"].set()
    harness.store.faults = dict.fromkeys(range(number, number + 7), fault)
    await harness.kept(a_job())
    await _settled(harness, process)
    job = await harness.check()
    assert (job.state, harness.world.effects["job-1"]) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
@pytest.mark.parametrize("begun", [False, True])
async def test_takeover_survives_any_one_failed_request_to_the_store(
    harness: JobHarness, process: Process, state: JobState, begun: bool, number: int, fault: Fault
) -> None:
    harness.world.script = brief
    await harness.kept(*in_state(a_job(), state, "runner-dead", begun=begun))
    await process.steady()
    harness.store.faults = {len(harness.store.asked) + number: fault}
    await _settled(harness, process)
    job = await harness.check()
    assert harness.world.effects["job-1"] == (job.state is JobState.SUCCEEDED)
    if begun:
        assert job.state is JobState.LOST


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("script", [brief, safe, patient_remote])
async def test_hand_over_survives_any_one_failed_request_to_the_store(
    harness: JobHarness, process: Process, script: Script, number: int, fault: Fault
) -> None:
    """The process leaves in the middle of it; another one takes what it left."""
    held = asyncio.Event()

    async def script_and_wait(run: ScriptedRun) -> ToolResult:
        answer = await script(run)
        held.set()
        await asyncio.Event().wait()
        return answer

    harness.world.script = script_and_wait
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    run = process.deliver()
    await held.wait()
    harness.store.faults = {len(harness.store.asked) + number: fault}
    run.cancel()
    await asyncio.wait({run})
    harness.store.faults = {}
    await process.heartbeat.leave()
    harness.world.script = script
    other = harness.process()
    await other.steady()
    await _settled(harness, other)
    job = await harness.check(effects_max=2 if script is safe else 1)
    assert job.state is (JobState.LOST if script is brief else JobState.SUCCEEDED)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", range(1, 5))
async def test_cancellation_survives_any_one_failed_request_to_the_store(
    harness: JobHarness, process: Process, number: int, fault: Fault
) -> None:
    harness.world.script = safe
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.faults = {len(harness.store.asked) + number: fault}
    try:
        await process.jobs.cancel(AGENT, "job-1", "enough")
    except ToolFailure:
        if (await harness.job()).state is JobState.RUNNING:
            await process.jobs.cancel(AGENT, "job-1", "enough")
    await run
    assert (await harness.check_history()).state is JobState.CANCELLED


async def test_final_entry_lands_once_the_store_is_back(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.is_away = True
    harness.world.go["job-1"].set()
    await harness.until(lambda: len(process.observer.troubles) >= 5)
    assert (await harness.job()).state is JobState.RUNNING
    harness.store.is_away = False
    await run
    assert (await harness.check()).state is JobState.SUCCEEDED


async def test_reports_during_an_outage_are_few(harness: JobHarness, process: Process) -> None:
    """A store that refuses at once is not asked as often as a tool reports."""

    async def script(run: ScriptedRun) -> ToolResult:
        run.world.started["job-1"].set()
        for step in range(5_000):
            run.sink.progress(Progress(step))
            await asyncio.sleep(0)
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.is_away = True
    asked = len(harness.store.asked)
    await harness.until(lambda: process.observer.running_now == 0)
    assert len(harness.store.asked) - asked < 1_000
    harness.store.is_away = False
    await run
    assert (await harness.check()).status.progress == Progress(4_999)


async def test_a_forbidden_change_ends_without_a_retry_loop(harness: JobHarness, process: Process) -> None:
    harness.store.unkept = lambda job: job.state.is_final
    harness.world.script = safe
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    async with asyncio.timeout(60):
        await process.deliver()
    assert process.observer.defects
    assert not any(isinstance(defect, ForbiddenTransition) for defect in process.observer.defects)
