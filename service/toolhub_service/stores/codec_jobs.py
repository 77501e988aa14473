"""Jobs and their statuses to their wire form and back."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import astuple

from toolhub_service.domain.call import BudgetRequest, Call, ExecContext
from toolhub_service.domain.job import Job, JobStatus, RemoteMark
from toolhub_service.domain.json import JsonObject
from toolhub_service.stores.codec_json import encode_json
from toolhub_service.stores.codec_records import (
    BudgetPart,
    CallPart,
    ContextPart,
    JobRecord,
    RemoteMarkPart,
    StatusRecord,
)
from toolhub_service.stores.codec_results import error_of, error_part, object_of, result_of, result_record

_ARGS: Final = Call._fields.index("args")
_CONTEXT: Final = Call._fields.index("context")
_STORED: Final = len(CallPart.__struct_fields__)
"""Fields of a call; how its arguments came is not kept."""
_ARGS_ERROR: Final = Call._fields.index("args_error")
_BUDGET: Final = ExecContext._fields.index("budget")


def status_record(status: JobStatus) -> StatusRecord:
    job_id, sequence, state, at_unix_ms, progress, result, artifacts = status
    kept = None if result is None else result_record(result)
    return StatusRecord(job_id, sequence, state, at_unix_ms, progress, kept, artifacts)


def status_of(record: StatusRecord) -> JobStatus:
    result = None if record.result is None else result_of(record.result)
    return JobStatus(
        record.job_id, record.sequence, record.state, record.at_unix_ms, record.progress, result, record.artifacts
    )


def job_record(job: Job, *, whole: bool = True) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        call=_call_part(job.call, encode_json(job.call.args) if whole else b""),
        tool_version=job.tool_version,
        tool_digest=job.tool_digest,
        args_digest=job.args_digest,
        created_at_unix_ms=job.created_at_unix_ms,
        deadline_unix_ms=job.deadline_unix_ms,
        status=status_record(job.status) if whole else None,
        version=job.version,
        state_since_unix_ms=job.state_since_unix_ms,
        approval_id=job.approval_id,
        runner=job.runner,
        runs=job.runs,
        begun=job.begun,
        remote=None if job.remote is None else RemoteMarkPart(*job.remote),
        cancel_reason=job.cancel_reason,
        expires_at_unix_ms=job.expires_at_unix_ms,
        trace_parent=job.trace_parent,
        cancelled_by=job.cancelled_by,
    )


def job_of(record: JobRecord, status: JobStatus | None = None, args: JsonObject | None = None) -> Job:
    """`status` and `args` are given where they were kept apart. Raises ValueError when they are missing."""
    if status is None:
        if record.status is None:
            raise ValueError("a job without its status")
        status = status_of(record.status)
    return Job(
        job_id=record.job_id,
        call=_call_of(record.call, object_of(record.call.args) if args is None else args),
        tool_version=record.tool_version,
        tool_digest=record.tool_digest,
        args_digest=record.args_digest,
        created_at_unix_ms=record.created_at_unix_ms,
        deadline_unix_ms=record.deadline_unix_ms,
        status=status,
        version=record.version,
        state_since_unix_ms=record.state_since_unix_ms,
        approval_id=record.approval_id,
        runner=record.runner,
        runs=record.runs,
        begun=record.begun,
        remote=None if record.remote is None else RemoteMark(*astuple(record.remote)),
        cancel_reason=record.cancel_reason,
        expires_at_unix_ms=record.expires_at_unix_ms,
        trace_parent=record.trace_parent,
        cancelled_by=record.cancelled_by,
    )


def _call_part(call: Call, args: bytes) -> CallPart:
    fields: list[Any] = [*call[:_STORED]]
    fields[_ARGS] = args
    fields[_CONTEXT] = _context_part(call.context)
    fields[_ARGS_ERROR] = None if call.args_error is None else error_part(call.args_error)
    return CallPart(*fields)


def _call_of(part: CallPart, args: JsonObject) -> Call:
    fields: list[Any] = [*astuple(part)]
    fields[_ARGS] = args
    fields[_CONTEXT] = _context_of(part.context)
    fields[_ARGS_ERROR] = None if part.args_error is None else error_of(part.args_error)
    return Call(*fields)


def _context_part(context: ExecContext) -> ContextPart:
    fields: list[Any] = [*context]
    fields[_BUDGET] = BudgetPart(*context.budget)
    return ContextPart(*fields)


def _context_of(part: ContextPart) -> ExecContext:
    fields: list[Any] = [*astuple(part)]
    fields[_BUDGET] = BudgetRequest(*astuple(part.budget))
    return ExecContext(*fields)
