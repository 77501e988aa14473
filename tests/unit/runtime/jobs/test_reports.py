"""Reports on their way into the history: the newest, seldom, and fit to be seen."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.unit.runtime.jobs.job_harness import JobHarness, Process, ScriptedRun, a_job, turn
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import Chunk, JobState, Progress, ToolResult
from toolhub_service.runtime.jobs import reports as subject
from toolhub_service.runtime.jobs.reports import continue_progress


async def _run(harness: JobHarness, process: Process, *reports: Progress, turns: int = 0) -> list[Progress]:
    """The reports in the history of a job that makes these."""

    async def script(run: ScriptedRun) -> ToolResult:
        for report in reports:
            run.sink.progress(report)
            run.sink.chunk(Chunk(b"s3cret"))
            for _ in range(turns):
                await turn()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    await harness.check()
    return [entry.progress for entry in await harness.history() if entry.progress is not None]


async def test_a_thousand_reports_at_once_are_few_entries_and_the_last_is_among_them(
    harness: JobHarness, process: Process
) -> None:
    reports = await _run(harness, process, *[Progress(step) for step in range(1_000)])
    assert len(reports) <= 3
    assert reports[-1] == Progress(999)


async def test_reports_in_the_history_only_rise(harness: JobHarness, process: Process) -> None:
    reports = await _run(harness, process, *[Progress(step) for step in range(200)], turns=3)
    steps = [report.step for report in reports]
    assert steps == sorted(steps)
    assert steps[-1] == 199


@pytest.mark.parametrize(("running", "interval_s"), [(1, 0.1), (20, 0.1), (100, 0.5), (100_000, 2.0)])
async def test_interval_grows_with_the_jobs_that_run(
    harness: JobHarness, process: Process, monkeypatch: pytest.MonkeyPatch, running: int, interval_s: float
) -> None:
    monkeypatch.setattr(subject, "INTERVAL_S", 0.1)
    monkeypatch.setattr(subject, "_JOB_S", 0.005)
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        await turn()

    async def script(run: ScriptedRun) -> ToolResult:
        sink = subject.JobSink(
            run.process.runs._live["job-1"], process.ledger, process.runs._redactor, lambda: running, sleep
        )
        sink.progress(Progress(1))
        while not slept:
            await turn()
        await sink.close()
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert slept[0] == pytest.approx(interval_s)


async def test_job_that_is_over_waits_for_no_report_whose_turn_has_not_come(
    harness: JobHarness, process: Process
) -> None:
    pausing = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    async def script(run: ScriptedRun) -> ToolResult:
        live = run.process.runs._live["job-1"]
        sink = subject.JobSink(live, process.ledger, process.runs._redactor, lambda: 1, sleep)
        sink.progress(Progress(1))
        await pausing.wait()
        sink.progress(Progress(2))
        async with asyncio.timeout(20):
            assert await sink.close() == Progress(2)
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    assert (await harness.check()).state is JobState.SUCCEEDED


async def test_report_is_redacted_and_bounded(harness: JobHarness, process: Process) -> None:
    report = Progress(1, message="the key is s3cret-canary " + "x" * 10_000, unit="s3cret-canary" + "y" * 10_000)
    (*_, last) = await _run(harness, process, report)
    assert "s3cret-canary" not in last.message + last.unit
    assert len(last.message) <= 500
    assert len(last.unit) <= 32


@pytest.mark.parametrize(("details", "is_kept"), [(b'{"node":"sampler"}', True), (b'{"node":"s3cret-canary"}', False)])
async def test_details_of_a_report_are_kept_whole_where_they_hold_no_secret(
    harness: JobHarness, process: Process, details: bytes, is_kept: bool
) -> None:
    (*_, last) = await _run(harness, process, Progress(1, details_json=details))
    assert last.details_json == (details if is_kept else b"")


async def test_report_after_the_end_is_nothing(harness: JobHarness, process: Process) -> None:
    sinks = []

    async def script(run: ScriptedRun) -> ToolResult:
        sinks.append(run.sink)
        return run.ok()

    harness.world.script = script
    await harness.kept(a_job())
    await process.deliver()
    over = await harness.check()
    sinks[0].progress(Progress(99))
    for _ in range(9):
        await turn()
    assert await harness.job() == over


@pytest.mark.parametrize(
    ("mark", "reported", "step"),
    [
        (RemoteMark("k", "r", accepted=True), Progress(1, 5, "nodes"), 3),
        (RemoteMark("k", "r", accepted=True), Progress(4, 5, "nodes"), 4),
        (RemoteMark("k", "r", accepted=True), Progress(1, 9, "nodes"), 1),
        (RemoteMark("k"), Progress(1, 5, "nodes"), 1),
        (None, Progress(1, 5, "nodes"), 1),
    ],
    ids=["goes on", "has come further", "another count", "not begun there", "begins anew here"],
)
def test_progress_of_a_remote_side_never_goes_back_for_any_follower(
    mark: RemoteMark | None, reported: Progress, step: float
) -> None:
    job = a_job()
    job = replace(job, remote=mark, status=replace(job.status, progress=Progress(3, 5, "nodes")))
    assert continue_progress(job, reported).step == step
