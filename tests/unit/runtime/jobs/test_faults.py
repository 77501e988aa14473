"""The store fails at every request, before or after it did what it was asked: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.faulty_jobs import Fault
from tests.unit.runtime.jobs.stage import (
    AGENT,
    MARK,
    Process,
    Stage,
    Stagehand,
    a_job,
    answered,
    in_state,
    safe,
    turn,
)
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job import ForbiddenTransition
from toolhub_service.domain.result import JobState, Progress, ToolResult

Play = Callable[[Stagehand], Awaitable[ToolResult]]
REQUESTS = range(1, 12)
"""More than any of the runs here makes."""


async def brief(hand: Stagehand) -> ToolResult:
    """A side effect, as the pipeline has it: a run that cannot say that it begins is refused, and does nothing."""
    try:
        await hand.begin()
    except ToolFailure as refused:
        return answered(hand.job)._replace(ok=False, value=None, error=refused.error, attempts=0)
    hand.act()
    hand.sink.progress(Progress(1))
    for _ in range(9):
        await turn()
    return hand.ok()


async def patient_remote(hand: Stagehand) -> ToolResult:
    """Marks what it sends, however long the store is away."""
    runs, job_id = hand.process.runs, hand.call.job_id
    runs.stopping(job_id)
    while await runs.mark(job_id) is None:
        try:
            await runs.keep_mark(job_id, MARK)
        except ToolFailure:
            continue
        hand.act()
    return hand.ok()


async def _settled(stage: Stage, process: Process) -> None:
    """Deliver as the sweep would, until it is over."""
    async with asyncio.timeout(60):
        while not (await stage.job()).state.is_final:
            await process.deliver()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("play", [brief, safe, patient_remote])
async def test_one_request_fails(stage: Stage, process: Process, play: Play, number: int, fault: Fault) -> None:
    stage.world.play = play
    stage.world.go["job-1"].set()
    stage.store.faults = {number: fault}
    await stage.kept(a_job())
    await _settled(stage, process)
    job = await stage.check()
    assert process.observer.defects == []
    assert job.runs <= 2, "refused before its effect, it may queue again"
    assert (job.state, stage.world.effects["job-1"]) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("play", [brief, safe, patient_remote])
async def test_every_request_from_one_on_fails_for_a_while(
    stage: Stage, process: Process, play: Play, number: int, fault: Fault
) -> None:
    stage.world.play = play
    stage.world.go["job-1"].set()
    stage.store.faults = dict.fromkeys(range(number, number + 7), fault)
    await stage.kept(a_job())
    await _settled(stage, process)
    job = await stage.check()
    assert (job.state, stage.world.effects["job-1"]) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
@pytest.mark.parametrize("begun", [False, True])
async def test_one_request_of_a_takeover_fails(
    stage: Stage, process: Process, state: JobState, begun: bool, number: int, fault: Fault
) -> None:
    stage.world.play = brief
    await stage.kept(*in_state(a_job(), state, "runner-dead", begun=begun))
    await process.steady()
    stage.store.faults = {len(stage.store.asked) + number: fault}
    await _settled(stage, process)
    job = await stage.check()
    assert stage.world.effects["job-1"] == (job.state is JobState.SUCCEEDED)
    if begun:
        assert job.state is JobState.LOST


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", REQUESTS)
@pytest.mark.parametrize("play", [brief, safe, patient_remote])
async def test_one_request_of_a_hand_over_fails(
    stage: Stage, process: Process, play: Play, number: int, fault: Fault
) -> None:
    """The process leaves in the middle of it; another one takes what it left."""
    held = asyncio.Event()

    async def play_and_wait(hand: Stagehand) -> ToolResult:
        answer = await play(hand)
        held.set()
        await asyncio.Event().wait()
        return answer

    stage.world.play = play_and_wait
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    run = process.deliver()
    await held.wait()
    stage.store.faults = {len(stage.store.asked) + number: fault}
    run.cancel()
    await asyncio.wait({run})
    stage.store.faults = {}
    await process.heartbeat.leave()
    stage.world.play = play
    other = stage.process()
    await other.steady()
    await _settled(stage, other)
    job = await stage.check(effects_max=2 if play is safe else 1)
    assert job.state is (JobState.LOST if play is brief else JobState.SUCCEEDED)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", range(1, 5))
async def test_one_request_of_a_cancellation_fails(stage: Stage, process: Process, number: int, fault: Fault) -> None:
    stage.world.play = safe
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.faults = {len(stage.store.asked) + number: fault}
    try:
        await process.desk.cancel(AGENT, "job-1", "enough")
    except ToolFailure:
        if (await stage.job()).state is JobState.RUNNING:
            await process.desk.cancel(AGENT, "job-1", "enough")
    await run
    assert (await stage.check_history()).state is JobState.CANCELLED


async def test_final_entry_lands_once_the_store_is_back(stage: Stage, process: Process) -> None:
    stage.world.play = safe
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.is_away = True
    stage.world.go["job-1"].set()
    await stage.until(lambda: len(process.observer.troubles) >= 5)
    assert (await stage.job()).state is JobState.RUNNING
    stage.store.is_away = False
    await run
    assert (await stage.check()).state is JobState.SUCCEEDED


async def test_reports_during_an_outage_are_few(stage: Stage, process: Process) -> None:
    """A store that refuses at once is not asked as often as a tool reports."""

    async def play(hand: Stagehand) -> ToolResult:
        hand.world.started["job-1"].set()
        for step in range(5_000):
            hand.sink.progress(Progress(step))
            await asyncio.sleep(0)
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.is_away = True
    asked = len(stage.store.asked)
    await stage.until(lambda: process.observer.running_now == 0)
    assert len(stage.store.asked) - asked < 1_000
    stage.store.is_away = False
    await run
    assert (await stage.check()).status.progress == Progress(4_999)


async def test_change_that_may_not_be_ends_in_no_loop(stage: Stage, process: Process) -> None:
    stage.store.unkept = lambda job: job.state.is_final
    stage.world.play = safe
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    async with asyncio.timeout(60):
        await process.deliver()
    assert process.observer.defects
    assert not any(isinstance(defect, ForbiddenTransition) for defect in process.observer.defects)
