"""What leaves: results, plans, errors, progress."""

from __future__ import annotations

from functools import lru_cache

from toolhub.v1 import artifact_pb2, error_pb2, job_state_pb2, plan_pb2, progress_pb2, result_pb2, step_pb2
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.job_state import JobRef
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.plan import Plan, StepVerdict
from toolhub_service.domain.progress import Chunk, Progress
from toolhub_service.domain.result import Evidence, ToolResult
from toolhub_service.domain.step import StepName
from toolhub_service.schema import canonical_json
from toolhub_service.schema.structure import has_many_values
from toolhub_service.transport.convert.enums import ERRORS, EVIDENCE, JOB_STATES, STEPS
from toolhub_service.transport.convert.payload import (
    NotInStruct,
    duration,
    lossy_struct,
    lossy_value,
    timestamp,
    to_struct,
)

_STRUCT_VALUES_MAX = 15_000
"""More leave as JSON bytes: each is a message of its own, made on the event loop; a call may not bring more, either."""


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
    for item in result.evidence:
        _add_evidence(message, item)
    message.MergeFromString(b"".join([_duration(step, span_us) for step, span_us in result.durations_us.items()]))
    if result.error is not None:
        message.error.CopyFrom(from_error(result.error))
    elif result.ok:
        _set_value(message, result, as_struct=as_struct)
    if result.artifacts:
        message.artifacts.extend(from_artifact_ref(artifact) for artifact in result.artifacts)
    if result.job is not None:
        message.job.CopyFrom(_from_job(result.job))
    if result.raw is not None:
        message.raw_json = _raw_json(result.raw)


def _raw_json(raw: JsonValue) -> bytes:
    """An upstream may have answered what JSON cannot hold; the call has had its effect and is answered all the same."""
    try:
        return canonical_json.dumps(raw)
    except canonical_json.NotJson:
        return b'"(left out: the raw answer is not JSON)"'


def _set_value(message: result_pb2.ToolResult, result: ToolResult, *, as_struct: bool) -> None:
    if as_struct and isinstance(result.value, dict) and not has_many_values(result.value, _STRUCT_VALUES_MAX):
        try:
            message.result_struct.CopyFrom(to_struct(result.value))
            return
        except NotInStruct:  # exactness before the encoding that was asked for
            message.ClearField("result_struct")
    message.result_json = canonical_json.dumps(result.value)


def _add_evidence(message: result_pb2.ToolResult, evidence: Evidence) -> None:
    """Field by field: keywords of `add` cost twice as much."""
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
    message = plan_pb2.Plan(
        call_id=plan.call_id,
        tool=plan.tool,
        tool_version=plan.tool_version,
        tool_digest=plan.tool_digest,
        defaults_applied=plan.defaults_applied,
        steps=[_from_step(step) for step in plan.steps],
        effects=plan.effects,
        plan_digest=plan.plan_digest,
        expires_at=timestamp(plan.expires_at_unix_ms),
    )
    if as_struct and not has_many_values(plan.args, _STRUCT_VALUES_MAX):
        message.args_struct.CopyFrom(lossy_struct(plan.args))
    else:
        message.args_json = canonical_json.dumps(plan.args)
    return message


def _from_step(step: StepVerdict) -> plan_pb2.StepVerdict:
    return plan_pb2.StepVerdict(
        step=STEPS.to_wire[step.step],
        ok=step.ok,
        rule_id=step.rule_id,
        reason=step.reason,
        remedy=step.remedy,
        error=from_error(step.error) if step.error else None,
    )


def from_progress(progress: Progress) -> progress_pb2.Progress:
    return progress_pb2.Progress(
        step=progress.step,
        total=progress.total,
        unit=progress.unit,
        message=progress.message,
        eta=None if progress.eta_s is None else duration(progress.eta_s),
    )


def from_chunk(chunk: Chunk) -> progress_pb2.Chunk:
    return progress_pb2.Chunk(data=chunk.data, stream=chunk.stream)


def from_artifact_ref(artifact: ArtifactRef) -> artifact_pb2.Artifact:
    """As results name it: without its owner."""
    return artifact_pb2.Artifact(
        artifact_id=artifact.artifact_id,
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        media_type=artifact.media_type,
        name=artifact.name,
        expires_at=timestamp(artifact.expires_at_unix_ms),
    )


def _from_job(job: JobRef) -> job_state_pb2.JobRef:
    return job_state_pb2.JobRef(job_id=job.job_id, state=JOB_STATES.to_wire[job.state])
