"""One run: what each answer becomes, who may still write, and how a job is cancelled at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.stage import (
    HOUR_MS,
    MARK,
    Play,
    Process,
    Stage,
    Stagehand,
    a_job,
    failed,
    remote,
    safe,
    unsafe,
)
from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.domain.job import Job, JobNews, moved
from toolhub_service.domain.result import JobState, Progress, ToolResult

CANCELLED, LOST, FAILED, TIMED_OUT = JobState.CANCELLED, JobState.LOST, JobState.FAILED, JobState.TIMED_OUT


# What an answer becomes


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", list(ErrorKind))
async def test_every_kind_of_error_is_a_final_state(
    stage: Stage, process: Process, kind: ErrorKind, is_late: bool
) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        if is_late:
            stage.clock.advance(HOUR_MS / 1_000)
        return failed(hand.call, kind)

    stage.world.play = play
    await stage.kept(a_job())
    await process.deliver()
    job = await stage.check()
    late = TIMED_OUT if kind in (ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT) and is_late else None
    special = {ErrorKind.OUTCOME_UNKNOWN: LOST, ErrorKind.CANCELLED: CANCELLED}
    assert job.state is (late or special.get(kind, FAILED))
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is kind


@pytest.mark.parametrize(("is_late", "end"), [(False, LOST), (True, TIMED_OUT)])
@pytest.mark.parametrize("cause", ["TIMEOUT", "HTTP_TIMEOUT"])
async def test_unknown_outcome_at_the_deadline_is_timed_out(
    stage: Stage, process: Process, cause: str, is_late: bool, end: JobState
) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        await hand.begin()
        if is_late:
            stage.clock.advance(HOUR_MS / 1_000)
        return failed(hand.call, ErrorKind.OUTCOME_UNKNOWN, cause=cause)

    stage.world.play = play
    await stage.kept(a_job())
    await process.deliver()
    assert (await stage.check()).state is end


async def test_details_that_are_no_text_are_no_cause(stage: Stage, process: Process) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        stage.clock.advance(HOUR_MS / 1_000)
        return failed(hand.call, ErrorKind.UPSTREAM_ERROR, cause=["TIMEOUT"])

    stage.world.play = play
    await stage.kept(a_job())
    await process.deliver()
    job = await stage.check()
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.UPSTREAM_ERROR


async def test_job_that_is_over_no_longer_counts_as_running(stage: Stage, process: Process) -> None:
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    await process.deliver()
    await stage.check()
    assert process.runs._live == {}


async def test_crash_of_a_run_is_told_and_ends_the_job(stage: Stage, process: Process) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        raise RuntimeError("s3cret-canary")

    stage.world.play = play
    await stage.kept(a_job())
    await process.deliver()
    job = await stage.check()
    assert job.state is FAILED
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.INTERNAL
    assert "canary" not in job.status.result.error.message
    assert [type(defect) for defect in process.observer.defects] == [RuntimeError]


async def test_crash_after_the_effect_began_leaves_the_job_lost(stage: Stage, process: Process) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        await hand.begin()
        hand.act()
        raise RuntimeError("s3cret-canary")

    stage.world.play = play
    await stage.kept(a_job())
    await process.deliver()
    job = await stage.check()
    assert job.state is LOST
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert job.status.result.error.details["cause"] == "INTERNAL"


@pytest.mark.parametrize(("play", "then"), [(unsafe, LOST), (safe, FAILED)])
async def test_result_that_no_store_can_keep_ends_the_job_all_the_same(
    stage: Stage, process: Process, play: Play, then: JobState
) -> None:
    stage.world.play = play
    stage.store.unkept = lambda job: job.state is JobState.SUCCEEDED
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    await process.deliver()
    assert (await stage.check()).state is then


async def test_progress_that_no_store_can_keep_ends_nothing(stage: Stage, process: Process) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        hand.sink.progress(Progress(1, message="\ud800 half a character", unit="\udc00"))
        await hand.works()
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.world.go["job-1"].set()
    await run
    job = await stage.check()
    assert job.state is JobState.SUCCEEDED
    assert job.status.progress is not None
    (job.status.progress.message + job.status.progress.unit).encode()


# Who may write


async def _taken_by_another(stage: Stage, state: JobState = JobState.RUNNING) -> Job:
    job = await stage.job()
    other = moved(job, state, stage.clock.unix_ms(), runner="runner-other", runs=job.runs + 1)
    assert await stage.store.inner.put(other)
    return other


async def test_zombie_stops_when_another_has_its_job(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    other = await _taken_by_another(stage)
    await run
    assert await stage.job() == other
    assert process.observer.running_now == 0


async def test_zombie_that_heard_nothing_cannot_write(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.deaf = True
    other = await _taken_by_another(stage)
    stage.world.go["job-1"].set()
    await run
    assert await stage.job() == other


async def test_zombie_stops_at_its_next_report(stage: Stage, process: Process) -> None:
    reports = asyncio.Event()

    async def play(hand: Stagehand) -> ToolResult:
        hand.world.started["job-1"].set()
        await reports.wait()
        hand.sink.progress(Progress(1))
        await asyncio.Event().wait()
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.deaf = True
    other = await _taken_by_another(stage)
    reports.set()
    await run
    assert await stage.job() == other


async def test_zombie_never_reaches_its_effect(stage: Stage, process: Process) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        await hand.works()
        await hand.begin()
        hand.act()
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.deaf = True
    await _taken_by_another(stage)
    stage.world.go["job-1"].set()
    await run
    assert stage.world.effects["job-1"] == 0


async def test_zombie_of_a_remote_job_asks_for_nothing(stage: Stage, process: Process) -> None:
    stage.world.play = remote
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    await _taken_by_another(stage)
    await run
    assert stage.world.stops["job-1"] == 0


async def test_job_that_has_gone_is_nobodys(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    await stage.store.inner.put(
        moved(await stage.job(), LOST, 0, result=failed(a_job().call, ErrorKind.INTERNAL), expires_at_unix_ms=1)
    )
    await stage.store.inner.forget(2, 10)
    stage.store.tell(JobNews("job-1"))
    await run
    assert await stage.store.inner.get("job-1") is None


async def test_what_is_no_job_of_ours_is_refused(process: Process) -> None:
    for ask in (process.runs.begins("job-1"), process.runs.mark("job-1"), process.runs.keep_mark("job-1", MARK)):
        with pytest.raises(ToolFailure) as refused:
            await ask
        assert refused.value.error.kind is ErrorKind.CANCELLED
    with pytest.raises(ToolFailure):
        process.runs.stopping("job-1")


# Cancelled


async def test_queued_job_is_cancelled_at_once(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    assert (await process.cancel()).state is CANCELLED
    await process.deliver()
    assert stage.world.calls == []
    await stage.check()


@pytest.mark.parametrize("play", [safe, unsafe, remote])
async def test_running_job_is_cancelled(
    stage: Stage, process: Process, play: Callable[[Stagehand], Awaitable[ToolResult]]
) -> None:
    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    assert (await process.cancel()).state is JobState.CANCELLING
    await run
    job = await stage.check()
    assert job.state is CANCELLED
    assert job.cancel_reason == "enough"
    assert stage.world.stops["job-1"] == (play is remote)


async def test_cancellation_told_twice_does_not_cut_off_how_the_work_ends(stage: Stage, process: Process) -> None:
    ends, told = asyncio.Event(), []

    async def play(hand: Stagehand) -> ToolResult:
        try:
            await hand.works()
        finally:
            told.append("ending")
            await ends.wait()
            told.append("ended")
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    await process.cancel()
    await stage.until(lambda: told == ["ending"])
    cancelling = await stage.job()
    for news in (JobNews("job-1", cancelling.status.sequence, cancelling.status), JobNews("job-1", 9), JobNews("")):
        stage.store.tell(news)
    await asyncio.sleep(0)
    ends.set()
    await run
    assert told == ["ending", "ended"]
    assert (await stage.check()).state is CANCELLED


@pytest.mark.parametrize("news", [JobNews(""), JobNews("job-1", 3), JobNews("job-1", 99)])
async def test_cancellation_is_seen_behind_news_without_an_entry(stage: Stage, process: Process, news: JobNews) -> None:
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.deaf = True
    await process.cancel()
    stage.store.tell(news)
    await run
    assert (await stage.check()).state is CANCELLED


async def test_cancellation_is_seen_once_the_store_is_back(stage: Stage, process: Process) -> None:
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    stage.store.deaf = True
    await process.cancel()
    stage.store.is_away = True
    stage.store.tell(JobNews(""))
    await stage.until(lambda: len(process.observer.troubles) >= 2)
    stage.store.is_away = False
    await run
    assert (await stage.check()).state is CANCELLED


async def test_cancellation_between_the_taking_and_the_work(stage: Stage, process: Process) -> None:
    """RUNNING stands in the store, and its runner does not know yet that it was put there."""
    await stage.kept(a_job())
    release = stage.store.hold("put")
    run = process.deliver()
    await stage.reaches(JobState.RUNNING)
    job = await stage.job()
    assert await stage.store.inner.put(moved(job, JobState.CANCELLING, 0, cancel_reason="enough"))
    release.set()
    await run
    job = await stage.check_history()
    assert job.state is CANCELLED


@pytest.mark.parametrize("turns", range(30))
@pytest.mark.parametrize("play", [safe, unsafe, remote])
async def test_cancellation_at_any_moment_ends_in_one_final_state(
    stage: Stage, process: Process, play: Callable[[Stagehand], Awaitable[ToolResult]], turns: int
) -> None:
    stage.world.play = play
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    run = process.deliver()
    for _ in range(turns):
        await asyncio.sleep(0)
    await process.cancel()
    await run
    if not (await stage.job()).state.is_final:
        await process.deliver()
    assert (await stage.check()).state in (CANCELLED, JobState.SUCCEEDED)


@pytest.mark.parametrize("turns", range(25))
async def test_cancellation_while_reports_are_appended(stage: Stage, process: Process, turns: int) -> None:
    async def play(hand: Stagehand) -> ToolResult:
        hand.world.started["job-1"].set()
        for step in range(1_000):
            hand.sink.progress(Progress(step))
            await asyncio.sleep(0)
        return hand.ok()

    stage.world.play = play
    await stage.kept(a_job())
    run = process.deliver()
    await stage.started()
    for _ in range(turns):
        await asyncio.sleep(0)
    await process.cancel()
    await run
    job = await stage.check()
    assert job.state is CANCELLED
    assert job.status.progress is not None


async def test_remote_job_that_is_cancelled_while_its_next_run_is_on_its_way_is_stopped_by_its_adapter(
    stage: Stage, process: Process
) -> None:
    """The work runs elsewhere: to cut the run off here would be to call CANCELLED what goes on there."""
    steps = asyncio.Event()

    async def play(hand: Stagehand) -> ToolResult:
        hand.world.started["job-1"].set()
        await steps.wait()
        return await remote(hand)

    stage.world.play = play
    await stage.kept(a_job(remote=MARK))
    run = process.deliver()
    await stage.started()
    await process.cancel()
    steps.set()
    await run
    assert stage.world.stops["job-1"] == 1
    assert (await stage.check()).state is CANCELLED
