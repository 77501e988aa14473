"""Step 8: what proves it? Every answer, a refusal too, carries at least one piece of evidence."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.argument_forms import repair_remark
from toolhub_service.runtime.call_state import CallState
from toolhub_service.runtime.long_results.cut_result import cut_aside
from toolhub_service.runtime.redaction import redact_text, replace_surrogates
from toolhub_service.schema.canonical_json import NotJson
from toolhub_service.schema.repaired_json import repair_evidence, repair_value

# Step 8 for calls that succeeded, were refused, or became a job.


def redact_evidence(proofs: Sequence[Evidence], redactor: Redactor) -> Sequence[Evidence]:
    """Return the given objects themselves when there is nothing to redact or repair in any of them, which one search
    finds out."""
    text = ""
    for proof in proofs:
        text += f"{proof.ref}\n{proof.summary}\n"
        for name, value in proof.attributes.items():
            text += f'"{name}":"{value}"\n'
    if text.isascii() and not redactor.suspects(text.encode()):
        return proofs
    return [
        proof._replace(
            ref=redact_text(proof.ref, redactor),
            summary=redact_text(proof.summary, redactor),
            attributes=redactor.value(
                {
                    redact_text(str(name), redactor): replace_surrogates(str(value))
                    for name, value in proof.attributes.items()
                }
            ),
        )
        for proof in proofs
    ]


async def attach_evidence(
    state: CallState, outcome: Outcome, clock: Clock, redactor: Redactor, *, show_raw: bool
) -> tuple[ToolResult, bytes | None]:
    """Return the successful answer and, where its value was cut to the inline limit, the whole value (canonical JSON)
    to be stored as an artifact; the last evidence then describes the cut. Raises OUTPUT_SCHEMA_INVALID where the value
    is not JSON."""
    spec, now_unix_ms = state.spec, clock.unix_ms()
    assert spec is not None  # the pipeline calls this step only after resolve
    given = outcome.value
    repairs: tuple[str, ...] = ()
    try:
        value, cut, state.summary = await cut_aside(given, spec.limits.max_result_bytes, is_large=outcome.is_large)
    except NotJson:
        # The result was made, perhaps with an effect: half a character or a NaN in it does not lose it.
        given, repairs = await in_thread(repair_value, given)
        try:
            value, cut, state.summary = await cut_aside(given, spec.limits.max_result_bytes, is_large=outcome.is_large)
        except NotJson as not_json:
            raise unwritable(spec) from not_json
    evidence: list[Evidence] = []
    proofs = outcome.evidence or (_call_evidence(state, f"{spec.name} {spec.version} answered"),)
    if state.repairs:
        proofs = (*proofs, repair_remark(state.call, state.repairs))
    for shown in redact_evidence(
        [*proofs, *repair_evidence(state.call.call_id, repairs)] if repairs else proofs, redactor
    ):
        if not shown.created_at_unix_ms:
            evidence.append(Evidence(shown.type, shown.ref, shown.summary, now_unix_ms, shown.sha256, shown.attributes))
        else:
            evidence.append(shown)
    if cut is not None:
        evidence.append(date_evidence(cut.evidence, now_unix_ms))
    result = ToolResult(
        ok=True,
        call_id=state.call.call_id,
        tool=spec.name,
        value=value,
        evidence=tuple(evidence),
        artifacts=outcome.artifacts,
        tool_version=spec.version,
        tool_digest=spec.digest,
        attempts=state.attempts,
        truncated=outcome.truncated or cut is not None,
        defaults_applied=state.planned.defaults_applied if state.planned else (),
        durations_us=state.durations_us,
        request_id=state.call.context.request_id,
        said=outcome.said,
        raw=outcome.raw if show_raw else None,
    )
    return result, None if cut is None else cut.whole


def unwritable(spec: ToolSpec) -> ToolFailure:
    """The tool ran, but a number or text of its answer cannot be written as JSON, or it is nested too deep."""
    effect = " It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
    message = (
        f"{spec.name} returned a value that is not valid JSON: a type that JSON does not have, or more than 254 "
        f"levels.{effect}"
    )
    return refuse(ErrorKind.OUTPUT_SCHEMA_INVALID, message)


def attach_refusal(state: CallState, error: ToolError, now_unix_ms: int) -> ToolResult:
    """The answer to a call that was refused or failed: its evidence says at which step and why."""
    evidence = _call_evidence(state, f"{error.kind.value} at {state.step.value}")
    return ToolResult(
        ok=False,
        call_id=state.call.call_id,
        tool=state.call.tool,
        error=error,
        evidence=(date_evidence(evidence, now_unix_ms),),
        tool_version=state.spec.version if state.spec else "",
        tool_digest=state.spec.digest if state.spec else "",
        attempts=state.attempts,
        defaults_applied=state.planned.defaults_applied if state.planned else (),
        durations_us=state.durations_us,
        request_id=state.call.context.request_id,
    )


def attach_job(state: CallState, job: Job, now_unix_ms: int, *, replayed: bool) -> ToolResult:
    """The answer to a call that has become a job: no value yet, but where to follow the job."""
    stood = "stood already" if replayed else "accepted"
    return ToolResult(
        ok=True,
        call_id=state.call.call_id,
        tool=job.call.tool,
        evidence=(date_evidence(_call_evidence(state, f"job {job.job_id} {stood}"), now_unix_ms),),
        job=job.ref,
        tool_version=job.tool_version,
        tool_digest=job.tool_digest,
        replayed=replayed,
        defaults_applied=state.planned.defaults_applied if state.planned else (),
        durations_us=state.durations_us,
        request_id=state.call.context.request_id,
    )


def _call_evidence(state: CallState, summary: str) -> Evidence:
    return Evidence(type=EvidenceType.TOOL, ref=state.call.call_id, summary=summary)


def date_evidence(item: Evidence, now_unix_ms: int) -> Evidence:
    """Return what `_replace` would, at a fifth of its cost: this runs for every call."""
    if item.created_at_unix_ms:
        return item
    return Evidence(item.type, item.ref, item.summary, now_unix_ms, item.sha256, item.attributes)
