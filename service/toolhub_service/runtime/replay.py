"""What is kept of the answer to a call with an idempotency key, and what the answer says when it is given again."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.domain.errors import ErrorKind, ToolError
from toolhub_service.domain.result import Evidence, EvidenceType, ToolResult
from toolhub_service.runtime.attach_evidence import attach_refusal
from toolhub_service.runtime.cut import cut_to
from toolhub_service.runtime.walk import Walk

MAX_KEPT_BYTES = 1024 * 1024
"""Of a value, canonical JSON; a longer one is kept cut, and `truncated`."""

CUT_OFF = frozenset({ErrorKind.CANCELLED, ErrorKind.INTERNAL})
"""Answers that say nothing about the effect."""


def kept(walk: Walk, answer: ToolResult | None, now_unix_ms: int) -> ToolResult:
    """What to store: the answer without the upstream's own, or OUTCOME_UNKNOWN when it does not tell the outcome."""
    cause = ErrorKind.CANCELLED if answer is None else answer.error.kind if answer.error else None
    if answer is None or cause in CUT_OFF:
        error = lost(walk.call.tool, walk.call.call_id, ErrorKind.CANCELLED.value if cause is None else cause.value)
        return attach_refusal(walk, error, now_unix_ms)
    if answer.ok and walk.spec is not None and walk.spec.limits.max_result_bytes > MAX_KEPT_BYTES:
        value, cut = cut_to(answer.value, MAX_KEPT_BYTES)
        if cut is not None:
            proof = cut.evidence._replace(created_at_unix_ms=now_unix_ms)
            return answer._replace(value=value, truncated=True, raw=None, evidence=(*answer.evidence, proof))
    return answer if answer.raw is None else answer._replace(raw=None)


def replayed(stored: ToolResult, call_id: str, now_unix_ms: int) -> ToolResult:
    """The stored answer: call_id, attempts and times of the call that ran, and last the evidence of this call.

    An error that invites another try is told as final, for the same call can but get the same answer.
    """
    proof = Evidence(
        type=EvidenceType.TOOL,
        ref=call_id,
        summary=f"answered with the stored result of call {stored.call_id}",
        created_at_unix_ms=now_unix_ms,
    )
    error = stored.error
    if error is not None and error.is_retryable:
        advice = "This is the stored answer to the idempotency_key: check the effect, and try again with a new key."
        error = replace(error, message=f"{error.message} {advice}", retryable=False, retry_after_s=None)
    return stored._replace(replayed=True, error=error, evidence=(*stored.evidence, proof))


def lost(tool: str, call_id: str, cause: str) -> ToolError:
    """Nobody saw the end of the call that held the key."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"An earlier call of {tool} with this idempotency_key was cut off and may have had its effect. "
        "Check that; if it had none, call again with a new key.",
        retryable=False,
        details={"cause": cause, "first_call_id": call_id},
    )
