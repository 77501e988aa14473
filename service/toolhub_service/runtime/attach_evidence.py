"""Step 8: what proves it? Every answer, a refusal too, carries at least one piece of evidence."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, TypeAlias, cast

from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import CallObserver, Clock
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.argument_forms import repair_remark
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.call_state import CallState, ResultSummary
from toolhub_service.runtime.failures import mended, redact_text
from toolhub_service.runtime.record import summarise_result
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.schema.repaired_json import repair_evidence, repair_value

# Cut a result to its inline limit: the longest strings first, then the longest lists, always marked.
#
# Writing, hashing and cutting megabytes takes 2 ms each: long results are processed in a thread, beside other calls.

# Room for the marker and its JSON escapes.
_MARKER_BYTES = 96
# Characters, or bytes of JSON.
_LONG = 256 * 1024
# Items of a list that are measured together: measuring small ones one by one takes a second per million.
_TOGETHER = 256


class Cut(NamedTuple):
    """What was cut, and from what."""

    evidence: Evidence
    whole: bytes
    """Canonical JSON of the value before the cut."""


CutAndSummary: TypeAlias = tuple[JsonValue, Cut | None, ResultSummary]


def cut_to(value: JsonValue, max_bytes: int) -> tuple[JsonValue, Cut | None]:
    """Return the value with at most `max_bytes` of canonical JSON, and what was cut (None: nothing was).

    Only the value's own strings and lists are shortened, so that its shape survives where possible; a value that still
    does not fit becomes a string that says so.
    """
    return _cut(value, dumps(value), max_bytes)[:2]


async def cut_aside(value: JsonValue, max_bytes: int, *, is_large: bool = False) -> CutAndSummary:
    """As `cut_to`, with the audit log's summary of the remaining value; a value with long texts, or known to be large,
    is processed in a thread."""
    for member in value.values() if isinstance(value, dict) else (value,):  # long texts are usually at the top level
        if isinstance(member, str) and len(member) > _LONG:
            is_large = True
    if is_large:
        return await in_thread(_dump_and_cut, value, max_bytes)
    encoded = dumps(value)
    if len(encoded) <= max_bytes and len(encoded) <= _LONG:
        return value, None, summarise_result(value, encoded)
    if len(encoded) <= _LONG:
        return _cut(value, encoded, max_bytes)
    return await in_thread(_cut, value, encoded, max_bytes)


def _dump_and_cut(value: JsonValue, max_bytes: int) -> CutAndSummary:
    return _cut(value, dumps(value), max_bytes)


def _cut(value: JsonValue, encoded: bytes, max_bytes: int) -> CutAndSummary:
    if len(encoded) <= max_bytes:
        return value, None, summarise_result(value, encoded)
    shortened = _shorten(value, len(encoded) - max_bytes + _MARKER_BYTES)
    if isinstance(shortened, dict) and shortened.get("truncated") is False:  # the tool's own word for a cut
        shortened["truncated"] = True
    text = dumps(shortened)
    if len(text) > max_bytes:
        shortened = f"[result of {len(encoded)} bytes left out: the limit is {max_bytes} bytes]"
        text = dumps(shortened)
    whole = hashlib.sha256(encoded).hexdigest()
    summary = f"result cut from {len(encoded)} to about {max_bytes} bytes"
    cut = Cut(Evidence(EvidenceType.METRIC, "result", summary, sha256=whole), encoded)
    return shortened, cut, summarise_result(shortened, text)


def _shorten(value: JsonValue, excess_bytes: int) -> JsonValue:
    """Return the value with its longest member shortened by `excess_bytes`, as far as that member allows."""
    if isinstance(value, str):
        return _shorten_text(value, excess_bytes)
    if isinstance(value, dict) and value:
        key = max(value, key=lambda name: _size(value[name])) if len(value) > 1 else next(iter(value))
        return {**value, key: _shorten(value[key], excess_bytes)}
    if isinstance(value, list | tuple):
        return _shorten_list(cast("list[JsonValue]", list(value)), excess_bytes)
    return value


def _size(value: JsonValue) -> int:
    """Return about how long its JSON is; a text is measured without writing it."""
    return len(value) if isinstance(value, str) else len(dumps(value))


def _shorten_text(text: str, excess_bytes: int) -> str:
    encoded = text.encode()
    kept = encoded[: max(0, len(encoded) - excess_bytes)].decode(errors="ignore")
    return f"{kept}… [cut: {len(text) - len(kept)} of {len(text)} characters left out]"


def _shorten_list(items: list[JsonValue], excess_bytes: int) -> JsonValue:
    total = len(items)
    while len(items) > _TOGETHER:
        together = len(dumps(items[-_TOGETHER:])) - 1
        if together > excess_bytes:
            break
        excess_bytes -= together
        del items[-_TOGETHER:]
    while len(items) > 1 and excess_bytes > 0:
        excess_bytes -= len(dumps(items.pop())) + 1
    if excess_bytes > 0 and items:
        items[0] = _shorten(items[0], excess_bytes)
    return [*items, f"[cut: {total - len(items)} of {total} items left out]"] if len(items) < total else items


# Results over their inline limit: the answer carries the cut value, and the whole is stored as an artifact beside it.
#
# Awaited only when something was cut. The artifact is optional: when storing it fails or takes too long, the answer is
# sent all the same, and its evidence says that the whole could not be stored and why.

# Longest wait for a store; the caller's own deadline may be nearer.
_KEEP_MAX_S = 20.0
# Errors of caps and quotas: expected, so operators need not see them.
_EXPECTED = frozenset({ErrorKind.FILE_TOO_LARGE, ErrorKind.BUDGET_EXCEEDED})


async def keep_whole(
    result: ToolResult, whole: bytes, call: Call, artifacts: Artifacts, observer: CallObserver
) -> ToolResult:
    """The cut result with the artifact of the whole, or with evidence of why there is none. Raises nothing but
    cancellation."""
    deadline_s = inf if call.deadline_s is None else call.deadline_s
    try:
        async with asyncio.timeout_at(min(deadline_s, asyncio.get_running_loop().time() + _KEEP_MAX_S)):
            return _with_artifact(result, await artifacts.keep_whole(call, whole))
    except ToolFailure as failure:
        if failure.error.kind not in _EXPECTED:
            observer.on_crash(call, failure)
        return _without(result, failure.error.kind)
    except TimeoutError as late:
        observer.on_crash(call, late)
        return _without(result, ErrorKind.TIMEOUT)
    except Exception as defect:  # noqa: BLE001 - an effect that was had is answered, also when its whole is not kept
        observer.on_crash(call, defect)
        return _without(result, ErrorKind.INTERNAL)


def _with_artifact(result: ToolResult, ref: ArtifactRef) -> ToolResult:
    *before, cut = result.evidence
    proof = cut._replace(summary=f"{cut.summary}; the whole is artifact {ref.artifact_id}")
    return result._replace(artifacts=(*result.artifacts, ref), evidence=(*before, proof))


def _without(result: ToolResult, why: ErrorKind) -> ToolResult:
    *_, cut = result.evidence
    notice = Evidence(
        EvidenceType.METRIC,
        "result",
        f"the whole result could not be kept as an artifact: {why.value}",
        created_at_unix_ms=cut.created_at_unix_ms,
    )
    return result._replace(evidence=(*result.evidence, notice))


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
                {redact_text(str(name), redactor): mended(str(value)) for name, value in proof.attributes.items()}
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
        evidence.append(_dated(cut.evidence, now_unix_ms))
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
        evidence=(_dated(evidence, now_unix_ms),),
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
        evidence=(_dated(_call_evidence(state, f"job {job.job_id} {stood}"), now_unix_ms),),
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


def _dated(item: Evidence, now_unix_ms: int) -> Evidence:
    """Return what `_replace` would, at a fifth of its cost: this runs for every call."""
    if item.created_at_unix_ms:
        return item
    return Evidence(item.type, item.ref, item.summary, now_unix_ms, item.sha256, item.attributes)
