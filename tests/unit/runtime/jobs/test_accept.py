"""Submissions: a job is durable before anybody is notified of it, and none runs without a notification."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.unit.runtime.jobs.faulty_jobs import Fault, away
from tests.unit.runtime.jobs.job_harness import AGENT, TERMS, JobHarness, Process, a_job, failed
from tests.unit.runtime.pipeline_harness import WRITE, RecordingCatalog
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, GrantedCall, Mode, PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import JobFilter
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import JobRef, JobState, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.runtime.jobs import accept
from toolhub_service.runtime.jobs.accept import Submission
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema


def _call(text: str = "hi", **fields: Any) -> Call:
    return Call("call-1", WRITE.name, {"text": text}, AGENT, ExecContext("r-1"), mode=Mode.SUBMIT, **fields)


def _granted(call: Call, spec: ToolSpec = WRITE) -> GrantedCall:
    planned = PlannedCall(call, spec, call.args, args_digest=digest(call.args))
    return GrantedCall(planned, Verdict(Effect.ALLOW, "1", "rule", "because"), deadline_s=0.0)


class FakePipeline:
    """A pipeline that comes to step 6, or is refused before."""

    def __init__(self, process: Process, refusal: ErrorKind | None = None, **details: Any) -> None:
        self._process = process
        self._refusal = refusal
        self._details = details

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult:
        if self._refusal is not None:
            return failed(call, self._refusal, attempts=0, **self._details)
        try:
            job, replayed = await self._process.acceptance.accept(call, _granted(call))
        except ToolFailure as refused:
            return ToolResult(False, call.call_id, call.tool, error=refused.error)
        return ToolResult(True, call.call_id, call.tool, job=JobRef(job.job_id, job.state), replayed=replayed)


def _submission(process: Process, refusal: ErrorKind | None = None, **details: Any) -> Submission:
    catalog = RecordingCatalog(check_schema=compile_schema)
    catalog.visited = []
    catalog.register(WRITE)
    return Submission(FakePipeline(process, refusal, **details), process.acceptance, process.store, catalog)


async def test_a_submission_waits_for_the_first_reading_of_its_source(process: Process) -> None:
    asked, read = asyncio.Event(), asyncio.Event()

    async def reading(tool: str) -> None:
        assert tool == _call().tool
        asked.set()
        await read.wait()

    submission = _submission(process)
    submission._await_reading_of = reading
    submitting = asyncio.create_task(submission.submit(_call()))
    await asked.wait()
    assert process.engine.waiting == 0
    read.set()
    assert (await submitting).state is JobState.QUEUED


async def test_a_submission_does_not_wait_for_ever_for_a_source(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_tool: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(accept, "_READING_S", 0.01)
    submission = _submission(process)
    submission._await_reading_of = silent
    assert (await submission.submit(_call())).state is JobState.QUEUED


async def test_accepted_job_is_durable_and_enqueued(harness: JobHarness, process: Process) -> None:
    job = await _submission(process).submit(_call())
    assert await harness.job(job.job_id) == job
    assert (job.state, job.call.mode, job.call.job_id) == (JobState.QUEUED, Mode.EXECUTE, job.job_id)
    assert job.replays is WRITE.replays is False
    assert process.engine.waiting == 1
    assert job.deadline_unix_ms == harness.clock.unix_ms() + 3_600_000


@pytest.mark.parametrize(("asked_s", "given_s"), [(None, 3_600), (5, 5), (10**9, 86_400)])
async def test_budget_is_the_time_of_the_job(process: Process, asked_s: float | None, given_s: float) -> None:
    call = _call()._replace(context=ExecContext("r-1", budget=BudgetRequest(timeout_s=asked_s)))
    job = await _submission(process).submit(call)
    assert job.deadline_unix_ms - job.created_at_unix_ms == given_s * 1_000


@pytest.mark.parametrize(("asked_s", "given_s"), [(None, 7_200), (5, 5), (9_000, 7_200)])
async def test_a_tool_may_state_the_time_of_its_jobs_which_its_callers_may_shorten(
    process: Process, asked_s: float | None, given_s: float
) -> None:
    long = replace(WRITE, limits=structs.replace(WRITE.limits, job_timeout_s=7_200.0))
    call = _call()._replace(context=ExecContext("r-1", budget=BudgetRequest(timeout_s=asked_s)))
    job, _ = await process.acceptance.accept(call, _granted(call, long))
    assert job.deadline_unix_ms - job.created_at_unix_ms == given_s * 1_000


async def test_same_key_is_the_same_job_as_it_stands(harness: JobHarness, process: Process) -> None:
    first = await _submission(process).submit(_call(idempotency_key="k-1"))
    harness.world.go[first.job_id].set()
    await process.runs.run(first.job_id)
    again = await _submission(process).submit(_call(idempotency_key="k-1"))
    assert again == await harness.check(first.job_id)
    assert again.state is JobState.SUCCEEDED
    assert harness.world.effects[first.job_id] == 1


async def test_same_key_for_other_arguments_is_a_conflict(process: Process) -> None:
    await _submission(process).submit(_call(idempotency_key="k-1"))
    with pytest.raises(ToolFailure) as refused:
        await _submission(process).submit(_call("other", idempotency_key="k-1"))
    assert refused.value.error.kind is ErrorKind.IDEMPOTENCY_CONFLICT


async def test_engine_that_is_away_costs_no_job_and_no_second_one(harness: JobHarness, process: Process) -> None:
    async def enqueue(job_id: str, tenant: str = "") -> None:
        raise away()

    process.engine.enqueue = enqueue  # type: ignore[method-assign]
    job = await _submission(process).submit(_call())
    assert job.state is JobState.QUEUED, "the sweep delivers it"
    assert len(process.observer.troubles) == 1


async def test_job_whose_confirmation_was_lost_is_accepted_anyway(harness: JobHarness, process: Process) -> None:
    harness.store.faults = {2: Fault.AFTER}
    job = await _submission(process).submit(_call())
    assert harness.store.asked[:2] == ["count_jobs", "create"]
    assert job.state is JobState.QUEUED
    assert process.observer.transitions == [(job.job_id, "accepted", "QUEUED")]
    assert process.engine.waiting == 1


@pytest.mark.parametrize("fault", list(Fault))
async def test_no_error_advises_to_submit_again_what_may_run(
    harness: JobHarness, process: Process, fault: Fault
) -> None:
    """The store was asked to keep it, and does not say whether it has."""
    harness.store.faults = {2: fault, 3: fault}
    with pytest.raises(ToolFailure) as unclear:
        await _submission(process).submit(_call())
    error = unclear.value.error
    assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, False)
    job = await harness.store.inner.get(str(error.details["may_be_job_id"]))
    assert (job is not None) == (fault is Fault.AFTER)


async def test_unclear_submission_under_a_key_may_be_sent_again(harness: JobHarness, process: Process) -> None:
    harness.store.faults = {2: Fault.AFTER, 3: Fault.AFTER, 4: Fault.BEFORE}
    with pytest.raises(ToolFailure) as unclear:
        await _submission(process).submit(_call(idempotency_key="k-1"))
    assert unclear.value.error.is_retryable
    harness.clock.advance(2)
    job = await _submission(process).submit(_call(idempotency_key="k-1"))
    assert job.state is JobState.QUEUED
    _, total = await harness.store.page(JobFilter(), after=None, limit=1)
    assert total == 1


async def test_accepted_job_that_cannot_be_read_is_named(harness: JobHarness, process: Process) -> None:
    harness.store.faults = {3: Fault.BEFORE}
    with pytest.raises(ToolFailure) as gone:
        await _submission(process).submit(_call())
    assert harness.store.asked == ["count_jobs", "create", "get"]
    assert not gone.value.error.is_retryable
    assert (await harness.job(str(gone.value.error.details["job_id"]))).state is JobState.QUEUED


@pytest.mark.parametrize("kind", [ErrorKind.POLICY_DENIED, ErrorKind.TOOL_NOT_FOUND, ErrorKind.INPUT_SCHEMA_INVALID])
async def test_a_refused_submission_is_a_failed_job_with_a_reason(
    harness: JobHarness, process: Process, kind: ErrorKind
) -> None:
    job = await _submission(process, kind).submit(_call(idempotency_key="k-1"))
    assert job.state is JobState.FAILED
    assert job.status.result is not None
    assert job.status.result.error is not None
    assert job.status.result.error.kind is kind
    assert job.call.idempotency_key == "", "the key is free for the call as it should have been"
    assert job.expires_at_unix_ms > 0
    assert process.engine.waiting == 0


async def test_conflict_and_a_full_hub_leave_no_job(harness: JobHarness, process: Process) -> None:
    for kind, details in ((ErrorKind.IDEMPOTENCY_CONFLICT, {}), (ErrorKind.RATE_LIMITED, {"limit": "jobs.max_open"})):
        with pytest.raises(ToolFailure):
            await _submission(process, kind, **details).submit(_call())
    _, total = await harness.store.page(JobFilter(), after=None, limit=1)
    assert total == 0


async def test_submission_that_needs_a_person_waits_under_its_key(harness: JobHarness, process: Process) -> None:
    submission = _submission(process, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-1", args_digest="a" * 64)
    first = await submission.submit(_call(idempotency_key="k-1"))
    assert (first.state, first.approval_id, first.call.approval_id) == (JobState.AWAITING_APPROVAL, "apr-1", "apr-1")
    assert await submission.submit(_call(idempotency_key="k-1")) == first
    other = _submission(process, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-2", args_digest="b" * 64)
    with pytest.raises(ToolFailure) as conflict:
        await other.submit(_call(idempotency_key="k-1"))
    assert conflict.value.error.kind is ErrorKind.IDEMPOTENCY_CONFLICT


async def test_a_job_that_waits_for_a_person_keeps_how_far_its_credential_goes(
    harness: JobHarness, process: Process
) -> None:
    narrow = replace(AGENT, permissions=frozenset({"write:*"}))
    submission = _submission(process, ErrorKind.APPROVAL_REQUIRED, approval_id="apr-1", args_digest="a" * 64)
    job = await submission.submit(_call()._replace(principal=narrow))
    assert (await harness.job(job.job_id)).call.context.permissions == frozenset({"write:*"})


async def test_open_jobs_are_bounded(harness: JobHarness) -> None:
    process = harness.process(terms=TERMS.__class__(max_open=4))
    await harness.kept(a_job("job-0"))
    submission = _submission(process)
    await submission.submit(_call())
    with pytest.raises(ToolFailure) as full:
        await submission.submit(_call())
    assert full.value.error.kind is ErrorKind.RATE_LIMITED
    assert full.value.error.retry_after_s
