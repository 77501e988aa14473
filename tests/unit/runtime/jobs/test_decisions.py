"""A person's answer reaches the job that waits for it: at once, late, twice, or after it was missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.runtime.jobs.faulty_jobs import away
from tests.unit.runtime.jobs.job_harness import AGENT, MARK, T0, JobHarness, Process, a_job, failed, in_state
from toolhub_service.domain.approval import Approval, ApprovalState, Binding
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.job import Job
from toolhub_service.domain.result import JobState

PENDING, APPROVED, REJECTED = ApprovalState.PENDING, ApprovalState.APPROVED, ApprovalState.REJECTED
EXPIRED, USED = ApprovalState.EXPIRED, ApprovalState.USED


def an_approval(state: ApprovalState = PENDING, **fields: Any) -> Approval:
    approval = Approval(
        approval_id="apr-1",
        binding=Binding(AGENT.id, "test/text.write", "d" * 64, "a" * 64, "1", "job-1"),
        state=PENDING,
        tool_version="1.0.0",
        args_summary_json="{}",
        rule_id="rule",
        reason="because",
        purpose="a test",
        call_id="call-1",
        request_id="r-1",
        requested_at_unix_ms=T0,
        expires_at_unix_ms=T0 + 600_000,
    )
    decided_by = "ann" if state in (APPROVED, REJECTED, USED) else ""
    return replace(approval, state=state, decided_by=decided_by, **fields)


async def _waits(harness: JobHarness, **fields: Any) -> Job:
    return await harness.kept(*in_state(a_job(), JobState.AWAITING_APPROVAL, approval_id="apr-1", **fields))


@pytest.mark.parametrize(
    ("state", "then"),
    [
        (APPROVED, JobState.QUEUED),
        (USED, JobState.QUEUED),
        (REJECTED, JobState.FAILED),
        (EXPIRED, JobState.FAILED),
    ],
)
async def test_decision_lets_the_job_go_on_or_ends_it(
    harness: JobHarness, process: Process, state: ApprovalState, then: JobState
) -> None:
    waiting = await _waits(harness)
    harness.clock.advance(60)
    await process.decisions.decide(an_approval(state))
    job = await harness.job()
    assert job.state is then
    assert process.engine.waiting == (then is JobState.QUEUED)
    if then is JobState.QUEUED:
        assert job.deadline_unix_ms == waiting.deadline_unix_ms + 60_000, "its time did not run while it waited"
    else:
        job = await harness.check()
        assert job.status.result is not None
        assert job.status.result.error is not None
        assert job.status.result.error.kind is ErrorKind.APPROVAL_REJECTED


async def test_decision_delivered_twice_and_by_many_processes_releases_once(harness: JobHarness) -> None:
    processes = [harness.process() for _ in range(4)]
    await _waits(harness)
    for process in processes * 2:
        process.decisions.on_event(an_approval(APPROVED))
    await harness.until(lambda: not any(process.decisions._applying for process in processes))
    assert await harness.states() == ["QUEUED", "AWAITING_APPROVAL", "QUEUED"]
    await harness.check_audited("job-1")


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING])
async def test_decision_for_a_job_that_waits_no_more_changes_nothing(
    harness: JobHarness, process: Process, state: JobState
) -> None:
    standing = await harness.kept(*in_state(a_job(approval_id="apr-1"), state, "runner-other"))
    await process.decisions.decide(an_approval(REJECTED))
    assert await harness.job() == standing


async def test_decision_about_another_question_changes_nothing(harness: JobHarness, process: Process) -> None:
    standing = await _waits(harness)
    await process.decisions.decide(an_approval(REJECTED, approval_id="apr-0"))
    assert await harness.job() == standing


async def test_decisions_without_a_job_and_questions_are_ignored(process: Process) -> None:
    binding = replace(an_approval().binding, job_id="")
    for approval in (None, an_approval(), an_approval(APPROVED, binding=binding)):
        process.decisions.on_event(approval)
    assert not process.decisions._applying
    await process.decisions.decide(an_approval(APPROVED))


async def test_approval_before_the_job_waits_is_brought_by_the_sweep(harness: JobHarness, process: Process) -> None:
    """Decided while the run was putting AWAITING_APPROVAL down: nobody heard it who could do anything."""

    async def script(run: Any) -> Any:
        return failed(run.call, ErrorKind.APPROVAL_REQUIRED, attempts=0, approval_id="apr-1")

    harness.world.script = script
    await harness.kept(a_job())
    release = harness.store.hold("get")
    run = process.deliver()
    process.decisions.on_event(an_approval(APPROVED))
    release.set()
    await run
    await harness.until(lambda: not process.decisions._applying)
    assert (await harness.job()).state is JobState.AWAITING_APPROVAL
    await process.approvals.create(an_approval(APPROVED))
    await process.reconciler.sweep()
    assert (await harness.job()).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("approval", "then"),
    [
        (an_approval(), JobState.AWAITING_APPROVAL),
        (an_approval(expires_at_unix_ms=T0), JobState.FAILED),
        (an_approval(APPROVED), JobState.QUEUED),
        (an_approval(USED), JobState.QUEUED),
        (an_approval(REJECTED, comment="no"), JobState.FAILED),
        (an_approval(EXPIRED), JobState.FAILED),
    ],
)
async def test_missed_decision_is_found_by_the_sweep(
    harness: JobHarness, process: Process, approval: Approval | None, then: JobState
) -> None:
    await _waits(harness)
    if approval is not None:
        await process.approvals.create(approval)
    await process.reconciler.sweep()
    assert (await harness.job()).state is then


async def test_a_job_with_an_unknown_approval_is_given_up_at_its_deadline(
    harness: JobHarness, process: Process
) -> None:
    """Until then another hub, which shares the jobs and not the approvals, may decide."""
    await _waits(harness)
    await process.reconciler.sweep()
    assert (await harness.job()).state is JobState.AWAITING_APPROVAL
    harness.clock.advance(((await harness.job()).deadline_unix_ms - harness.clock.unix_ms()) / 1_000)
    await process.reconciler.sweep()
    assert (await harness.job()).state is JobState.FAILED


@pytest.mark.parametrize("problem", [away(), RuntimeError("a defect")])
async def test_decision_that_could_not_be_carried_is_reported_and_left_to_the_sweep(
    harness: JobHarness, process: Process, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(job_id: str) -> Job | None:
        raise problem

    await _waits(harness)
    monkeypatch.setattr(harness.store, "get", fails)
    process.decisions.on_event(an_approval(APPROVED))
    await harness.until(lambda: not process.decisions._applying)
    assert process.observer.troubles == [problem]
    monkeypatch.undo()
    await process.approvals.create(an_approval(APPROVED))
    await process.reconciler.sweep()
    assert (await harness.job()).state is JobState.QUEUED


async def test_a_rejection_of_running_remote_work_stops_it(harness: JobHarness, process: Process) -> None:
    await _waits(harness, remote=MARK)
    await process.decisions.decide(an_approval(REJECTED))
    job = await harness.job()
    assert (job.state, job.remote) == (JobState.CANCELLING, MARK)
    assert (job.cancel_reason or "").startswith("it was not approved: ")
    assert process.engine.waiting == 1


async def test_a_rejection_of_possibly_running_remote_work_leaves_its_effect_unknown(
    harness: JobHarness, process: Process
) -> None:
    await _waits(harness, remote=replace(MARK, accepted=False))
    await process.decisions.decide(an_approval(REJECTED))
    assert (await harness.check()).state is JobState.LOST


async def test_cancellation_and_a_yes_at_once_end_in_one_of_them(harness: JobHarness, process: Process) -> None:
    for number in range(20):
        job = await harness.kept(*in_state(a_job(f"job-{number}"), JobState.AWAITING_APPROVAL, approval_id="apr-1"))
        yes = an_approval(APPROVED)
        yes = replace(yes, binding=replace(yes.binding, job_id=job.job_id))

        async def later(turns: int, job_id: str = job.job_id) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await process.jobs.cancel(AGENT, job_id, "enough")

        await asyncio.gather(process.decisions.decide(yes), later(number % 7))
        assert (await harness.check(job.job_id)).state is JobState.CANCELLED
