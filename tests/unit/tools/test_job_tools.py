"""core/job.*: a model sees and cancels its own jobs, and no other."""

from __future__ import annotations

import pytest

from tests.fakes.tool_context import egress_context
from tests.unit.runtime.jobs.job_harness import AGENT, T0, JobHarness, Process, a_job, failed, in_state
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job import move_job
from toolhub_service.domain.result import JobState, Progress, ToolResult
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.job_tools import JobCancelTool, JobQuestion, JobResultTool, JobStatusTool, job_tools
from toolhub_service.tools.tool import spec_of

ARTIFACT = ArtifactRef("art-1", "s" * 64, 3)
DONE = ToolResult(True, "call-1", "test/text.write", value={"a": [1]}, artifacts=(ARTIFACT,), truncated=True)
ASK = JobQuestion(job_id="job-1")


@pytest.fixture
def harness() -> JobHarness:
    return JobHarness()


@pytest.fixture
def process(harness: JobHarness) -> Process:
    return harness.process()


def _context(principal: str = AGENT.id) -> ToolContext:
    context = egress_context()
    context.principal_id = principal
    return context


async def test_a_status_has_state_and_progress(harness: JobHarness, process: Process) -> None:
    queued, running = in_state(a_job(), JobState.RUNNING, "runner-1")
    await harness.kept(
        queued, running, move_job(running, JobState.RUNNING, T0, progress=Progress(3, 9, "rows", "on", 2.0))
    )
    context = _context()
    answer = await JobStatusTool(process.jobs).run(ASK, context)
    assert (answer.state, answer.sequence, answer.is_final, answer.error_kind) == ("RUNNING", 3, False, "")
    assert answer.progress is not None
    assert (answer.progress.step, answer.progress.total, answer.progress.unit) == (3, 9, "rows")
    assert [proof.ref for proof in context.evidence] == ["job-1"]


async def test_the_status_of_a_failed_job_states_why(harness: JobHarness, process: Process) -> None:
    job = a_job()
    await harness.kept(job, move_job(job, JobState.FAILED, T0, result=failed(job.call, ErrorKind.IO_ERROR)))
    answer = await JobStatusTool(process.jobs).run(ASK, _context())
    assert (answer.is_final, answer.error_kind, answer.error_message) == (True, "IO_ERROR", "io_error")


async def test_result_is_what_the_job_brought(harness: JobHarness, process: Process) -> None:
    job = a_job()
    await harness.kept(job, move_job(job, JobState.SUCCEEDED, T0, result=DONE))
    context = _context()
    answer = await JobResultTool(process.jobs).run(ASK, context)
    assert (answer.ok, answer.value, answer.artifacts) == (True, {"a": [1]}, ("art-1",))
    assert (context.artifacts, context.truncated) == ([ARTIFACT], True)


async def test_the_result_of_a_lost_job_states_its_loss(harness: JobHarness, process: Process) -> None:
    job = a_job()
    await harness.kept(job, move_job(job, JobState.LOST, T0, result=failed(job.call, ErrorKind.OUTCOME_UNKNOWN)))
    answer = await JobResultTool(process.jobs).run(ASK, _context())
    assert (answer.ok, answer.job.state, answer.job.error_kind) == (False, "LOST", "OUTCOME_UNKNOWN")


@pytest.mark.parametrize("state", [state for state in JobState if not state.is_final])
async def test_result_of_an_unfinished_job_is_not_there_yet(
    harness: JobHarness, process: Process, state: JobState
) -> None:
    await harness.kept(*in_state(a_job(), state, "runner-1"))
    with pytest.raises(ToolFailure) as refused:
        await JobResultTool(process.jobs).run(ASK, _context())
    assert (refused.value.error.kind, refused.value.error.is_retryable) == (ErrorKind.NOT_FOUND, True)
    assert refused.value.error.details["state"] == state.value


async def test_cancel_asks_the_job_to_stop(harness: JobHarness, process: Process) -> None:
    await harness.kept(*in_state(a_job(), JobState.RUNNING, "runner-1"))
    asked = JobCancelTool.In(job_id="job-1", reason="enough")
    answer = await JobCancelTool(process.jobs).run(asked, _context())
    assert answer.state == "CANCELLING"
    assert (await harness.job()).cancel_reason == "enough"


@pytest.mark.parametrize("job_id", ["job-1", "job-2"])
async def test_jobs_of_others_do_not_exist(harness: JobHarness, process: Process, job_id: str) -> None:
    standing = await harness.kept(a_job())
    question, context = JobQuestion(job_id=job_id), _context("agent-b")
    for ask in (
        JobStatusTool(process.jobs).run(question, context),
        JobResultTool(process.jobs).run(question, context),
        JobCancelTool(process.jobs).run(JobCancelTool.In(job_id=job_id), context),
    ):
        with pytest.raises(ToolFailure) as refused:
            await ask
        assert refused.value.error.kind is ErrorKind.NOT_FOUND
    assert await harness.job() == standing


def test_only_cancelling_has_side_effects(process: Process) -> None:
    specs = [spec_of(tool, source="core") for tool in job_tools(process.jobs)]
    effects = {spec.name: spec.has_side_effects for spec in specs}
    assert effects == {"core/job.cancel": True, "core/job.result": False, "core/job.status": False}
