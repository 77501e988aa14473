"""The sweep and the signs of heartbeat: nothing is forgotten, and nothing that fails holds anything else up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.runtime.jobs.faulty_jobs import away
from tests.unit.runtime.jobs.stage import HOUR_MS, MARK, Process, Stage, a_job, answered, in_state, safe, turn
from toolhub_service.domain.job import Job, moved
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.reconcile import Reconciler


def _reconciler(process: Process, **parts: object) -> Reconciler:
    given: dict[str, object] = {"awaiting": process.decisions.check, "give_up": process.runs.give_up, **parts}
    return Reconciler(
        process.ledger,
        process.engine,
        process.heartbeat,
        **given,  # type: ignore[arg-type]
    )


async def _swept(stage: Stage, process: Process) -> None:
    """One sweep, with all deliveries that come of it."""
    await process.engine.start(process.runs.run)
    await process.reconciler.sweep()
    await stage.until(lambda: process.engine.running + process.engine.waiting == 0)


async def test_job_of_a_dead_runner_is_taken_over(stage: Stage, process: Process) -> None:
    stage.world.play = safe
    stage.world.go["job-1"].set()
    await stage.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead"))
    await process.heartbeat.beat()
    await _swept(stage, process)
    assert (await stage.job()).state is JobState.RUNNING, "nobody is judged yet"
    await process.steady()
    await _swept(stage, process)
    assert (await stage.check()).state is JobState.SUCCEEDED
    assert ("job-1", "taken over", "RUNNING") in process.observer.told


async def test_queued_job_that_was_delivered_to_nobody_is_delivered(stage: Stage, process: Process) -> None:
    stage.world.go["job-1"].set()
    await stage.kept(a_job())
    await process.heartbeat.beat()
    await _swept(stage, process)
    assert (await stage.job()).state is JobState.QUEUED, "its delivery may be on its way"
    stage.clock.advance(process.terms.dead_after_s + 0.001)
    await _swept(stage, process)
    assert (await stage.check()).state is JobState.SUCCEEDED


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
async def test_overdue_job_is_given_up(stage: Stage, process: Process, state: JobState) -> None:
    await stage.kept(*in_state(a_job(), state, "runner-dead"))
    stage.clock.advance(HOUR_MS / 1_000)
    await process.steady()
    await _swept(stage, process)
    assert (await stage.check()).state is JobState.TIMED_OUT
    assert stage.world.calls == []


async def test_running_job_of_this_process_is_left_alone_when_its_beats_were_not_heard(
    stage: Stage, process: Process
) -> None:
    await stage.kept(a_job())
    await process.engine.start(process.runs.run)
    await process.engine.enqueue("job-1")
    await stage.started()
    stage.clock.advance(60)
    await process.steady()
    await stage.store.inner.beat(process.name, 0)
    await process.reconciler.sweep()
    stage.world.go["job-1"].set()
    await stage.until(lambda: process.engine.running == 0)
    assert len(stage.world.calls) == 1
    await stage.check()


async def test_job_that_cannot_be_looked_after_holds_up_no_other(stage: Stage, process: Process) -> None:
    await stage.kept(*in_state(a_job("job-0"), JobState.AWAITING_APPROVAL))
    await stage.kept(*in_state(a_job("job-2"), JobState.AWAITING_APPROVAL))
    seen = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)
        raise RuntimeError(job.job_id)

    async def give_up(job: Job) -> bool:
        seen.append(job.job_id)
        raise RuntimeError(job.job_id)

    await stage.kept(a_job("job-1"))
    await stage.kept(a_job("job-3"))
    stage.clock.advance(60)
    await _reconciler(process, awaiting=awaiting, give_up=give_up).sweep()
    assert sorted(seen) == ["job-0", "job-1", "job-2", "job-3"]
    assert process.engine.waiting == 2, "their deliveries tell"
    assert len(process.observer.tallies) == 1


async def test_engine_that_is_away_holds_up_nobody_who_waits_for_a_person(stage: Stage, process: Process) -> None:
    seen = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)

    async def enqueue(job_id: str) -> None:
        raise away()

    process.engine.enqueue = enqueue  # type: ignore[method-assign]
    await stage.kept(a_job("job-1"))
    await stage.kept(*in_state(a_job("job-2"), JobState.AWAITING_APPROVAL))
    stage.clock.advance(60)
    await _reconciler(process, awaiting=awaiting).sweep()
    assert seen == ["job-2"]


async def test_what_else_a_sweep_does_holds_up_no_job(stage: Stage, process: Process) -> None:
    async def broken() -> None:
        raise RuntimeError("s3cret")

    await stage.kept(a_job())
    stage.clock.advance(60)
    await _reconciler(process, each_time=[broken]).sweep()
    assert process.engine.waiting == 1


async def test_jobs_that_wait_for_a_person_are_all_looked_at_in_turn(
    stage: Stage, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolhub_service.runtime.jobs import reconcile

    monkeypatch.setattr(reconcile, "_BATCH", 3)
    for number in range(8):
        await stage.kept(*in_state(a_job(f"job-{number}"), JobState.AWAITING_APPROVAL))
    seen: list[str] = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)

    reconciler = _reconciler(process, awaiting=awaiting)
    for _ in range(6):
        await reconciler.sweep()
    assert seen == [f"job-{number}" for number in range(8)] * 2


async def test_expired_jobs_are_removed_and_a_broken_broom_stops_no_other(stage: Stage, process: Process) -> None:
    job = a_job()
    end = moved(job, JobState.CANCELLED, 0, result=answered(job), expires_at_unix_ms=1)
    await stage.kept(job, end)
    swept = []

    async def broken(now_unix_ms: int) -> int:
        raise RuntimeError("broken")

    async def broom(now_unix_ms: int) -> int:
        swept.append(now_unix_ms)
        return 0

    await _reconciler(process, tidy=[broken, broom]).tidy()
    assert await stage.store.inner.get("job-1") is None
    assert swept == [stage.clock.unix_ms()]


async def _hangs(*_: object) -> int:
    await asyncio.Event().wait()
    return 0


@pytest.mark.parametrize("part", ["each_time", "tidy"])
async def test_signs_of_life_go_on_however_long_a_sweep_takes(stage: Stage, process: Process, part: str) -> None:
    running = asyncio.create_task(_reconciler(process, **{part: [_hangs]}).run())
    await stage.until(lambda: stage.store.asked.count("beat") > 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("problem", [away, lambda: RuntimeError("a defect"), lambda: OSError("a disk")])
@pytest.mark.parametrize("method", ["beat", "unattended", "awaiting", "tally", "forget"])
async def test_reconciler_survives_whatever_the_store_raises(
    stage: Stage,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    problem: Callable[[], Exception],
) -> None:
    healthy: Callable[..., Awaitable[object]] = getattr(stage.store, method)
    failures: list[Exception] = []

    async def fails_first(*arguments: object) -> object:
        if len(failures) < 3:
            failures.append(problem())
            raise failures[-1]
        return await healthy(*arguments)

    monkeypatch.setattr(stage.store, method, fails_first)
    from toolhub_service.runtime.jobs import reconcile

    monkeypatch.setattr(reconcile, "_TIDY_S", 0.0)
    monkeypatch.setattr(process.reconciler, "_terms", process.terms.__class__(heartbeat_s=0.001, dead_after_s=0.002))
    running = asyncio.create_task(process.reconciler.run())
    await stage.until(lambda: len(failures) == 3 and stage.store.asked.count(method) > 2)
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
    assert all(failure in process.observer.troubles for failure in failures)


# Heartbeat


async def test_one_who_has_just_come_does_not_judge(process: Process) -> None:
    assert not process.heartbeat.may_judge
    await process.steady()


async def test_one_that_the_store_did_not_hear_begins_anew(stage: Stage, process: Process) -> None:
    await process.steady()
    stage.store.is_away = True
    assert not await process.heartbeat.beat()
    stage.store.is_away = False
    assert not process.heartbeat.may_judge
    await process.steady()


async def test_one_that_stood_still_does_not_judge_those_who_stood_still_with_it(
    stage: Stage, process: Process
) -> None:
    """A machine that was suspended: its processes' signs have lapsed all at once, and nobody is dead."""
    other = stage.process()
    await other.heartbeat.beat()
    await stage.kept(*in_state(a_job(), JobState.RUNNING, other.name, begun=True))
    await process.steady()
    await other.heartbeat.beat()
    stage.clock.advance(3_600)
    assert not process.heartbeat.may_judge
    await process.heartbeat.beat()
    assert not process.heartbeat.may_judge
    await process.reconciler.sweep()
    await process.deliver()
    assert (await stage.job()).state is JobState.RUNNING


async def test_wall_clock_that_jumps_kills_nobody(stage: Stage, process: Process) -> None:
    await process.steady()
    process.clock._unix_ms += 86_400_000
    assert not process.heartbeat.may_judge
    await process.steady()


async def test_one_that_has_left_is_dead_at_once(stage: Stage, process: Process) -> None:
    await process.heartbeat.beat()
    await process.heartbeat.leave()
    assert not await stage.store.inner.is_alive(process.name, stage.clock.unix_ms())
    stage.store.is_away = True
    await process.heartbeat.leave()
    assert len(process.observer.troubles) == 1


async def test_remote_job_that_was_handed_over_while_it_was_being_stopped_is_taken(
    stage: Stage, process: Process
) -> None:
    *steps, last = in_state(a_job(), JobState.CANCELLING, "", remote=MARK)
    await stage.kept(*steps, last)
    await process.steady()
    assert [job.job_id for job in await stage.store.unattended(stage.clock.unix_ms(), 0, 10)] == ["job-1"]
    await process.reconciler.sweep()
    assert process.engine.waiting == 1
    await turn()
