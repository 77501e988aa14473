"""core/job.*: the functions of JobService, for a model that can only call tools. They show only the caller's
own jobs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobService
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Input, Output, Tool, ToolInput, ToolOutput

JobId = Annotated[
    str, Meta(description="The job's id, from `job.job_id` of the answer that made it.", min_length=1, max_length=128)
]


class JobQuestion(ToolInput, frozen=True):
    job_id: JobId


class JobProgress(ToolOutput, frozen=True):
    step: float
    total: float | None = None
    unit: str = ""
    message: str = ""
    eta_s: float | None = None


class JobAnswer(ToolOutput, frozen=True):
    """Where a job stands."""

    job_id: str
    tool: str
    state: str
    sequence: int
    is_final: bool
    progress: JobProgress | None = None
    error_kind: str = ""
    error_message: str = ""


class JobTool(Tool[Input, Output]):
    """Subclasses ask the caller's own jobs."""

    def __init__(self, jobs: JobService) -> None:
        self._jobs = jobs


class JobStatusTool(JobTool[JobQuestion, JobAnswer]):
    name = "core/job.status"
    description = (
        "Return the status of one of your jobs: its state, its progress, and why it failed if it did. Ask again "
        "later while isFinal is false; core/job.result returns its result."
    )
    tags = ("job", "status", "progress")
    annotations = Annotations(read_only=True, idempotent=True)
    In = JobQuestion
    Out = JobAnswer

    async def run(self, args: JobQuestion, context: ToolContext) -> JobAnswer:
        job = await self._jobs.get(Principal(context.principal_id), args.job_id)
        _prove(context, job)
        return _job_to_answer(job)


class JobResultTool(JobTool[JobQuestion, "JobResultTool.Out"]):
    name = "core/job.result"
    description = (
        "Return the result of one of your finished jobs, or why there is none. Fails with a hint when the job is "
        "not finished yet: wait, and check with core/job.status."
    )
    tags = ("job", "result")
    annotations = Annotations(read_only=True, idempotent=True)
    In = JobQuestion

    class Out(ToolOutput, frozen=True):
        job: JobAnswer
        ok: bool
        value: Any = None
        artifacts: tuple[str, ...] = ()
        """Ids of what it produced."""

    async def run(self, args: JobQuestion, context: ToolContext) -> JobResultTool.Out:
        job = await self._jobs.get(Principal(context.principal_id), args.job_id)
        result = job.status.result
        if result is None:
            raise refuse(
                ErrorKind.NOT_FOUND,
                f"Job {job.job_id} is {job.state.value} and has no result yet. Check it with core/job.status and "
                "ask again when isFinal is true.",
                retryable=True,
                state=job.state.value,
            )
        _prove(context, job)
        context.artifacts.extend(result.artifacts)
        context.truncated = result.truncated
        return self.Out(
            job=_job_to_answer(job),
            ok=result.ok,
            value=result.value,
            artifacts=tuple(artifact.artifact_id for artifact in result.artifacts),
        )


class JobCancelTool(JobTool["JobCancelTool.In", JobAnswer]):
    name = "core/job.cancel"
    description = (
        "Ask one of your jobs to stop. It is CANCELLING until whatever runs it confirms; a finished job stays as it is."
    )
    tags = ("job", "cancel", "stop")
    annotations = Annotations(idempotent=True)
    Out = JobAnswer

    class In(ToolInput, frozen=True):
        job_id: JobId
        reason: Annotated[str, Meta(description="Why, for the record.", max_length=1_000)] = ""

    async def run(self, args: JobCancelTool.In, context: ToolContext) -> JobAnswer:
        job = await self._jobs.cancel(Principal(context.principal_id), args.job_id, args.reason)
        _prove(context, job)
        return _job_to_answer(job)


def job_tools(jobs: JobService) -> list[Tool[Any, Any, Any]]:
    """Return one of each."""
    return [JobCancelTool(jobs), JobResultTool(jobs), JobStatusTool(jobs)]


def _job_to_answer(job: Job) -> JobAnswer:
    status = job.status
    progress = status.progress
    error = None if status.result is None else status.result.error
    return JobAnswer(
        job_id=job.job_id,
        tool=job.call.tool,
        state=job.state.value,
        sequence=status.sequence,
        is_final=job.state.is_final,
        progress=None
        if progress is None
        else JobProgress(
            step=progress.step,
            total=progress.total,
            unit=progress.unit,
            message=progress.message,
            eta_s=progress.eta_s,
        ),
        error_kind="" if error is None else error.kind.value,
        error_message="" if error is None else error.message,
    )


def _prove(context: ToolContext, job: Job) -> None:
    context.proves(EvidenceType.TOOL, job.job_id, f"job {job.job_id} of {job.call.tool} is {job.state.value}")
