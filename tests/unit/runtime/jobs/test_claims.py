"""Who gets a job that is delivered: taken, left to its runner, re-attached, or ended with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.runtime.jobs.faulty_jobs import Fault
from tests.unit.runtime.jobs.job_harness import (
    HOUR_MS,
    MARK,
    T0,
    JobHarness,
    Process,
    a_job,
    in_state,
    remote,
    safe,
    unsafe,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import amend_job
from toolhub_service.domain.result import JobState

DEAD, OTHER = "runner-dead", "runner-other"
RUNNING, CANCELLING, QUEUED = JobState.RUNNING, JobState.CANCELLING, JobState.QUEUED
LOST, CANCELLED, TIMED_OUT, SUCCEEDED = JobState.LOST, JobState.CANCELLED, JobState.TIMED_OUT, JobState.SUCCEEDED


async def _ran(harness: JobHarness, process: Process) -> None:
    harness.world.go["job-1"].set()
    await process.deliver()


@pytest.mark.parametrize(
    ("state", "fields", "is_late", "end"),
    [
        (QUEUED, {}, False, SUCCEEDED),
        (QUEUED, {}, True, TIMED_OUT),
        (RUNNING, {}, False, SUCCEEDED),
        (RUNNING, {}, True, TIMED_OUT),
        (RUNNING, {"begun": True}, False, LOST),
        (RUNNING, {"begun": True}, True, LOST),
        (CANCELLING, {}, False, CANCELLED),
        (CANCELLING, {}, True, CANCELLED),
        (CANCELLING, {"begun": True}, False, LOST),
        (RUNNING, {"remote": MARK}, False, SUCCEEDED),
        (RUNNING, {"remote": MARK}, True, SUCCEEDED),
        (RUNNING, {"remote": MARK, "begun": True}, False, SUCCEEDED),
        (CANCELLING, {"remote": MARK}, False, CANCELLED),
        (CANCELLING, {"remote": MARK}, True, CANCELLED),
    ],
)
async def test_job_of_a_dead_runner_ends_as_its_state_and_effects_allow(
    harness: JobHarness, process: Process, state: JobState, fields: dict[str, Any], is_late: bool, end: JobState
) -> None:
    harness.world.script = remote if "remote" in fields else safe
    await harness.kept(*in_state(a_job(), state, DEAD, **fields))
    if is_late:
        harness.clock.advance(HOUR_MS / 1_000)
    await process.steady()
    await _ran(harness, process)
    job = await harness.job()
    assert job.state is end
    is_over_at_once = end is LOST or (end in (CANCELLED, TIMED_OUT) and "remote" not in fields)
    assert len(harness.world.calls) == (0 if is_over_at_once else 1)
    if "remote" in fields:
        assert harness.world.effects["job-1"] == 0, "it was followed, not started again"
        assert harness.world.stops["job-1"] == (1 if state is CANCELLING else 0)
    assert job.status.result is not None
    if end is LOST:
        assert job.status.result.error is not None
        assert job.status.result.error.kind is ErrorKind.OUTCOME_UNKNOWN


@pytest.mark.parametrize("fields", [{}, {"begun": True}, {"remote": MARK}])
@pytest.mark.parametrize("state", [RUNNING, CANCELLING])
async def test_job_of_a_runner_that_lives_is_left_alone(
    harness: JobHarness, process: Process, state: JobState, fields: dict[str, Any]
) -> None:
    standing = await harness.kept(*in_state(a_job(), state, OTHER, **fields))
    await process.steady()
    await harness.store.inner.beat(OTHER, harness.clock.unix_ms() + 1)
    await _ran(harness, process)
    assert await harness.job() == standing


@pytest.mark.parametrize("state", [RUNNING, CANCELLING])
async def test_process_that_has_just_started_takes_over_no_job(
    harness: JobHarness, process: Process, state: JobState
) -> None:
    standing = await harness.kept(*in_state(a_job(), state, DEAD, begun=True))
    await process.heartbeat.beat()
    await _ran(harness, process)
    assert await harness.job() == standing


@pytest.mark.parametrize("state", [JobState.AWAITING_APPROVAL])
async def test_job_that_waits_for_a_person_is_not_run(harness: JobHarness, process: Process, state: JobState) -> None:
    standing = await harness.kept(*in_state(a_job(), state))
    await _ran(harness, process)
    assert await harness.job() == standing


async def test_unknown_job_is_nothing_to_run(harness: JobHarness, process: Process) -> None:
    await _ran(harness, process)
    assert harness.world.calls == []
    assert process.observer.troubles == []


async def test_an_own_job_without_a_run_is_taken_again(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    await harness.kept(*in_state(a_job(), RUNNING, process.name))
    await process.heartbeat.beat()
    await _ran(harness, process)
    assert (await harness.job()).state is SUCCEEDED


@pytest.mark.parametrize("fault", list(Fault))
async def test_taking_whose_confirmation_is_lost_leaves_no_job_running_with_nobody(
    harness: JobHarness, process: Process, fault: Fault
) -> None:
    await harness.kept(a_job())
    harness.store.faults = {2: fault}
    await _ran(harness, process)
    job = await harness.check()
    assert job.state is SUCCEEDED
    assert job.runs == 1
    assert await harness.states() == ["QUEUED", "RUNNING", "SUCCEEDED"]
    (away,) = process.observer.troubles
    assert isinstance(away, ToolFailure)
    assert away.error.kind is ErrorKind.TOOL_UNAVAILABLE


async def test_a_repeated_delivery_during_the_first_is_ignored(harness: JobHarness, process: Process) -> None:
    await harness.kept(a_job())
    first = process.deliver()
    await harness.started()
    await process.deliver()
    assert len(harness.world.calls) == 1
    harness.world.go["job-1"].set()
    await first
    await process.deliver()
    assert len(harness.world.calls) == 1
    await harness.check()


@pytest.mark.promise("jobs.compare-and-set")
async def test_one_of_many_processes_runs_a_job(harness: JobHarness) -> None:
    processes = [harness.process() for _ in range(8)]
    await harness.kept(a_job())
    harness.world.go["job-1"].set()
    await asyncio.gather(*(process.deliver() for process in processes))
    assert harness.world.effects["job-1"] == 1
    await harness.check()


async def test_remote_job_past_its_deadline_gets_a_last_look(harness: JobHarness, process: Process) -> None:
    """Nobody followed it while its time ran out: it may have ended, and if not it is to be stopped."""
    harness.world.script = remote
    await harness.kept(*in_state(a_job(), RUNNING, DEAD, remote=MARK))
    harness.clock.advance(2 * HOUR_MS / 1_000)
    await process.steady()
    await _ran(harness, process)
    (call,) = harness.world.calls
    assert call.deadline_s is not None
    assert call.deadline_s > harness.clock.monotonic_s()


async def test_two_takers_of_one_dead_runner_do_not_both_run(harness: JobHarness) -> None:
    harness.world.script = safe
    one, other = harness.process(), harness.process()
    await harness.kept(*in_state(a_job(), RUNNING, DEAD))
    await one.steady()
    await other.steady()
    await one.heartbeat.beat()
    runs = [one.deliver(), other.deliver()]
    await harness.started()
    harness.world.go["job-1"].set()
    await asyncio.gather(*runs)
    assert harness.world.effects["job-1"] == 1
    job = await harness.check()
    assert job.runs == 2


async def test_amended_record_is_no_reason_to_run(harness: JobHarness, process: Process) -> None:
    """CANCELLING with nobody who holds it, as a process leaves it that hands a remote job over."""
    harness.world.script = remote
    *steps, last = in_state(a_job(), CANCELLING, DEAD, remote=MARK)
    await harness.kept(*steps, last, amend_job(last, runner=""))
    await process.heartbeat.beat()
    await process.deliver()
    assert harness.world.stops["job-1"] == 1
    assert (await harness.job()).state is CANCELLED


@pytest.mark.promise("jobs.effects-once")
async def test_an_unsafe_job_runs_once_through_all_failures(harness: JobHarness, process: Process) -> None:
    harness.world.script = unsafe
    await harness.kept(a_job())
    await _ran(harness, process)
    job = await harness.check()
    assert job.begun
    assert job.expires_at_unix_ms == T0 + process.terms.keep_ms
