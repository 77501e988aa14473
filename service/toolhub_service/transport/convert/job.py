"""Jobs and their history on the wire."""

from __future__ import annotations

from toolhub.v1 import call_pb2, job_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub_service.domain.job import Job, JobFilter, JobStatus
from toolhub_service.transport.convert.enums import JOB_STATES
from toolhub_service.transport.convert.payload import timestamp
from toolhub_service.transport.convert.result import from_artifact_ref, from_error, from_progress, write_result


def from_job(job: Job, *, as_struct: bool, with_result: bool = True) -> job_pb2.Job:
    """`with_result` false: lists leave the results out."""
    message = job_pb2.Job(
        job_id=job.job_id,
        tool=job.call.tool,
        tool_version=job.tool_version,
        tool_digest=job.tool_digest,
        principal=job.call.principal.id,
        call_id=job.call.call_id,
        request_id=job.call.context.request_id,
        task_id=job.call.context.task_id,
        purpose=job.call.purpose,
        approval_id=job.approval_id,
        args_digest=job.args_digest,
        created_at=timestamp(job.created_at_unix_ms),
        deadline=timestamp(job.deadline_unix_ms),
        expires_at=timestamp(job.expires_at_unix_ms),
    )
    write_status(message.status, job.status, as_struct=as_struct, with_result=with_result)
    return message


def write_status(message: job_pb2.JobStatus, status: JobStatus, *, as_struct: bool, with_result: bool = True) -> None:
    """Fills the message where it stands."""
    message.job_id = status.job_id
    message.sequence = status.sequence
    message.state = JOB_STATES.to_wire[status.state]
    message.at.FromMilliseconds(status.at_unix_ms)
    if status.progress is not None:
        message.progress.CopyFrom(from_progress(status.progress))
    message.artifacts.extend(from_artifact_ref(artifact) for artifact in status.artifacts)
    if status.result is None:
        return
    if status.result.error is not None:
        message.error.CopyFrom(from_error(status.result.error))
    if with_result:
        write_result(message.result, status.result, as_struct=as_struct)


def to_job_filter(request: pb.ListJobsRequest) -> JobFilter:
    """The unspecified state in a filter means every state."""
    return JobFilter(
        principal=request.principal,
        states=frozenset(JOB_STATES.to_domain[state] for state in request.states if state),
        tool=request.tool,
        request_id=request.request_id,
        task_id=request.task_id,
    )


def shows_struct(encoding: int) -> bool:
    """Of an answer to a question without arguments: JSON bytes unless a Struct is asked for."""
    return bool(encoding == call_pb2.RESULT_ENCODING_STRUCT)
