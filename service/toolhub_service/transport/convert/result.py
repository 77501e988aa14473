"""What leaves: results, plans, errors, progress."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from toolhub.v1 import artifact_pb2, error_pb2, job_state_pb2, plan_pb2, progress_pb2, result_pb2, step_pb2
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Chunk, JobRef, Plan, Progress, StepName, StepVerdict, ToolResult
from toolhub_service.schema import canonical_json
from toolhub_service.schema.strict_json import has_many_values
from toolhub_service.transport.convert.payload import (
    ERRORS,
    EVIDENCE,
    STEPS,
    NotInStruct,
    duration,
    lossy_struct,
    lossy_value,
    to_struct,
)
from toolhub_service.transport.convert.tables import Writer

_STRUCT_VALUES_MAX = 15_000
"""More leave as JSON bytes: each is a message of its own, made on the event loop; a call may not bring more, either."""


_PLAN = Writer(plan_pb2.Plan, Plan, apart={"steps", "args_json", "args_struct"})
_STEP = Writer(plan_pb2.StepVerdict, StepVerdict, apart={"error"})
_PROGRESS = Writer(progress_pb2.Progress, Progress)
_CHUNK = Writer(progress_pb2.Chunk, Chunk)
_ARTIFACT = Writer(artifact_pb2.Artifact, ArtifactRef, apart={"principal", "task_id", "call_id", "created_at"})
_JOB = Writer(job_state_pb2.JobRef, JobRef)


class Answers(Protocol):
    """What every message with an answer in it has: InvokeResponse, InvokeStreamResponse and SessionEvent."""

    @property
    def result(self) -> result_pb2.ToolResult: ...
    @property
    def plan(self) -> plan_pb2.Plan: ...


def write_answer(message: Answers, answer: ToolResult | Plan, *, as_struct: bool) -> None:
    if isinstance(answer, Plan):
        message.plan.CopyFrom(from_plan(answer, as_struct=as_struct))
    else:
        write_result(message.result, answer, as_struct=as_struct)


def write_result(message: result_pb2.ToolResult, result: ToolResult, *, as_struct: bool) -> None:
    """Fills the message where it stands, within the answer: a message handed to another is copied."""
    message.ok = result.ok
    message.call_id = result.call_id
    message.tool = result.tool
    message.tool_version = result.tool_version
    message.tool_digest = result.tool_digest
    message.attempts = result.attempts
    if result.replayed:
        message.replayed = True
    if result.truncated:
        message.truncated = True
    if result.defaults_applied:
        message.defaults_applied.extend(result.defaults_applied)
    for evidence in result.evidence:  # field by field: keywords of `add` cost twice as much
        added = message.evidence.add()
        added.type = EVIDENCE.to_wire[evidence.type]
        added.ref = evidence.ref
        added.summary = evidence.summary
        added.sha256 = evidence.sha256
        if evidence.created_at_unix_ms:
            created_at, at_unix_ms = added.created_at, evidence.created_at_unix_ms
            created_at.seconds, created_at.nanos = at_unix_ms // 1_000, at_unix_ms % 1_000 * 1_000_000
        if evidence.attributes:
            added.attributes.update(evidence.attributes)
    message.MergeFromString(b"".join(map(_duration, result.durations_us.keys(), result.durations_us.values())))
    if result.error is not None:
        message.error.CopyFrom(from_error(result.error))
    elif result.ok and not (as_struct and _set_struct(message, result.value)):
        message.result_json = canonical_json.dumps(result.value)
    if result.artifacts or result.job is not None or result.raw is not None:
        _add_what_few_have(message, result)


def _add_what_few_have(message: result_pb2.ToolResult, result: ToolResult) -> None:
    if result.artifacts:
        message.artifacts.extend(from_artifact_ref(artifact) for artifact in result.artifacts)
    if result.job is not None:
        message.job.CopyFrom(_JOB(result.job))
    if result.raw is not None:
        message.raw_json = _raw_json(result.raw)


def _raw_json(raw: JsonValue) -> bytes:
    """An upstream may have answered what JSON cannot hold; the call has had its effect and is answered all the same."""
    try:
        return canonical_json.dumps(raw)
    except canonical_json.NotJson:
        return b'"(left out: the raw answer is not JSON)"'


def _set_struct(message: result_pb2.ToolResult, value: JsonValue) -> bool:
    """Whether the value travels as a Struct: exactness comes before the encoding that was asked for."""
    if isinstance(value, dict) and not has_many_values(value, _STRUCT_VALUES_MAX):
        try:
            message.result_struct.CopyFrom(to_struct(value))
        except NotInStruct:
            message.ClearField("result_struct")
        else:
            return True
    return False


@lru_cache(maxsize=4_096)
def _duration(step: StepName, duration_us: int) -> bytes:
    """A ToolResult with nothing but this duration, serialised: eight small messages a call would cost 8 µs."""
    durations = [step_pb2.StepDuration(step=STEPS.to_wire[step], duration_us=duration_us)]
    return result_pb2.ToolResult(durations=durations).SerializeToString()


def from_error(error: ToolError) -> error_pb2.ToolError:
    message = error_pb2.ToolError(kind=ERRORS.to_wire[error.kind], message=error.message, retryable=error.is_retryable)
    if error.retry_after_s is not None:
        message.retry_after.CopyFrom(duration(error.retry_after_s))
    for violation in error.violations:
        message.violations.add(
            path=violation.path,
            keyword=violation.keyword,
            message=violation.message,
            expected=lossy_value(violation.expected),
            hint=violation.hint,
        )
    if error.details:
        message.details.CopyFrom(lossy_struct(error.details))
    if error.upstream is not None:
        message.upstream.CopyFrom(error_pb2.Upstream(status=error.upstream.status, excerpt=error.upstream.excerpt))
    return message


def from_plan(plan: Plan, *, as_struct: bool) -> plan_pb2.Plan:
    message = _PLAN(plan, steps=[_from_step(step) for step in plan.steps])
    if as_struct and not has_many_values(plan.args, _STRUCT_VALUES_MAX):
        message.args_struct.CopyFrom(lossy_struct(plan.args))
    else:
        message.args_json = canonical_json.dumps(plan.args)
    return message


def _from_step(step: StepVerdict) -> plan_pb2.StepVerdict:
    return _STEP(step, error=from_error(step.error) if step.error else None)


def from_progress(progress: Progress) -> progress_pb2.Progress:
    return _PROGRESS(progress)


def from_chunk(chunk: Chunk) -> progress_pb2.Chunk:
    return _CHUNK(chunk)


def from_artifact_ref(artifact: ArtifactRef) -> artifact_pb2.Artifact:
    """As results name it: without its owner."""
    return _ARTIFACT(artifact)
