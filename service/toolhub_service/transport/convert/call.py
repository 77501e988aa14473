"""Calls on the wire: a request as a Call, whose envelope is valid and whose arguments are untrusted; its deadline; its
answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from toolhub.v1 import (
    artifact_pb2,
    call_pb2,
    error_pb2,
    job_pb2,
    job_service_pb2,
    job_state_pb2,
    plan_pb2,
    progress_pb2,
    result_pb2,
)
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Mode, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Chunk, JobRef, Plan, Progress, StepName, StepVerdict, ToolResult
from toolhub_service.registry.export.definitions import Dialect
from toolhub_service.schema import canonical_json, strict_json
from toolhub_service.schema.json_structure import has_little, has_many_values
from toolhub_service.transport.convert.payload import (
    APPROVAL_STATES,
    ERRORS,
    EVIDENCE,
    STEPS,
    NotInStruct,
    duration,
    from_struct,
    lossy_struct,
    lossy_value,
    seconds,
    to_struct,
)
from toolhub_service.transport.convert.tables import Writer
from toolhub_service.transport.rpc import ServicerContext

CallRequest: TypeAlias = pb.InvokeRequest | pb.InvokeStreamRequest | pb.SessionCall | job_service_pb2.SubmitJobRequest
ResultHolder: TypeAlias = pb.InvokeResponse | pb.InvokeStreamResponse | pb.SessionEvent | job_pb2.JobStatus

AT_ONCE_BYTES = 32 * 1024
"""Size of JSON that is read at once, whatever its contents."""
# Size of JSON that is read at once if it has few values.
_LIGHT_BYTES = 1024 * 1024
_STRUCT_AT_ONCE_BYTES = 16 * 1024

_AS_TEXT = (
    "The arguments are a string that contains the JSON of an object. Send the object itself, without quotes around it."
)


ARGS_FORMS = {
    call_pb2.ARGS_FORM_OPENAI: Dialect.OPENAI.value,
    call_pb2.ARGS_FORM_ANTHROPIC: Dialect.ANTHROPIC.value,
    call_pb2.ARGS_FORM_MCP: Dialect.MCP.value,
    call_pb2.ARGS_FORM_OPENAI_STRICT: Dialect.OPENAI_STRICT.value,
    call_pb2.ARGS_FORM_GEMINI: Dialect.GEMINI.value,
}
MODES = {
    call_pb2.INVOKE_MODE_UNSPECIFIED: Mode.EXECUTE,
    call_pb2.INVOKE_MODE_EXECUTE: Mode.EXECUTE,
    call_pb2.INVOKE_MODE_DRY_RUN: Mode.DRY_RUN,
}


def to_call(request: CallRequest, principal: Principal, *, call_id: str, deadline_s: float | None, mode: Mode) -> Call:
    """Return the request as a Call. Never raises for bad arguments: the call carries the error to step 2, so that it is
    answered and recorded."""
    intent = request.intent
    raw = intent.args_json
    args: JsonObject = {}
    args_error, unread_bytes = None, 0
    is_struct = not raw and intent.HasField("args_struct")
    if raw and len(raw) <= AT_ONCE_BYTES:
        try:
            value = strict_json.loads(raw)
        except ToolFailure as failure:
            args_error = failure.error
        else:
            args, args_error = (value, None) if type(value) is dict else _object(value)
    elif raw or is_struct:
        unread_bytes = _large_bytes(intent)
        if not unread_bytes:
            args, args_error = _read_args(intent)
    return Call(
        call_id=call_id,
        tool=intent.tool,
        args=args,
        args_error=args_error,
        principal=principal,
        context=_to_context(request.context, call_id) if request.HasField("context") else ExecContext(call_id),
        purpose=intent.purpose,
        idempotency_key=intent.idempotency_key,
        mode=mode,
        plan_digest=request.plan_digest,
        approval_id=request.approval_id,
        expected_tool_digest=intent.expected_tool_digest,
        args_form=ARGS_FORMS.get(intent.args_form, ""),
        # `find`, because `in` raises and drops a TypeError in bytes. A `$` may be written as an escape.
        names_artifacts=is_struct or raw.find(b"$artifact") >= 0 or raw.find(b"\\u0024") >= 0,
        deadline_s=deadline_s,
        unread=partial(_read_args, intent, is_large=True) if unread_bytes else None,
        unread_bytes=unread_bytes,
    )


def wants_struct(request: CallRequest) -> bool:
    """Return whether the answer's JSON is sent as a Struct: as requested, else as the arguments were."""
    if request.result_encoding == call_pb2.RESULT_ENCODING_UNSPECIFIED:
        return request.intent.HasField("args_struct")
    return bool(request.result_encoding == call_pb2.RESULT_ENCODING_STRUCT)


def _large_bytes(intent: call_pb2.ToolIntent) -> int:
    """Return the size of arguments that are too large to be read on the event loop; else 0."""
    raw = intent.args_json
    if raw:
        return 0 if len(raw) <= _LIGHT_BYTES and has_little(raw) else len(raw)
    size_bytes: int = intent.args_struct.ByteSize()
    return size_bytes if size_bytes > _STRUCT_AT_ONCE_BYTES else 0


def _read_args(intent: call_pb2.ToolIntent, *, is_large: bool = False) -> tuple[JsonObject, ToolError | None]:
    """Read the arguments; with `is_large` the structure of a text is counted first."""
    try:
        if intent.HasField("args_struct"):
            value = strict_json.struct_numbers(from_struct(intent.args_struct))
        else:
            value = (strict_json.loads_bounded if is_large else strict_json.loads)(intent.args_json)
    except ToolFailure as failure:
        return {}, failure.error
    return _object(value)


def _object(value: JsonValue) -> tuple[JsonObject, ToolError | None]:
    if isinstance(value, dict):
        return value, None
    is_text = isinstance(value, str) and value.lstrip().startswith("{")
    return {}, ToolError(
        kind=ErrorKind.INVALID_INPUT,
        message=_AS_TEXT if is_text else "The arguments must be a JSON object, with a name for each argument.",
        details={"got": type(value).__name__},
    )


def _to_context(context: call_pb2.ExecContext, call_id: str) -> ExecContext:
    """Return the context; a call without a request_id is a request of its own."""
    return ExecContext(
        request_id=context.request_id or call_id,
        task_id=context.task_id,
        session_id=context.session_id,
        agent_id=context.agent_id,
        user_id=context.user_id,
        permissions=frozenset(context.permissions) if context.permissions else None,
        budget=_to_budget(context.budget) if context.HasField("budget") else BudgetRequest(),
        labels=dict(context.labels),
    )


def _to_budget(budget: call_pb2.CallBudget) -> BudgetRequest:
    return BudgetRequest(
        timeout_s=seconds(budget.timeout) if budget.HasField("timeout") else None,
        max_retries=budget.max_retries if budget.HasField("max_retries") else None,
        max_tool_calls=budget.max_tool_calls if budget.HasField("max_tool_calls") else None,
    )


# Deadlines

# Reserved from the caller's deadline, so that a call that runs out of time is still answered by a ToolResult.
_RESERVE_S = 0.1


def answer_deadline_s(clock: Clock, context: ServicerContext) -> float | None:
    """Return when a call of this RPC must have ended, on the loop clock; None when its caller set no deadline."""
    remaining_s: float | None = context.time_remaining()  # its type says that there always is one
    if remaining_s is None:
        return None
    return clock.monotonic_s() + remaining_s - min(_RESERVE_S, remaining_s / 10)


# Answers: results, plans, errors, progress.

# More values are sent as JSON bytes: in a Struct each is a message, created on the event loop. Arguments have the same
# limit.
_STRUCT_VALUES_MAX = 15_000


from_progress = Writer(progress_pb2.Progress, Progress)
from_chunk = Writer(progress_pb2.Chunk, Chunk)
# As results name an artifact: without its owner.
from_artifact_ref = Writer(artifact_pb2.Artifact, ArtifactRef, apart={"principal", "task_id", "call_id", "created_at"})
_JOB = Writer(job_state_pb2.JobRef, JobRef)


def write_answer(holder: ResultHolder, answer: ToolResult | Plan, *, as_struct: bool) -> None:
    """Fill the message in place, within its parent: assigning a message to another copies it."""
    if isinstance(answer, Plan):
        assert not isinstance(holder, job_pb2.JobStatus)  # a job is executed, so its answer is never a plan
        holder.plan.CopyFrom(from_plan(answer, as_struct=as_struct))
        return
    message = holder.result
    result = answer
    message.ok = result.ok
    message.call_id = result.call_id
    message.tool = result.tool
    message.tool_version = result.tool_version
    message.tool_digest = result.tool_digest
    message.attempts = result.attempts
    message.request_id = result.request_id
    if result.replayed or result.truncated:
        message.replayed = result.replayed
        message.truncated = result.truncated
    if result.defaults_applied:
        message.defaults_applied.extend(result.defaults_applied)
    for evidence in result.evidence:  # field by field: keywords of `add` cost twice as much
        added = message.evidence.add()
        added.type = EVIDENCE.to_wire[evidence.type]
        added.ref = evidence.ref
        added.summary = evidence.summary
        added.sha256 = evidence.sha256
        if evidence.created_at_unix_ms:
            created_at = added.created_at
            at_unix_ms = evidence.created_at_unix_ms
            created_at.seconds = at_unix_ms // 1_000
            created_at.nanos = at_unix_ms % 1_000 * 1_000_000
        if evidence.attributes:
            added.attributes.update(evidence.attributes)
    message.MergeFromString(_durations(result.durations_us))
    if result.error is not None:
        message.error.CopyFrom(from_error(result.error))
    # A face has its own representation of a call that failed or became a job, too.
    has_answer = (result.ok and result.job is None) or result.value is not None
    if has_answer and not (as_struct and _set_struct(message, result.value)):
        message.result_json = canonical_json.dumps(result.value)
    if result.artifacts or result.job is not None or result.raw is not None:
        _add_rare_fields(message, result)


def _add_rare_fields(message: result_pb2.ToolResult, result: ToolResult) -> None:
    if result.artifacts:
        message.artifacts.extend(from_artifact_ref(artifact) for artifact in result.artifacts)
    if result.job is not None:
        message.job.CopyFrom(_JOB(result.job))
    if result.raw is not None:
        message.raw_json = _raw_json(result.raw)


def _raw_json(raw: JsonValue) -> bytes:
    """An upstream may have answered what JSON cannot represent; the call has had its effect and is answered all the
    same."""
    try:
        return canonical_json.dumps(raw)
    except canonical_json.NotJson:
        return b'"(left out: the raw answer is not JSON)"'


def _set_struct(message: result_pb2.ToolResult, value: JsonValue) -> bool:
    """Set the Struct and return whether that was possible: exactness has priority over the requested encoding."""
    if isinstance(value, dict) and not has_many_values(value, _STRUCT_VALUES_MAX):
        try:
            message.result_struct.CopyFrom(to_struct(value))
        except NotInStruct:
            message.ClearField("result_struct")
        else:
            return True
    return False


# Durations are serialised here: eight small messages a call would cost 8 µs, and a cache of them by value would miss
# whenever steps take longer than usual. Wire format: protobuf.dev/programming-guides/encoding.
_DURATIONS_TAG: Final = b"\x82\x01"  # field 16, a message
# A StepDuration up to its microseconds.
_TAKEN_BY: Final = {step: bytes([1 << 3, STEPS.to_wire[step], 2 << 3]) for step in StepName}
# Complete bytes for each step shorter than 128 µs, as most are: making them each time was a twelfth of the hub's own
# work.
_SHORT: Final = {
    step: [_DURATIONS_TAG + bytes([len(taken_by) + 1]) + taken_by + bytes([us]) for us in range(128)]
    for step, taken_by in _TAKEN_BY.items()
}


def _durations(durations_us: Mapping[StepName, int]) -> bytes:
    """Return a serialised ToolResult that contains only these durations."""
    written = bytearray()
    for step, duration_us in durations_us.items():
        if duration_us < 128:
            written += _SHORT[step][duration_us]
            continue
        entry = bytearray(_TAKEN_BY[step])
        left = duration_us
        while left > 127:
            entry.append(left & 127 | 128)
            left >>= 7
        entry.append(left)
        written += _DURATIONS_TAG
        written.append(len(entry))
        written += entry
    return bytes(written)


def from_error(error: ToolError) -> error_pb2.ToolError:
    message = error_pb2.ToolError(kind=ERRORS.to_wire[error.kind], message=error.message, retryable=error.invites_retry)
    if error.invited_after_s is not None:
        message.retry_after.CopyFrom(duration(error.invited_after_s))
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
    if error.kind in _OF_APPROVALS and "approval_id" in error.details:
        message.approval.CopyFrom(_approval_ref(error.details))
    if "rule_id" in error.details and "policy_revision" in error.details:
        message.rule.CopyFrom(_rule_ref(error.details))
    return message


_OF_APPROVALS = frozenset({ErrorKind.APPROVAL_REQUIRED, ErrorKind.APPROVAL_REJECTED})
_APPROVAL_STATES = {state.value: number for state, number in APPROVAL_STATES.to_wire.items()}


def _approval_ref(details: Mapping[str, JsonValue]) -> error_pb2.ApprovalRef:
    message = error_pb2.ApprovalRef(
        approval_id=str(details["approval_id"]), state=_APPROVAL_STATES.get(str(details.get("approval_state")), 0)
    )
    with suppress(ValueError):  # a custom tool may raise the same kind
        message.expires_at.FromJsonString(str(details.get("expires_at", "")))
    return message


def _rule_ref(details: Mapping[str, JsonValue]) -> error_pb2.RuleRef:
    missing = details.get("missing_capabilities")
    return error_pb2.RuleRef(
        rule_id=str(details["rule_id"]),
        policy_revision=str(details["policy_revision"]),
        remedy=str(details.get("remedy", "")),
        missing_capabilities=[str(each) for each in missing] if isinstance(missing, list | tuple) else (),
    )


_STEP = Writer(plan_pb2.StepVerdict, StepVerdict, nested={"error": from_error})
_PLAN = Writer(plan_pb2.Plan, Plan, apart={"args_json", "args_struct"}, nested={"steps": _STEP})


def from_plan(plan: Plan, *, as_struct: bool) -> plan_pb2.Plan:
    message = _PLAN(plan)
    if as_struct and not has_many_values(plan.args, _STRUCT_VALUES_MAX):
        message.args_struct.CopyFrom(lossy_struct(plan.args))
    else:
        message.args_json = canonical_json.dumps(plan.args)
    return message
