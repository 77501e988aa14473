"""One run: what each answer becomes, who may still write, and how a job is cancelled at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.job_harness import (
    HOUR_MS,
    MARK,
    JobHarness,
    Process,
    Script,
    ScriptedRun,
    a_job,
    failed,
    remote,
    safe,
    unsafe,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobNews, move_job
from toolhub_service.domain.result import JobState, Progress, ToolResult

CANCELLED, LOST, FAILED, TIMED_OUT = JobState.CANCELLED, JobState.LOST, JobState.FAILED, JobState.TIMED_OUT


# What an answer becomes


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", list(ErrorKind))
async def test_every_kind_of_error_is_a_final_state(
    harness: JobHarness, process: Process, kind: ErrorKind, is_late: bool
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        if is_late:
            harness.clock.advance(HOUR_MS / 1_000)
        return failed(run.call, kind)

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.check()
    late = TIMED_OUT if kind in (ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT) and is_late else None
    special = {ErrorKind.OUTCOME_UNKNOWN: LOST, ErrorKind.CANCELLED: CANCELLED}
    assert job.state is (late or special.get(kind, FAILED))
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is kind


@pytest.mark.parametrize(("is_late", "end"), [(False, LOST), (True, TIMED_OUT)])
@pytest.mark.parametrize("cause", ["TIMEOUT", "HTTP_TIMEOUT"])
async def test_unknown_outcome_at_the_deadline_is_timed_out(
    harness: JobHarness, process: Process, cause: str, is_late: bool, end: JobState
) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        await run.begin()
        if is_late:
            harness.clock.advance(HOUR_MS / 1_000)
        return failed(run.call, ErrorKind.OUTCOME_UNKNOWN, cause=cause)

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is end


async def test_details_that_are_no_text_are_no_cause(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        harness.clock.advance(HOUR_MS / 1_000)
        return failed(run.call, ErrorKind.UPSTREAM_ERROR, cause=["TIMEOUT"])

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.check()
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.UPSTREAM_ERROR


async def test_job_that_is_over_no_longer_counts_as_running(harness: JobHarness, process: Process) -> None:
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    await process.deliver()
    await harness.check()
    assert process.runs._live == {}


async def test_crash_of_a_run_is_reported_and_ends_the_job(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        raise RuntimeError("s3cret-canary")

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.check()
    assert job.state is FAILED
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.INTERNAL
    assert "canary" not in job.status.result.error.message
    assert [type(defect) for defect in process.observer.defects] == [RuntimeError]


async def test_crash_after_the_effect_began_leaves_the_job_lost(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        await run.begin()
        run.act()
        raise RuntimeError("s3cret-canary")

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    job = await harness.check()
    assert job.state is LOST
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert job.status.result.error.details["cause"] == "INTERNAL"
    assert (job.status.result.ok, job.status.result.attempts) == (False, 1)


@pytest.mark.parametrize(("script", "then"), [(unsafe, LOST), (safe, FAILED)])
async def test_result_that_no_store_can_keep_ends_the_job_anyway(
    harness: JobHarness, process: Process, script: Script, then: JobState
) -> None:
    harness.world.script = script
    harness.store.unkept = lambda job: job.state is JobState.SUCCEEDED
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is then


async def test_progress_that_no_store_can_keep_ends_nothing(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        run.sink.progress(Progress(1, message="\ud800 half a character", unit="\udc00"))
        await run.works()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.world.go["job-1"].set()
    await run
    job = await harness.check()
    assert job.state is JobState.SUCCEEDED
    assert job.status.progress is not None
    (job.status.progress.message + job.status.progress.unit).encode()


# Who may write


async def _taken_by_another(harness: JobHarness, state: JobState = JobState.RUNNING) -> Job:
    job = await harness.job()
    other = move_job(job, state, harness.clock.unix_ms(), runner="runner-other", runs=job.runs + 1)
    assert await harness.store.inner.put(other)
    return other


async def test_a_replaced_process_stops_when_another_has_its_job(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    other = await _taken_by_another(harness)
    await run
    assert await harness.job() == other
    assert process.observer.running_now == 0


async def test_process_that_missed_its_takeover_cannot_write(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.muted = True
    other = await _taken_by_another(harness)
    harness.world.go["job-1"].set()
    await run
    assert await harness.job() == other


async def test_a_replaced_process_stops_at_its_next_report(harness: JobHarness, process: Process) -> None:
    reports = asyncio.Event()

    async def script(run: ScriptedRun) -> ToolResult:
        run.world.started["job-1"].set()
        await reports.wait()
        run.sink.progress(Progress(1))
        await asyncio.Event().wait()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.muted = True
    other = await _taken_by_another(harness)
    reports.set()
    await run
    assert await harness.job() == other


async def test_a_replaced_process_never_reaches_its_effect(harness: JobHarness, process: Process) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        await run.works()
        await run.begin()
        run.act()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.muted = True
    await _taken_by_another(harness)
    harness.world.go["job-1"].set()
    await run
    assert harness.world.effects["job-1"] == 0


async def test_a_replaced_process_of_a_remote_job_asks_for_nothing(harness: JobHarness, process: Process) -> None:
    harness.world.script = remote
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await _taken_by_another(harness)
    await run
    assert harness.world.stops["job-1"] == 0


async def test_a_forgotten_job_belongs_to_nobody(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await harness.store.inner.put(
        move_job(await harness.job(), LOST, 0, result=failed(a_job().call, ErrorKind.INTERNAL), expires_at_unix_ms=1)
    )
    await harness.store.inner.forget(2, 10)
    harness.store.announce(JobNews("job-1"))
    await run
    assert await harness.store.inner.get("job-1") is None


async def test_an_unknown_job_is_refused(process: Process) -> None:
    for ask in (process.runs.begins("job-1"), process.runs.mark("job-1"), process.runs.keep_mark("job-1", MARK)):
        with pytest.raises(ToolFailure) as refused:
            await ask
        assert refused.value.error.kind is ErrorKind.CANCELLED
    with pytest.raises(ToolFailure):
        process.runs.stopping("job-1")


# Cancelled


async def test_queued_job_is_cancelled_at_once(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    assert (await process.cancel()).state is CANCELLED
    await process.deliver()
    assert harness.world.calls == []
    await harness.check()


@pytest.mark.parametrize("script", [safe, unsafe, remote])
async def test_running_job_is_cancelled(
    harness: JobHarness, process: Process, script: Callable[[ScriptedRun], Awaitable[ToolResult]]
) -> None:
    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    assert (await process.cancel()).state is JobState.CANCELLING
    await run
    job = await harness.check()
    assert job.state is CANCELLED
    assert job.cancel_reason == "enough"
    assert harness.world.stops["job-1"] == (script is remote)


async def test_cancellation_delivered_twice_does_not_cut_off_how_the_work_ends(
    harness: JobHarness, process: Process
) -> None:
    ends, order = asyncio.Event(), []

    async def script(run: ScriptedRun) -> ToolResult:
        try:
            await run.works()
        finally:
            order.append("ending")
            await ends.wait()
            order.append("ended")
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    await process.cancel()
    await harness.until(lambda: order == ["ending"])
    cancelling = await harness.job()
    for news in (JobNews("job-1", cancelling.status.sequence, cancelling.status), JobNews("job-1", 9), JobNews("")):
        harness.store.announce(news)
    await asyncio.sleep(0)
    ends.set()
    await run
    assert order == ["ending", "ended"]
    assert (await harness.check()).state is CANCELLED


@pytest.mark.parametrize("news", [JobNews(""), JobNews("job-1", 3), JobNews("job-1", 99)])
async def test_cancellation_is_seen_behind_news_without_an_entry(
    harness: JobHarness, process: Process, news: JobNews
) -> None:
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.muted = True
    await process.cancel()
    harness.store.announce(news)
    await run
    assert (await harness.check()).state is CANCELLED


async def test_cancellation_is_seen_once_the_store_is_back(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    harness.store.muted = True
    await process.cancel()
    harness.store.is_away = True
    harness.store.announce(JobNews(""))
    await harness.until(lambda: len(process.observer.troubles) >= 2)
    harness.store.is_away = False
    await run
    assert (await harness.check()).state is CANCELLED


async def test_cancellation_between_the_taking_and_the_work(harness: JobHarness, process: Process) -> None:
    """RUNNING stands in the store, and its runner does not know yet that it was put there."""
    await harness.kept(a_job())
    release = harness.store.hold("put")
    run = process.deliver()
    await harness.reaches(JobState.RUNNING)
    job = await harness.job()
    assert await harness.store.inner.put(move_job(job, JobState.CANCELLING, 0, cancel_reason="enough"))
    release.set()
    await run
    job = await harness.check_history()
    assert job.state is CANCELLED


@pytest.mark.parametrize("turns", range(30))
@pytest.mark.parametrize("script", [safe, unsafe, remote])
async def test_cancellation_at_any_moment_ends_in_one_final_state(
    harness: JobHarness, process: Process, script: Callable[[ScriptedRun], Awaitable[ToolResult]], turns: int
) -> None:
    harness.world.script = script
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    run = process.deliver()
    for _ in range(turns):
        await asyncio.sleep(0)
    await process.cancel()
    await run
    if not (await harness.job()).state.is_final:
        await process.deliver()
    assert (await harness.check()).state in (CANCELLED, JobState.SUCCEEDED)


@pytest.mark.parametrize("turns", range(25))
async def test_cancellation_while_reports_are_appended(harness: JobHarness, process: Process, turns: int) -> None:
    async def script(run: ScriptedRun) -> ToolResult:
        run.world.started["job-1"].set()
        for step in range(1_000):
            run.sink.progress(Progress(step))
            await asyncio.sleep(0)
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    run = process.deliver()
    await harness.started()
    for _ in range(turns):
        await asyncio.sleep(0)
    await process.cancel()
    await run
    job = await harness.check()
    assert job.state is CANCELLED
    assert job.status.progress is not None


async def test_remote_job_that_is_cancelled_while_its_next_run_is_on_its_way_is_stopped_by_its_adapter(
    harness: JobHarness, process: Process
) -> None:
    """The work runs elsewhere: to cut the run off here would be to call CANCELLED what goes on there."""
    steps = asyncio.Event()

    async def script(run: ScriptedRun) -> ToolResult:
        run.world.started["job-1"].set()
        await steps.wait()
        return await remote(run)

    harness.world.script = script
    await harness.kept(a_job(remote=MARK))
    run = process.deliver()
    await harness.started()
    await process.cancel()
    steps.set()
    await run
    assert harness.world.stops["job-1"] == 1
    assert (await harness.check()).state is CANCELLED


# A run that waits for the first reading of its sources


async def test_a_job_that_waits_for_its_sources_is_cancelled_at_once_and_was_never_called(
    harness: JobHarness, process: Process
) -> None:
    waiting = asyncio.Event()

    async def never(tool: str) -> None:
        assert tool == a_job().call.tool
        waiting.set()
        await asyncio.Event().wait()

    process.runs.await_readings_for = never
    await harness.kept(a_job())
    run = process.deliver()
    await waiting.wait()
    await process.cancel()
    await run
    assert (await harness.check()).state is CANCELLED
    assert harness.world.calls == []


async def test_a_job_waits_for_its_sources_no_longer_than_its_own_time(harness: JobHarness, process: Process) -> None:
    async def until_late(_tool: str) -> None:
        await asyncio.Event().wait()

    process.runs.await_readings_for = until_late
    harness.world.script = safe
    job = a_job()
    await harness.kept(job)
    harness.clock.advance((job.deadline_unix_ms - harness.clock.unix_ms()) / 1_000 - 0.01)
    run = process.deliver()
    await harness.started()
    harness.world.go["job-1"].set()
    await run
    assert len(harness.world.calls) == 1
