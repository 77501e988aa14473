"""The sweep and the signs of heartbeat: nothing is forgotten, and nothing that fails holds anything else up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from tests.unit.runtime.jobs.faulty_jobs import away
from tests.unit.runtime.jobs.job_harness import (
    HOUR_MS,
    MARK,
    T0,
    JobHarness,
    Process,
    a_job,
    answered,
    in_state,
    safe,
    turn,
)
from toolhub_service.domain.call import Principal
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.reconcile import _BATCH, Reconciler


def _reconciler(process: Process, **parts: object) -> Reconciler:
    given: dict[str, object] = {"awaiting": process.decisions.check, "give_up": process.runs.give_up, **parts}
    return Reconciler(
        process.ledger,
        process.engine,
        process.heartbeat,
        **given,  # type: ignore[arg-type]
    )


async def _swept(harness: JobHarness, process: Process) -> None:
    """One sweep, with all deliveries that come of it."""
    await process.engine.start(process.runs.run)
    await process.reconciler.sweep()
    await harness.until(lambda: process.engine.running + process.engine.waiting == 0)


async def test_job_of_a_dead_runner_is_taken_over(harness: JobHarness, process: Process) -> None:
    harness.world.script = safe
    harness.world.go["job-1"].set()
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-dead"))
    await process.heartbeat.beat()
    await _swept(harness, process)
    assert (await harness.job()).state is JobState.RUNNING, "nobody is judged yet"
    await process.steady()
    await _swept(harness, process)
    assert (await harness.check()).state is JobState.SUCCEEDED
    assert ("job-1", "taken over", "RUNNING") in process.observer.transitions


async def test_queued_job_that_was_delivered_to_nobody_is_delivered(harness: JobHarness, process: Process) -> None:
    harness.world.go["job-1"].set()
    await harness.kept(a_job())
    await process.heartbeat.beat()
    await _swept(harness, process)
    assert (await harness.job()).state is JobState.QUEUED, "its delivery may be on its way"
    harness.clock.advance(process.terms.dead_after_s + 0.001)
    await _swept(harness, process)
    assert (await harness.check()).state is JobState.SUCCEEDED


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
async def test_overdue_job_is_given_up(harness: JobHarness, process: Process, state: JobState) -> None:
    await harness.kept(*in_state(a_job(), state, "runner-dead"))
    harness.clock.advance(HOUR_MS / 1_000)
    await process.steady()
    await _swept(harness, process)
    assert (await harness.check()).state is JobState.TIMED_OUT
    assert harness.world.calls == []


async def test_running_job_of_this_process_is_left_alone_when_its_beats_were_not_heard(
    harness: JobHarness, process: Process
) -> None:
    await harness.kept(a_job())
    await process.engine.start(process.runs.run)
    await process.engine.enqueue("job-1")
    await harness.started()
    harness.clock.advance(60)
    await process.steady()
    await harness.store.inner.beat(process.name, 0)
    await process.reconciler.sweep()
    harness.world.go["job-1"].set()
    await harness.until(lambda: process.engine.running == 0)
    assert len(harness.world.calls) == 1
    await harness.check()


async def test_job_that_cannot_be_looked_after_delays_no_other(harness: JobHarness, process: Process) -> None:
    await harness.kept(*in_state(a_job("job-0"), JobState.AWAITING_APPROVAL))
    await harness.kept(*in_state(a_job("job-2"), JobState.AWAITING_APPROVAL))
    seen = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)
        raise RuntimeError(job.job_id)

    async def give_up(job: Job) -> bool:
        seen.append(job.job_id)
        raise RuntimeError(job.job_id)

    await harness.kept(a_job("job-1"))
    await harness.kept(a_job("job-3"))
    harness.clock.advance(60)
    await _reconciler(process, awaiting=awaiting, give_up=give_up).sweep()
    assert sorted(seen) == ["job-0", "job-1", "job-2", "job-3"]
    assert sorted(map(str, process.observer.troubles)) == sorted(seen)
    assert process.engine.waiting == 2, "their deliveries tell"
    assert len(process.observer.tallies) == 1


async def test_engine_that_is_away_delays_nobody_who_waits_for_a_person(harness: JobHarness, process: Process) -> None:
    seen = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)

    async def enqueue(job_id: str, tenant: str = "") -> None:
        raise away()

    process.engine.enqueue = enqueue  # type: ignore[method-assign]
    await harness.kept(a_job("job-1"))
    await harness.kept(*in_state(a_job("job-2"), JobState.AWAITING_APPROVAL))
    harness.clock.advance(60)
    await _reconciler(process, awaiting=awaiting).sweep()
    assert seen == ["job-2"]


@pytest.mark.promise("tenants.bounds")
async def test_a_tenant_s_backlog_hides_no_job_of_another_tenant_from_a_sweep(
    harness: JobHarness, process: Process
) -> None:
    enqueued: list[tuple[str, str]] = []

    async def enqueue(job_id: str, tenant: str = "") -> None:
        enqueued.append((job_id, tenant))

    process.engine.enqueue = enqueue  # type: ignore[method-assign]
    process.ledger.tenant_of_id = lambda principal: principal.partition("-")[0]
    names = [*(f"acme-{number:03}" for number in range(_BATCH)), "acme-last", "globex-1", "initech-1"]
    for late, name in enumerate(names):
        job = a_job(f"job-of-{name}")
        status = replace(job.status, at_unix_ms=T0 + late)
        await harness.kept(replace(job, call=job.call._replace(principal=Principal(name)), status=status))
    harness.clock.advance(60)
    await process.reconciler.sweep()
    assert len(enqueued) == _BATCH + 2, "the longest waiting, and one of each other tenant"
    assert enqueued[:1] == [("job-of-acme-000", "acme")]
    assert set(enqueued[_BATCH:]) == {("job-of-globex-1", "globex"), ("job-of-initech-1", "initech")}


async def test_other_work_of_a_sweep_delays_no_job(harness: JobHarness, process: Process) -> None:
    async def broken() -> None:
        raise RuntimeError("s3cret")

    await harness.kept(a_job())
    harness.clock.advance(60)
    await _reconciler(process, each_time=[broken]).sweep()
    assert process.engine.waiting == 1


async def test_jobs_that_wait_for_a_person_are_all_looked_at_in_turn(
    harness: JobHarness, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolhub_service.runtime.jobs import reconcile

    monkeypatch.setattr(reconcile, "_BATCH", 3)
    for number in range(8):
        await harness.kept(*in_state(a_job(f"job-{number}"), JobState.AWAITING_APPROVAL))
    seen: list[str] = []

    async def awaiting(job: Job) -> None:
        seen.append(job.job_id)

    reconciler = _reconciler(process, awaiting=awaiting)
    for _ in range(6):
        await reconciler.sweep()
    assert seen == [f"job-{number}" for number in range(8)] * 2


async def test_expired_jobs_are_removed_and_a_failing_sweep_stops_no_other(
    harness: JobHarness, process: Process
) -> None:
    job = a_job()
    end = move_job(job, JobState.CANCELLED, 0, result=answered(job), expires_at_unix_ms=1)
    await harness.kept(job, end)
    swept, forgotten = [], list[int]()

    async def broken(now_unix_ms: int) -> int:
        raise RuntimeError("broken")

    async def broom(now_unix_ms: int) -> int:
        swept.append(now_unix_ms)
        return 0

    await _reconciler(process, tidy=[broken, broom], forgotten=forgotten.append).tidy()
    assert await harness.store.inner.get("job-1") is None
    assert (swept, forgotten) == ([harness.clock.unix_ms()], [1])


async def _hangs(*_: object) -> int:
    await asyncio.Event().wait()
    return 0


@pytest.mark.parametrize("part", ["each_time", "tidy"])
async def test_heartbeats_go_on_however_long_a_sweep_takes(harness: JobHarness, process: Process, part: str) -> None:
    running = asyncio.create_task(_reconciler(process, **{part: [_hangs]}).run())
    await harness.until(lambda: harness.store.asked.count("beat") > 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("problem", [away, lambda: RuntimeError("a defect"), lambda: OSError("a disk")])
@pytest.mark.parametrize("method", ["beat", "find_unattended", "awaiting", "count_jobs", "forget"])
async def test_the_reconciler_survives_any_error_of_the_store(
    harness: JobHarness,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    problem: Callable[[], Exception],
) -> None:
    healthy: Callable[..., Awaitable[object]] = getattr(harness.store, method)
    failures: list[Exception] = []

    async def fails_first(*arguments: object) -> object:
        if len(failures) < 3:
            failures.append(problem())
            raise failures[-1]
        return await healthy(*arguments)

    monkeypatch.setattr(harness.store, method, fails_first)
    from toolhub_service.runtime.jobs import reconcile

    monkeypatch.setattr(reconcile, "_TIDY_S", 0.0)
    monkeypatch.setattr(process.reconciler, "_terms", process.terms.__class__(heartbeat_s=0.001, dead_after_s=0.002))
    running = asyncio.create_task(process.reconciler.run())
    await harness.until(lambda: len(failures) == 3 and harness.store.asked.count(method) > 2)
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
    assert all(failure in process.observer.troubles for failure in failures)


# Heartbeat


async def test_process_that_has_just_started_declares_no_other_dead(process: Process) -> None:
    assert not process.heartbeat.may_declare_dead
    await process.steady()


async def test_process_waits_anew_after_a_failed_heartbeat(harness: JobHarness, process: Process) -> None:
    await process.steady()
    harness.store.is_away = True
    assert not await process.heartbeat.beat()
    harness.store.is_away = False
    assert not process.heartbeat.may_declare_dead
    await process.steady()


async def test_suspended_processes_declare_no_other_dead(harness: JobHarness, process: Process) -> None:
    """A machine that was suspended: its processes' signs have lapsed all at once, and nobody is dead."""
    other = harness.process()
    await other.heartbeat.beat()
    await harness.kept(*in_state(a_job(), JobState.RUNNING, other.name, begun=True))
    await process.steady()
    await other.heartbeat.beat()
    harness.clock.advance(3_600)
    assert not process.heartbeat.may_declare_dead
    await process.heartbeat.beat()
    assert not process.heartbeat.may_declare_dead
    await process.reconciler.sweep()
    await process.deliver()
    assert (await harness.job()).state is JobState.RUNNING


async def test_a_wall_clock_that_jumps_declares_no_process_dead(harness: JobHarness, process: Process) -> None:
    await process.steady()
    process.clock._unix_ms += 86_400_000
    assert not process.heartbeat.may_declare_dead
    await process.steady()


async def test_process_that_has_left_counts_as_dead_at_once(harness: JobHarness, process: Process) -> None:
    await process.heartbeat.beat()
    await process.heartbeat.leave()
    assert not await harness.store.inner.is_alive(process.name, harness.clock.unix_ms())
    harness.store.is_away = True
    await process.heartbeat.leave()
    assert len(process.observer.troubles) == 1


async def test_remote_job_that_was_handed_over_while_it_was_being_stopped_is_taken(
    harness: JobHarness, process: Process
) -> None:
    *steps, last = in_state(a_job(), JobState.CANCELLING, "", remote=MARK)
    await harness.kept(*steps, last)
    await process.steady()
    assert [job.job_id for job in await harness.store.find_unattended(harness.clock.unix_ms(), 0, 10)] == ["job-1"]
    await process.reconciler.sweep()
    assert process.engine.waiting == 1
    await turn()
