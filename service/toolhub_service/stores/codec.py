"""What stores keep, as bytes: exact, versioned, strict, and the same for every store.

msgpack of the Structs in `codec_records`. Decoding judges types, so bytes that are no such record are refused, never
half believed. Encoding raises ValueError (`NotJson` for values) for what cannot be written: NaN in a JSON value, half a
surrogate pair in a text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import astuple

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Question
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.key import KeyRecord
from toolhub_service.domain.result import ToolResult
from toolhub_service.domain.source import Pin
from toolhub_service.domain.tool import ToolUse
from toolhub_service.stores.codec_records import (
    AnsweringRecord,
    ApprovalRecord,
    BudgetPart,
    CallPart,
    ContextPart,
    JobRecord,
    KeyRecordRecord,
    PinRecord,
    QuestionPart,
    ResultRecord,
    StatusRecord,
    encode_json,
    error_of,
    error_part,
    object_of,
    result_of,
    result_record,
)

T = TypeVar("T")
R = TypeVar("R")


class UnreadableRecord(ValueError):
    """Bytes that are not such a record: damaged, or written by a newer version."""


def readable(rows: Iterable[R], decode: Callable[[R], T]) -> list[T]:
    """Of many, those that this version can read: one that is damaged must not hide the others, nor stop what looks
    after them. Whoever asks for such a one by its name is refused."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(decode(row))
        except UnreadableRecord as damaged:
            _warn_once(str(damaged))
    return found


@lru_cache(maxsize=64)
def _warn_once(problem: str) -> None:
    """Once for each kind of damage: lists are read every few seconds."""
    logging.getLogger("toolhub").error("records of a store cannot be read and are passed over: %s", problem)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"{type(value).__name__} is not kept")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _decoder(record: type[R], build: Callable[[R], T]) -> Callable[[bytes], T]:
    return partial(_decode, msgspec.msgpack.Decoder(record).decode, build)


def _decode(read: Callable[[bytes], R], build: Callable[[R], T], data: bytes) -> T:
    try:
        return build(read(data))
    except ValueError as error:
        raise UnreadableRecord(str(error)) from None


def _itself(record: T) -> T:
    return record


def _key_record_of(record: KeyRecordRecord) -> KeyRecord:
    fields = list(astuple(record))
    fields[-1] = None if record.result is None else result_of(record.result)
    return KeyRecord(*fields)


def _approval_of(record: ApprovalRecord | AnsweringRecord) -> Approval:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, AnsweringRecord):
        asked = record.question
        fields["question"] = Question(asked.message, object_of(asked.schema), asked.continuation)
        fields["answer"] = None if record.answer is None else object_of(record.answer)
    return Approval(**fields)


def _pin_of(record: PinRecord) -> Pin:
    source, tool, digest, definition, *fields = astuple(record)
    return Pin(source, tool, digest, object_of(definition), *fields)


# Jobs and their statuses to their wire form and back.

_ARGS: Final = Call._fields.index("args")
_CONTEXT: Final = Call._fields.index("context")
# Fields of a call; how its arguments came is not kept.
_STORED: Final = len(CallPart.__struct_fields__)
_ARGS_ERROR: Final = Call._fields.index("args_error")
_BUDGET: Final = ExecContext._fields.index("budget")


def status_record(status: JobStatus) -> StatusRecord:
    result = None if status.result is None else result_record(status.result)
    return StatusRecord(
        status.job_id, status.sequence, status.state, status.at_unix_ms, status.progress, result, status.artifacts
    )


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
        remote=job.remote,
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
        remote=record.remote,
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


def encode_job(job: Job) -> bytes:
    return _encode(job_record(job))


decode_job: Final = _decoder(JobRecord, job_of)


def encode_job_frame(job: Job) -> bytes:
    """The job without `status` and the call's `args`, for a store that keeps these apart: see `decode_job_frame`."""
    return _encode(job_record(job, whole=False))


def decode_job_frame(frame: bytes, status: JobStatus, args: JsonObject) -> Job:
    """Raises UnreadableRecord."""
    return _decode(_read_job, lambda record: job_of(record, status, args), frame)


_read_job: Final = msgspec.msgpack.Decoder(JobRecord).decode


def encode_args(args: JsonObject) -> bytes:
    return encode_json(args)


decode_args: Final = partial(_decode, lambda data: data, object_of)


def encode_status(status: JobStatus) -> bytes:
    return _encode(status_record(status))


decode_status: Final = _decoder(StatusRecord, status_of)


def encode_result(result: ToolResult) -> bytes:
    """All of it but `raw`."""
    return _encode(result_record(result))


decode_result: Final = _decoder(ResultRecord, result_of)


def encode_key_record(record: KeyRecord) -> bytes:
    result = record.result
    return _encode(
        KeyRecordRecord(
            record.owner,
            record.call_id,
            record.args_digest,
            record.tool_digest,
            record.lease_until_unix_ms,
            record.expires_at_unix_ms,
            None if result is None else result_record(result),
        )
    )


decode_key_record: Final = _decoder(KeyRecordRecord, _key_record_of)


def encode_approval(approval: Approval) -> bytes:
    record = ApprovalRecord if approval.question is None else AnsweringRecord
    fields = {name: getattr(approval, name) for name in record.__struct_fields__}
    if (asked := approval.question) is not None:
        fields["question"] = QuestionPart(asked.message, encode_json(asked.schema), asked.continuation)
        fields["answer"] = None if approval.answer is None else encode_json(approval.answer)
    return _encode(record(**fields))


_read_approval: Final = msgspec.msgpack.Decoder(ApprovalRecord | AnsweringRecord).decode
decode_approval: Final[Callable[[bytes], Approval]] = partial(_decode, _read_approval, _approval_of)


def encode_artifact(artifact: Artifact) -> bytes:
    return _encode(artifact)


decode_artifact: Final[Callable[[bytes], Artifact]] = _decoder(Artifact, _itself)


def encode_pin(pin: Pin) -> bytes:
    fields = {name: getattr(pin, name) for name in PinRecord.__struct_fields__}
    return _encode(PinRecord(**(fields | {"definition": encode_json(pin.definition)})))


decode_pin: Final = _decoder(PinRecord, _pin_of)


def encode_use(use: ToolUse) -> bytes:
    return _encode(use)


decode_use: Final[Callable[[bytes], ToolUse]] = _decoder(ToolUse, _itself)
