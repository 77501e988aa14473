"""Step 8: what proves it? Every answer, refused ones too, carries at least one piece of evidence."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.cut import cut_aside
from toolhub_service.runtime.redact import redact_evidence
from toolhub_service.runtime.walk import Walk
from toolhub_service.schema.canonical_json import NotJson

Whole = bytes
"""Canonical JSON of a value before it was cut."""


async def attach_evidence(
    walk: Walk, outcome: Outcome, now_unix_ms: int, redactor: Redactor, *, show_raw: bool
) -> tuple[ToolResult, Whole | None]:
    """The successful answer, and where its value was cut to the tool's inline limit the whole of it, to be kept as an
    artifact; the cut is the last evidence then. Raises OUTPUT_SCHEMA_INVALID where it is no JSON."""
    spec = walk.spec
    assert spec is not None  # the pipeline calls this step only after resolve
    try:
        value, cut, walk.summary = await cut_aside(
            outcome.value, spec.limits.max_result_bytes, is_large=outcome.is_large
        )
    except NotJson as not_json:
        raise unwritable(spec) from not_json
    proofs = outcome.evidence or (_call_evidence(walk, f"{spec.name} {spec.version} answered"),)
    evidence = [_dated(redact_evidence(item, redactor), now_unix_ms) for item in proofs]
    if cut is not None:
        evidence.append(_dated(cut.evidence, now_unix_ms))
    result = ToolResult(
        ok=True,
        call_id=walk.call.call_id,
        tool=spec.name,
        value=value,
        evidence=tuple(evidence),
        artifacts=outcome.artifacts,
        tool_version=spec.version,
        tool_digest=spec.digest,
        attempts=walk.attempts,
        truncated=outcome.truncated or cut is not None,
        defaults_applied=walk.planned.defaults_applied if walk.planned else (),
        durations_us=walk.durations_us,
        raw=outcome.raw if show_raw else None,
    )
    return result, None if cut is None else cut.whole


def unwritable(spec: ToolSpec) -> ToolFailure:
    """The tool ran; some number or text of its answer has no place in JSON, or it nests beyond all use."""
    effect = " It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
    message = (
        f"{spec.name} answered what cannot be written as JSON: a number that is none, text that is no Unicode, or more "
        f"than 254 levels.{effect}"
    )
    return refuse(ErrorKind.OUTPUT_SCHEMA_INVALID, message)


def attach_refusal(walk: Walk, error: ToolError, now_unix_ms: int) -> ToolResult:
    """The answer to a call that was refused or failed: its evidence says at which step and why."""
    evidence = _call_evidence(walk, f"{error.kind.value} at {walk.step.value}")
    return ToolResult(
        ok=False,
        call_id=walk.call.call_id,
        tool=walk.call.tool,
        error=error,
        evidence=(_dated(evidence, now_unix_ms),),
        tool_version=walk.spec.version if walk.spec else "",
        tool_digest=walk.spec.digest if walk.spec else "",
        attempts=walk.attempts,
        defaults_applied=walk.planned.defaults_applied if walk.planned else (),
        durations_us=walk.durations_us,
    )


def attach_job(walk: Walk, job: Job, now_unix_ms: int, *, replayed: bool) -> ToolResult:
    """The answer to a call that has become a job: no value yet, but where to follow it."""
    stood = "stood already" if replayed else "accepted"
    return ToolResult(
        ok=True,
        call_id=walk.call.call_id,
        tool=job.call.tool,
        evidence=(_dated(_call_evidence(walk, f"job {job.job_id} {stood}"), now_unix_ms),),
        job=job.ref,
        tool_version=job.tool_version,
        tool_digest=job.tool_digest,
        replayed=replayed,
        defaults_applied=walk.planned.defaults_applied if walk.planned else (),
        durations_us=walk.durations_us,
    )


def _call_evidence(walk: Walk, summary: str) -> Evidence:
    return Evidence(type=EvidenceType.TOOL, ref=walk.call.call_id, summary=summary)


def _dated(item: Evidence, now_unix_ms: int) -> Evidence:
    """What `_replace` would make, at a fifth of its cost: this runs for every call."""
    if item.created_at_unix_ms:
        return item
    return Evidence(item.type, item.ref, item.summary, now_unix_ms, item.sha256, item.attributes)
