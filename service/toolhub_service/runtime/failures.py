"""Which errors are refusals by policy, and the errors of calls that ended by a defect, a stop or a cancellation."""

from __future__ import annotations

from msgspec import structs

from toolhub_service.domain.errors.failure import IDLE, NOTHING_HAPPENED, ErrorKind, ToolError
from toolhub_service.domain.json import JsonObject
from toolhub_service.runtime.call_state import CallState

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
    """The error that a caller receives for a defect: never its text."""
    return ToolError(
        kind=ErrorKind.INTERNAL,
        message="The hub failed while it handled the call. The operator finds the cause in the log under call_id "
        f"{call_id}.",
        details={"call_id": call_id},
    )


def cancelled_error() -> ToolError:
    return ToolError(kind=ErrorKind.CANCELLED, message="The caller cancelled the call.")


def hub_stopped(state: CallState) -> ToolError:
    """What a call learns that the hub's shutdown has cut off: whether it may have had its effect."""
    call, granted = state.call, state.granted
    details: JsonObject = {"call_id": call.call_id, "cause": "HUB_STOPPED"}
    if granted is not None and state.attempts and not granted.safe_to_repeat:
        message = (
            f"The hub was stopped while {call.tool} ran, which may have had its effect: check that before you call it "
            f"again. The audit log has the call under call_id {call.call_id}."
        )
        return ToolError(kind=ErrorKind.OUTCOME_UNKNOWN, message=message, details=details)
    message = f"The hub was stopped before {call.tool} had ended. It changed nothing: send the call again."
    return ToolError(kind=ErrorKind.TOOL_UNAVAILABLE, message=message, details=details)


def outcome_unknown(tool: str, cause: ToolError) -> ToolError:
    """A side effect whose end was not observed: it may have happened, so it must not be repeated blindly."""
    most_s, idle_s = cause.details.get("timeout_s"), cause.details.get(IDLE)
    in_time = "in time" if most_s is None else f"within the {most_s:g} s that `timeout_s` of its source allows"
    if idle_s is not None:
        in_time = f"or report progress within the {idle_s:g} s that `{IDLE}` of its source allows"
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{tool} did not answer {in_time} and may have had its effect. Check that before you call it again.",
        details={**cause.details, "cause": cause.kind.value},
    )


def sent_outcome_unknown(cause: ToolError) -> ToolError:
    """A request with an effect that was sent and not answered; the message says so, and what to check."""
    details = {**cause.details, "cause": cause.kind.value}
    return structs.replace(cause, kind=ErrorKind.OUTCOME_UNKNOWN, retryable=None, retry_after_s=None, details=details)


def of_a_crash(state: CallState, error: ToolError) -> ToolError:
    """What a defect (INTERNAL) means for its caller: an adapter that was called may have had its effect."""
    granted = state.granted
    if granted is None or not state.attempts or granted.safe_to_repeat or error.details.get(NOTHING_HAPPENED) is True:
        return error
    return broke_off(state.call.tool, state.call.call_id, error)


def broke_off(tool: str, call_id: str, cause: ToolError) -> ToolError:
    """A defect in the middle of a side effect."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"{tool} failed and may have had its effect. Check that before you call it again. The operator "
        f"finds the cause in the log under call_id {call_id}.",
        details={**cause.details, "call_id": call_id, "cause": cause.kind.value},
    )
