"""The wire form of what stores keep: one Struct for each domain type that msgspec cannot write and read by itself.

Fields bear the domain's names in the domain's order; those at their default are left out, unknown ones are passed over
and missing ones take their default, so that replicas of neighbouring versions read one another. A record that stands
alone carries its format as `v`; a change that older readers would misread takes the next number, and they refuse it.
JSON values are kept as JSON text, for msgpack's integers end at 64 bits. Dataclasses without JSON values inside
(`Progress`, `ArtifactRef`, `JobRef`, `Upstream`, `Principal`) are written as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from toolhub_service.domain.approval import ApprovalState, Binding
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Mode, Principal
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, Upstream, Violation
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, JobRef, JobState, Progress, StepName, ToolResult
from toolhub_service.domain.source import PinChange, PinState
from toolhub_service.schema import canonical_json, strict_json

# JSON values as text that comes back exactly: member order, integers of any size, doubles, every character.

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_MAX_BYTES: Final = 2**31
_MAX_DEPTH: Final = 254


def encode_json(value: JsonValue) -> bytes:
    """JSON text, members in their order. Raises `schema.canonical_json.NotJson`, a ValueError."""
    try:
        text = orjson.dumps(value, _plain, _OPTIONS)
    except orjson.JSONEncodeError:
        canonical_json.dumps(value)  # judges what orjson has no words for
        return _dumps(value)
    if b"null" in text:
        _dumps(value)  # NaN would have become one
    return text


def decode_json(text: bytes) -> JsonValue:
    """Raises ValueError for what `encode_json` did not write."""
    try:
        return strict_json.loads(text, max_bytes=_MAX_BYTES, max_depth=_MAX_DEPTH)
    except ToolFailure as refused:
        raise ValueError(refused.error.message) from None


def _dumps(value: JsonValue) -> bytes:
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except ValueError as error:
        raise canonical_json.NotJson(str(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(type(value).__name__)


NULL: Final = b"null"
EMPTY: Final = b"{}"
"""JSON text; msgspec leaves a default out when it is the same object."""


class Part(msgspec.Struct, omit_defaults=True, gc=False):
    """Lies inside a record."""


class Record(Part, tag_field="v", tag=1):
    """Stands alone."""


class ViolationPart(Part):
    path: str
    keyword: str
    message: str
    expected: bytes = NULL
    hint: str = ""


class ErrorPart(Part):
    kind: ErrorKind
    message: str
    retryable: bool | None = None
    retry_after_s: float | None = None
    violations: tuple[ViolationPart, ...] = ()
    details: bytes = EMPTY
    upstream: Upstream | None = None


class EvidencePart(Part):
    type: EvidenceType
    ref: str
    summary: str
    created_at_unix_ms: int = 0
    sha256: str = ""
    attributes: Mapping[str, str] = {}


class ResultRecord(Record):
    """A ToolResult; its `raw` is not kept."""

    ok: bool
    call_id: str
    tool: str
    value: bytes = NULL
    error: ErrorPart | None = None
    evidence: tuple[EvidencePart, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    job: JobRef | None = None
    tool_version: str = ""
    tool_digest: str = ""
    attempts: int = 0
    replayed: bool = False
    truncated: bool = False
    defaults_applied: tuple[str, ...] = ()
    durations_us: Mapping[StepName, int] = {}


class StatusRecord(Record):
    job_id: str
    sequence: int
    state: JobState
    at_unix_ms: int
    progress: Progress | None = None
    result: ResultRecord | None = None
    artifacts: tuple[ArtifactRef, ...] = ()


class BudgetPart(Part):
    timeout_s: float | None = None
    max_retries: int | None = None
    max_tool_calls: int | None = None


class ContextPart(Part):
    request_id: str = ""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: frozenset[str] | None = None
    budget: BudgetPart = msgspec.field(default_factory=BudgetPart)
    labels: Mapping[str, str] = {}


class CallPart(Part):
    call_id: str
    tool: str
    args: bytes
    principal: Principal
    context: ContextPart = msgspec.field(default_factory=ContextPart)
    args_error: ErrorPart | None = None
    purpose: str = ""
    idempotency_key: str = ""
    mode: Mode = Mode.EXECUTE
    plan_digest: str = ""
    approval_id: str = ""
    deadline_s: float | None = None
    job_id: str = ""
    names_artifacts: bool = False


class JobRecord(Record):
    """A Job, whole; or without `status` and the call's `args`, where a store keeps these apart."""

    job_id: str
    call: CallPart
    tool_version: str
    tool_digest: str
    args_digest: str
    created_at_unix_ms: int
    deadline_unix_ms: int
    status: StatusRecord | None = None
    version: int = 1
    state_since_unix_ms: int = 0
    approval_id: str = ""
    runner: str = ""
    runs: int = 0
    begun: bool = False
    remote: RemoteMark | None = None
    cancel_reason: str | None = None
    expires_at_unix_ms: int = 0
    trace_parent: str = ""
    cancelled_by: str = ""


class KeyRecordRecord(Record):
    owner: str
    call_id: str
    args_digest: str
    tool_digest: str
    lease_until_unix_ms: int
    expires_at_unix_ms: int
    result: ResultRecord | None = None


class QuestionPart(Part):
    message: str
    schema: bytes
    continuation: str = ""


class ApprovalRecord(Record):
    approval_id: str
    binding: Binding
    state: ApprovalState
    tool_version: str
    args_summary_json: str
    rule_id: str
    reason: str
    purpose: str
    call_id: str
    request_id: str
    requested_at_unix_ms: int
    expires_at_unix_ms: int
    approvers: tuple[str, ...] = ()
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    used_at_unix_ms: int = 0
    used_by_call_id: str = ""
    version: int = 1


class AnsweringRecord(ApprovalRecord, tag=2, kw_only=True):
    """An approval that answers a tool's question. Who knows no questions must not take it for a yes to a rule."""

    question: QuestionPart
    round: int
    covers_rule_id: str = ""
    answer: bytes | None = None


class PinRecord(Record):
    source: str
    tool: str
    digest: str
    definition: bytes
    state: PinState
    change: PinChange = PinChange.NONE
    previous_digest: str = ""
    renamed_from: str = ""
    findings: tuple[str, ...] = ()
    seen_at_unix_ms: int = 0
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    version: int = 1
    registered: bool = False
    endpoint: str = ""


# Results and errors to their wire form and back.


def result_record(result: ToolResult) -> ResultRecord:
    error = result.error
    return ResultRecord(
        ok=result.ok,
        call_id=result.call_id,
        tool=result.tool,
        value=NULL if result.value is None else encode_json(result.value),
        error=None if error is None else error_part(error),
        evidence=tuple(EvidencePart(*evidence) for evidence in result.evidence),
        artifacts=result.artifacts,
        job=result.job,
        tool_version=result.tool_version,
        tool_digest=result.tool_digest,
        attempts=result.attempts,
        replayed=result.replayed,
        truncated=result.truncated,
        defaults_applied=result.defaults_applied,
        durations_us=result.durations_us,
    )


def result_of(record: ResultRecord) -> ToolResult:
    return ToolResult(
        ok=record.ok,
        call_id=record.call_id,
        tool=record.tool,
        value=_value(record.value),
        error=None if record.error is None else error_of(record.error),
        evidence=tuple(_evidence_of(part) for part in record.evidence),
        artifacts=record.artifacts,
        job=record.job,
        tool_version=record.tool_version,
        tool_digest=record.tool_digest,
        attempts=record.attempts,
        replayed=record.replayed,
        truncated=record.truncated,
        defaults_applied=record.defaults_applied,
        durations_us=record.durations_us,
    )


def error_part(error: ToolError) -> ErrorPart:
    return ErrorPart(
        kind=error.kind,
        message=error.message,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
        violations=tuple(_violation_part(violation) for violation in error.violations),
        details=encode_json(error.details) if error.details else EMPTY,
        upstream=error.upstream,
    )


def error_of(part: ErrorPart) -> ToolError:
    return ToolError(
        kind=part.kind,
        message=part.message,
        retryable=part.retryable,
        retry_after_s=part.retry_after_s,
        violations=tuple(_violation_of(violation) for violation in part.violations),
        details=object_of(part.details),
        upstream=part.upstream,
    )


def object_of(text: bytes) -> JsonObject:
    """A JSON object. Raises ValueError for any other value."""
    value = decode_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 — it is the text that is wrong
    return value


def _value(text: bytes) -> JsonValue:
    return None if text == NULL else decode_json(text)


def _evidence_of(part: EvidencePart) -> Evidence:
    return Evidence(part.type, part.ref, part.summary, part.created_at_unix_ms, part.sha256, part.attributes)


def _violation_part(violation: Violation) -> ViolationPart:
    expected = NULL if violation.expected is None else encode_json(violation.expected)
    return ViolationPart(violation.path, violation.keyword, violation.message, expected, violation.hint)


def _violation_of(part: ViolationPart) -> Violation:
    return Violation(part.path, part.keyword, part.message, _value(part.expected), part.hint)
