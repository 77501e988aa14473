"""Results and errors to their wire form and back."""

from __future__ import annotations

from toolhub_service.domain.errors import ToolError, Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, ToolResult
from toolhub_service.stores.codec_json import decode_json, encode_json
from toolhub_service.stores.codec_records import EMPTY, NULL, ErrorPart, EvidencePart, ResultRecord, ViolationPart


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
