"""A job whose tool asks: it releases its runner, waits for the answer across failures, and goes on by itself."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.unit.runtime.jobs.job_harness import (
    MARK,
    T0,
    JobHarness,
    Process,
    ScriptedRun,
    a_job,
    failed,
    in_state,
    unsafe,
)
from tests.unit.runtime.jobs.test_decisions import APPROVED, REJECTED, an_approval
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.result import JobState, ToolResult


async def asks_first(run: ScriptedRun) -> ToolResult:
    """Begins, asks, and does its work once it is run with the approval."""
    if run.call.approval_id:
        return await unsafe(run)
    await run.begin()
    await run.process.runs.asks(run.call.job_id)
    return failed(run.call, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-1")


async def test_job_waits_without_a_runner_and_goes_on_by_itself(harness: JobHarness, process: Process) -> None:
    harness.world.script = asks_first
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    await process.engine.start(process.runs.run)
    await process.engine.enqueue("job-1")
    waiting = await harness.reaches(JobState.AWAITING_APPROVAL)
    assert (waiting.runner, waiting.begun, waiting.approval_id) == ("", False, "apr-1")
    await process.approvals.create(an_approval(APPROVED))
    process.decisions.on_event(an_approval(APPROVED))
    await harness.reaches(JobState.SUCCEEDED)
    await process.engine.close(20)
    job = await harness.check()
    assert job.begun, "the run that followed reached its effect"
    assert await harness.states() == ["QUEUED", "RUNNING", "AWAITING_APPROVAL", "QUEUED", "RUNNING", "SUCCEEDED"]


async def test_time_is_not_counted_while_it_waits_and_is_afterwards(harness: JobHarness, process: Process) -> None:
    harness.world.script = asks_first
    await harness.kept(a_job())
    await process.deliver()
    harness.clock.advance(60)
    await process.decisions.decide(an_approval(APPROVED))
    job = await harness.job()
    assert job.deadline_unix_ms == a_job().deadline_unix_ms + 60_000
    harness.clock.advance(3_600)
    await process.deliver()
    assert (await harness.check(effects_max=0)).state is JobState.TIMED_OUT


async def test_declined_job_ends_without_another_run(harness: JobHarness, process: Process) -> None:
    harness.world.script = asks_first
    await harness.kept(a_job())
    await process.deliver()
    await process.decisions.decide(an_approval(REJECTED, comment="no"))
    job = await harness.check(effects_max=0)
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.APPROVAL_REJECTED
    assert len(harness.world.calls) == 1


async def test_declined_job_whose_start_was_a_question_is_not_lost(harness: JobHarness, process: Process) -> None:
    """The mark that was kept before its start says no more than that nothing was taken."""

    async def sends_and_is_asked(run: ScriptedRun) -> ToolResult:
        await run.process.runs.keep_mark("job-1", replace(MARK, accepted=False, remote_id=""))
        return await asks_first(run)

    harness.world.script = sends_and_is_asked
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.job()).remote is None
    await process.decisions.decide(an_approval(REJECTED, comment="no"))
    assert (await harness.check(effects_max=0)).state is JobState.FAILED


async def test_a_process_death_between_question_and_wait_loses_nothing(harness: JobHarness) -> None:
    """The job had begun, its tool asked, and the process died before it could put AWAITING_APPROVAL down."""
    first, second = harness.process(), harness.process()
    asked = asyncio.Event()

    async def script(run: ScriptedRun) -> ToolResult:
        if run.process is first:
            await run.begin()
            await first.runs.asks(run.call.job_id)
            asked.set()
            await asyncio.Event().wait()
        return await asks_first(run)

    harness.world.script = script
    await harness.kept(a_job())
    await first.heartbeat.beat()
    dying = first.deliver()
    await asked.wait()
    harness.clock.advance(60)
    await second.steady()
    await second.deliver()
    job = await harness.job()
    assert (job.state, job.begun, job.runs) == (JobState.AWAITING_APPROVAL, False, 2)
    dying.cancel()
    await asyncio.wait({dying})


async def test_job_still_waits_after_everybody_has_died(harness: JobHarness) -> None:
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead", begun=False), _waits_after_running())
    survivor = harness.process()
    await survivor.steady()
    await survivor.approvals.create(an_approval())
    await survivor.reconciler.sweep()
    await survivor.deliver()
    assert (await harness.job()).state is JobState.AWAITING_APPROVAL


async def test_death_after_the_answer_is_reported_as_what_it_is(harness: JobHarness) -> None:
    """The run that follows the answer has begun: it is never run again."""
    first, second = harness.process(), harness.process()
    harness.world.script = asks_first
    await harness.kept(a_job())
    await first.heartbeat.beat()
    await first.deliver()
    await first.decisions.decide(an_approval(APPROVED))
    dying = first.deliver()
    await harness.started()
    harness.clock.advance(60)
    await second.steady()
    await second.deliver()
    assert (await harness.check()).state is JobState.LOST
    dying.cancel()
    await asyncio.wait({dying})


async def test_job_whose_question_could_not_be_put_to_anybody_for_now_is_run_again(
    harness: JobHarness, process: Process
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        await run.begin()
        if len(harness.world.calls) > 1:
            return run.ok()
        return failed(run.call, ErrorKind.TOOL_UNAVAILABLE, unasked=True)

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.job()
    assert (job.state, job.begun) == (JobState.QUEUED, False)
    await process.deliver()
    assert (await harness.check(effects_max=0)).state is JobState.SUCCEEDED


async def test_job_that_is_cancelled_while_its_tool_asks_is_cancelled(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        process.runs.stopping(run.call.job_id)  # it ends by itself
        await process.cancel()
        return failed(run.call, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-1")

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is JobState.CANCELLED


@pytest.mark.parametrize("begun", [False, True])
async def test_announcing_a_question_costs_nothing_where_nothing_had_begun(
    harness: JobHarness, process: Process, begun: bool
) -> None:
    versions = []

    async def script(run: ScriptedRun) -> ToolResult:
        if begun:
            await run.begin()
        versions.append(run.job.version)
        await process.runs.asks(run.call.job_id)
        versions.append(run.job.version)
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert versions[1] - versions[0] == int(begun)


def _waits_after_running() -> Job:
    running = in_state(a_job(), JobState.RUNNING, "runner-dead", begun=False)[-1]
    return move_job(running, JobState.AWAITING_APPROVAL, T0, approval_id="apr-1", runner="", begun=False)
