"""Runs that do not come to a plain end: refused on the way, a person to be asked, a process that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.job_harness import (
    MARK,
    JobHarness,
    Process,
    ScriptedRun,
    a_job,
    failed,
    in_state,
    remote,
    safe,
    unsafe,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.domain.result import JobState, ToolResult

CANCELLED, LOST, FAILED, TIMED_OUT = JobState.CANCELLED, JobState.LOST, JobState.FAILED, JobState.TIMED_OUT


# Refused on the way to a remote side


async def test_refusal_that_passes_does_not_end_remote_work(harness: JobHarness, process: Process) -> None:
    tries = []

    async def script(run: ScriptedRun) -> ToolResult:
        tries.append(1)
        if len(tries) < 4:
            return failed(run.call, ErrorKind.RATE_LIMITED, attempts=0)
        return await remote(run)

    harness.world.script = script
    harness.world.go["job-1"].set()
    await harness.kept(a_job(remote=MARK))
    await process.deliver()
    job = await harness.check()
    assert job.state is JobState.SUCCEEDED
    assert await harness.states() == ["QUEUED", "RUNNING", "SUCCEEDED"]


@pytest.mark.parametrize("kind", [ErrorKind.POLICY_DENIED, ErrorKind.TOOL_NOT_FOUND, ErrorKind.INPUT_SCHEMA_INVALID])
async def test_remote_work_that_the_hub_refuses_to_follow_is_lost_with_a_reason(
    harness: JobHarness, process: Process, kind: ErrorKind
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        return failed(run.call, kind, attempts=0)

    harness.world.script = script
    await harness.kept(a_job(remote=MARK))
    await process.deliver()
    job = await harness.check()
    assert job.state is LOST
    assert job.status.result is not None
    error = job.status.result.error
    assert error is not None
    assert (error.kind, error.details["cause"]) == (ErrorKind.OUTCOME_UNKNOWN, kind.value)


@pytest.mark.parametrize("kind", [ErrorKind.RATE_LIMITED, ErrorKind.CIRCUIT_OPEN, ErrorKind.TOOL_UNAVAILABLE])
async def test_job_that_is_turned_away_for_now_queues_again(
    harness: JobHarness, process: Process, kind: ErrorKind
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        return run.ok() if len(harness.world.calls) > 1 else failed(run.call, kind, attempts=0)

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.job()
    assert (job.state, job.runner, job.begun) == (JobState.QUEUED, "", False)
    await process.deliver()
    assert (await harness.check()).state is JobState.SUCCEEDED


@pytest.mark.parametrize(("runs", "end"), [(998, JobState.QUEUED), (999, FAILED)])
async def test_job_is_turned_away_a_thousand_times_at_the_most(
    harness: JobHarness, process: Process, runs: int, end: JobState
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        return failed(run.call, ErrorKind.RATE_LIMITED, attempts=0)

    harness.world.script = script
    await harness.kept(a_job(runs=runs))
    await process.deliver()
    assert (await harness.job()).state is end


async def test_refusal_before_anything_was_sent_is_a_failure(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        return failed(run.call, ErrorKind.POLICY_DENIED, attempts=0)

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is FAILED


async def test_refused_remote_work_is_not_tried_again_at_its_deadline(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        late_ms = run.job.deadline_unix_ms - harness.clock.unix_ms()
        harness.clock.advance(late_ms / 1_000 if late_ms > 0 else 1.0)
        return failed(run.call, ErrorKind.TIMEOUT, attempts=0)

    harness.world.script = script
    await harness.kept(a_job(remote=MARK))
    await process.deliver()
    assert (await harness.check()).state is TIMED_OUT
    assert len(harness.world.calls) == 1


async def test_retries_of_refused_remote_work_end_with_its_deadline(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        harness.clock.advance(600)
        return failed(run.call, ErrorKind.TIMEOUT, attempts=0)

    harness.world.script = script
    await harness.kept(a_job(remote=MARK))
    await process.deliver()
    assert (await harness.check()).state is TIMED_OUT


# A person must be asked now


def _asking(approval_id: str) -> Callable[[ScriptedRun], Awaitable[ToolResult]]:
    async def script(run: ScriptedRun) -> ToolResult:
        if approval_id:
            return failed(run.call, ErrorKind.APPROVAL_REQUIRED, attempts=0, approval_id=approval_id)
        return failed(run.call, ErrorKind.APPROVAL_REQUIRED, attempts=0)

    return script


async def test_run_that_needs_a_person_waits_for_one(harness: JobHarness, process: Process) -> None:
    harness.world.script = _asking("apr-1")
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.job()
    assert job.state is JobState.AWAITING_APPROVAL
    assert (job.approval_id, job.call.approval_id, job.runner) == ("apr-1", "apr-1", "")


async def test_run_that_needs_a_person_and_knows_no_question_fails(harness: JobHarness, process: Process) -> None:
    harness.world.script = _asking("")
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is FAILED


async def test_cancelled_run_that_needs_a_person_does_not_wait_for_one(harness: JobHarness, process: Process) -> None:
    harness.world.script = _asking("apr-1")
    await harness.kept(*in_state(a_job(), JobState.CANCELLING, "runner-dead", remote=MARK))
    await process.steady()
    await process.deliver()
    assert (await harness.check()).state is LOST


async def test_remote_job_that_waits_for_a_person_can_be_cancelled(harness: JobHarness, process: Process) -> None:
    harness.world.script = remote
    await harness.kept(*in_state(a_job(), JobState.AWAITING_APPROVAL, approval_id="apr-1", remote=MARK))
    assert (await process.cancel()).state is JobState.CANCELLING
    await process.deliver()
    assert harness.world.stops["job-1"] == 1
    assert (await harness.check()).state is CANCELLED


# Leaving


async def _left(run: asyncio.Task[None]) -> None:
    run.cancel()
    await asyncio.wait({run})
    assert run.cancelled()


@pytest.mark.parametrize(("script", "end"), [(safe, JobState.QUEUED), (unsafe, LOST), (remote, JobState.QUEUED)])
async def test_a_job_is_handed_over(
    harness: JobHarness, process: Process, script: Callable[[ScriptedRun], Awaitable[ToolResult]], end: JobState
) -> None:
    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await _left(run)
    job = await harness.job()
    assert (job.state, job.runner) == (end, "")
    assert harness.world.stops["job-1"] == 0
    if end is JobState.QUEUED:
        other = harness.process()
        harness.world.go["job-1"].set()
        await other.deliver()
        assert (await harness.check(effects_max=2 if script is safe else 1)).state is JobState.SUCCEEDED


async def test_hand_over_that_no_store_can_keep_is_reported(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.unkept = lambda job: job.state is JobState.QUEUED
    await _left(run)
    assert [str(defect) for defect in process.observer.defects] == ["it cannot be written"]


async def test_remote_job_that_is_being_stopped_is_handed_over_as_such(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        run.process.runs.stopping("job-1")
        await run.process.runs.keep_mark("job-1", MARK)
        await run.works()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await process.cancel()
    await _left(run)
    job = await harness.job()
    assert (job.state, job.runner) == (JobState.CANCELLING, "")
    harness.world.script = remote
    await harness.process().deliver()
    assert (await harness.check()).state is CANCELLED


async def test_work_that_ends_while_it_is_handed_over_keeps_its_answer(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        await run.begin()
        run.act()
        try:
            await run.works()
        except asyncio.CancelledError:
            return run.ok("just in time")
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await _left(run)
    job = await harness.check()
    assert job.state is JobState.SUCCEEDED
    assert job.status.result is not None
    assert job.status.result.value == "just in time"


async def test_work_that_was_being_cancelled_ends_as_cancelled_when_the_process_leaves(
    harness: JobHarness, process: Process
) -> None:
    ends = asyncio.Event()

    async def script(run: ScriptedRun) -> ToolResult:
        await run.begin()
        try:
            await run.works()
        finally:
            await ends.wait()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await process.cancel()
    run.cancel()
    ends.set()
    await asyncio.wait({run})
    assert (await harness.check()).state is CANCELLED


async def test_process_that_leaves_does_not_wait_for_ever_for_a_store(
    harness: JobHarness, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolhub_service.runtime.jobs import settle

    monkeypatch.setattr(settle, "LEAVING_S", 0.01)
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.is_away = True
    await harness.until(lambda: len(process.observer.troubles) > 1)
    async with asyncio.timeout(60):
        await _left(run)
    harness.store.is_away = False
    assert (await harness.job()).state is JobState.RUNNING, "for others to judge, once its runner has left"
    await process.heartbeat.leave()
    other = harness.process()
    await other.steady()
    await other.deliver()
    assert (await harness.check()).state is LOST


async def test_end_that_was_being_put_down_is_put_down_once_by_a_process_that_leaves(
    harness: JobHarness, process: Process
) -> None:
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    release = harness.store.hold("put")
    await harness.reaches(JobState.SUCCEEDED)
    run.cancel()
    await asyncio.sleep(0)
    release.set()
    await asyncio.wait({run})
    assert (await harness.check()).state is JobState.SUCCEEDED


async def test_rights_and_deadline_of_a_run_are_those_of_now(harness: JobHarness, process: Process) -> None:
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    harness.clock.advance(600)
    await process.deliver()
    (call,) = harness.world.calls
    assert call.deadline_s is not None
    assert call.deadline_s - harness.clock.monotonic_s() == pytest.approx(3_000)


def test_a_result_marked_as_an_error_is_reported_as_one() -> None:
    from toolhub_service.runtime.jobs.settle import out_of_reach

    unknown = ToolError(ErrorKind.OUTCOME_UNKNOWN, "nobody saw the end")
    assert out_of_reach(a_job(remote=MARK), unknown) is unknown
