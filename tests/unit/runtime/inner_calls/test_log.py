"""The log of a job's inner calls where runs overtake one another, stores fail, and jobs end before what they began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.fakes.clock import ManualClock
from tests.ports.approval_store_suite import an_approval
from tests.ports.inner_log_suite import a_call, answered
from tests.unit.runtime.jobs.job_harness import RecordingObserver, a_job, failed
from tests.unit.runtime.jobs.job_harness import answered as an_answer
from toolhub_service.domain.call import Principal, Suspended
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.inner_log import KeptState
from toolhub_service.domain.job_ports import JobService, JobStore
from toolhub_service.domain.result import JobRef, ToolResult
from toolhub_service.runtime.inner_calls.calls import Account, CallsWithin
from toolhub_service.runtime.inner_calls.log import RECHECK_MS, DurableCallDeps, DurableCalls, JobLogs, RunLog
from toolhub_service.stores.inner_log_records import INNER_CALLS, InnerLogs
from toolhub_service.stores.memory.records import MemoryApprovals, MemoryRecords

AWAY = refuse(ErrorKind.TOOL_UNAVAILABLE, "The store cannot be reached.")


class FakeJobs:
    """The part of `JobService` that is used here."""

    def __init__(self, *failures: ToolFailure) -> None:
        self.failures = list(failures)
        self.cancelled: list[str] = []

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> None:
        self.cancelled.append(job_id)
        if self.failures:
            raise self.failures.pop(0)


async def a_store() -> InnerLogs:
    store = InnerLogs(MemoryRecords(INNER_CALLS))
    await store.start()
    return store


def a_run(store: InnerLogs) -> RunLog:
    async def sleep(seconds: float) -> None: ...

    return RunLog(store, "job-1", ManualClock(), sleep, RecordingObserver())


def logs_of(store: InnerLogs, jobs: FakeJobs) -> JobLogs:
    return JobLogs(store, cast(JobStore, None), cast(JobService, jobs))


async def test_a_change_passes_the_sweep_and_a_lost_answer_and_no_other_run() -> None:
    store = await a_store()
    begun = a_call()
    await store.put(begun)
    await store.put(replace(begun, version=2, expires_at_unix_ms=begun.expires_at_unix_ms + RECHECK_MS))
    asked: dict[str, Any] = {"state": KeptState.ASKED, "approval_id": "apr-1"}
    kept = await a_run(store).put(begun, **asked)
    await a_run(store).put(begun, **asked)
    assert (await store.get("job-1", 0), kept.version) == (kept, 3)
    with pytest.raises(ToolFailure) as overtaken:
        await a_run(store).put(begun, state=KeptState.ANSWERED, answer=answered(begun).answer)
    assert overtaken.value.error.kind is ErrorKind.CANCELLED
    assert await store.get("job-1", 0) == kept


async def test_a_store_that_is_away_is_waited_for_and_what_is_damaged_is_not() -> None:
    failures = [AWAY, refuse(ErrorKind.OUTCOME_UNKNOWN, "A record cannot be read.")]

    async def asking() -> str:
        if failures:
            raise failures.pop(0)
        return "read"

    run = a_run(await a_store())
    with pytest.raises(ToolFailure) as damaged:
        await run.patient(asking)
    assert damaged.value.error.kind is ErrorKind.OUTCOME_UNKNOWN
    assert await run.patient(asking) == "read"


async def test_jobs_that_a_job_left_running_are_stopped_before_its_log_is_forgotten() -> None:
    store, job = await a_store(), a_job()
    for left in (
        a_call(0, inner_job_id="job-running"),
        replace(answered(a_call(1)), inner_job_id="job-over", version=1),
        a_call(2),
        a_call(3, inner_job_id="job-unknown"),
    ):
        assert await store.put(left)
    jobs = FakeJobs(AWAY)
    with pytest.raises(ToolFailure):
        await logs_of(store, jobs).forget(job)
    assert len(await store.of_job("job-1")) == 4, "the sweep comes back to it"
    jobs = FakeJobs(refuse(ErrorKind.NOT_FOUND, "There is no such job."))
    await logs_of(store, jobs).forget(job)
    assert jobs.cancelled == ["job-running", "job-unknown"]
    assert list(await store.of_job("job-1")) == []


async def test_an_approval_of_another_job_or_of_none_is_not_waited_for() -> None:
    store, approvals = await a_store(), MemoryApprovals()
    for approval_id, job_id in (("apr-own", "job-1"), ("apr-other", "job-2")):
        assert await approvals.put(an_approval(approval_id, job_id=job_id))
    unused: Any = None
    deps = DurableCallDeps(store, approvals, unused, unused, unused, ManualClock(), RecordingObserver())
    calls = DurableCalls(deps, cast(CallsWithin, unused), a_run(store))

    async def waits_for(approval_id: str) -> str:
        return await calls._waits_for(failed(a_job().call, ErrorKind.APPROVAL_REQUIRED, approval_id=approval_id))

    assert [await waits_for(each) for each in ("apr-own", "apr-other", "apr-gone")] == ["apr-own", "", ""]


class FollowedJob:
    """In the place of `CallsWithin`: a job that is over once it is told so; `is_stopped`: what was asked of it when
    nobody waited for it any more."""

    def __init__(self, elsewhere: bool = False) -> None:
        self.over = asyncio.Event()
        self.followed = asyncio.Event()
        self.is_stopped: bool | None = None
        self.deps: Any = SimpleNamespace(running=SimpleNamespace(goes_on_elsewhere=lambda job_id: elsewhere))

    async def wait_for_job(self, accepted: ToolResult, ref: JobRef, *, stops: Callable[[], bool]) -> ToolResult:
        self.followed.set()
        try:
            await self.over.wait()
            return accepted
        finally:
            if not self.over.is_set():
                await asyncio.sleep(0)  # asking a job to stop takes a while
                self.is_stopped = stops()


async def a_followed(job: FollowedJob) -> tuple[RunLog, asyncio.Task[ToolResult]]:
    store = await a_store()
    run, unused = a_run(store), cast(Any, None)
    deps = DurableCallDeps(store, unused, job.deps.running, unused, unused, ManualClock(), RecordingObserver())
    calls = DurableCalls(deps, cast(CallsWithin, job), run)
    following = asyncio.create_task(calls._follow_job(an_answer(a_job(), "done"), "job-inner"))
    await job.followed.wait()
    return run, following


async def test_call_that_became_a_job_is_answered_as_the_job_ends() -> None:
    job = FollowedJob()
    _, following = await a_followed(job)
    job.over.set()
    assert (await following).value == "done"
    assert job.is_stopped is None


async def test_job_of_a_call_goes_on_while_another_call_waits_for_a_person() -> None:
    job = FollowedJob()
    run, following = await a_followed(job)
    await run.suspend("apr-1")
    with pytest.raises(Suspended) as suspended:
        await following
    assert (suspended.value.approval_id, job.is_stopped) == ("apr-1", False)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_job_of_a_call_that_is_cut_off_is_stopped_unless_its_program_goes_on_elsewhere(elsewhere: bool) -> None:
    job = FollowedJob(elsewhere)
    _, following = await a_followed(job)
    following.cancel()
    await asyncio.wait({following})
    assert job.is_stopped is not elsewhere


def test_an_answer_of_an_earlier_run_counts_against_the_bytes_of_this_one() -> None:
    unused: Any = None
    running: Any = SimpleNamespace(call=a_job().call)
    account = Account(calls=1, bytes=100)
    calls = CallsWithin(unused, running, None, account)
    calls.read(failed(a_job().call, ErrorKind.TIMEOUT))
    assert account.bytes_left == 100
    calls.read(an_answer(a_job(), "x" * 38))
    assert account.bytes_left == 60
