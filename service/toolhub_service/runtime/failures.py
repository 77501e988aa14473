"""Which failures are refusals, which speak of the upstream, and what a crash is told as."""

from __future__ import annotations

from toolhub_service.domain.errors import NOTHING_HAPPENED, ErrorKind, ToolError
from toolhub_service.runtime.walk import Walk

POLICY_KINDS = frozenset(
    {
        ErrorKind.POLICY_DENIED,
        ErrorKind.PERMISSION_DENIED,
        ErrorKind.APPROVAL_REQUIRED,
        ErrorKind.APPROVAL_REJECTED,
        ErrorKind.PLAN_REQUIRED,
        ErrorKind.PATH_OUTSIDE_SANDBOX,
        ErrorKind.HTTP_DISALLOWED_HOST,
    }
)
"""Refusals by policy: audited as POLICY_DENIED when the call never ran."""


def crash(call_id: str) -> ToolError:
    """What a caller is told of a defect: never its text."""
    return ToolError(
        kind=ErrorKind.INTERNAL,
        message=f"The hub failed while it handled the call; the operator finds it in the log under call_id {call_id}.",
        details={"call_id": call_id},
    )


def cancelled() -> ToolError:
    return ToolError(kind=ErrorKind.CANCELLED, message="The caller cancelled the call.")


def outcome_unknown(tool: str, cause: ToolError) -> ToolError:
    """A side effect whose end nobody saw: it may have happened, so it must not be repeated blindly."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{tool} did not answer in time and may have had its effect. Check that before you call it again.",
        retryable=False,
        details={**cause.details, "cause": cause.kind.value},
    )


def of_a_crash(walk: Walk, error: ToolError) -> ToolError:
    """What a defect (INTERNAL) means for its caller: an adapter that was asked for an effect may have had it."""
    granted = walk.granted
    if granted is None or not walk.attempts or granted.safe_to_repeat or error.details.get(NOTHING_HAPPENED) is True:
        return error
    return broke_off(walk.call.tool, walk.call.call_id, error)


def broke_off(tool: str, call_id: str, cause: ToolError) -> ToolError:
    """A defect in the middle of a side effect."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{tool} broke off and may have had its effect. Check that before you call it again; the operator "
        f"finds the cause in the log under call_id {call_id}.",
        retryable=False,
        details={**cause.details, "call_id": call_id, "cause": cause.kind.value},
    )
