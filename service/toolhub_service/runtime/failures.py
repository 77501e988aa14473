"""Redaction of errors and plans; which errors are refusals by policy; what is reported of a defect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from msgspec import structs

from toolhub_service.domain.errors.failure import IDLE, NOTHING_HAPPENED, ErrorKind, ToolError, Upstream, Violation
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Plan, StepVerdict
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.call_state import CallState
from toolhub_service.schema.canonical_json import NotJson, dumps

# Redaction of what a caller receives besides the value of its answer: errors, evidence, plans; plain UTF-8 without
# secrets.
#
# Tools and steps write these with care; this is the last place before they are sent, so that one careless text is
# neither a leak nor an answer that cannot be sent after its effect. Schemas (`Violation.expected`) are the operator's
# and stay unchanged: `{"password": {"type": "string"}}` is no secret.

SHOWN_AT_ONCE_BYTES: Final = 16 * 1024
"""Size of arguments whose secrets are hidden on the event loop: in megabytes this takes seconds."""


def redact_error(error: ToolError, redactor: Redactor) -> ToolError:
    """Return the error with every text redacted; its kind and terms stay unchanged."""
    upstream = error.upstream
    return structs.replace(
        error,
        message=redact_text(error.message, redactor),
        violations=tuple(_violation(violation, redactor) for violation in error.violations),
        details=_details(error.details, redactor),
        upstream=upstream and Upstream(upstream.status, redact_text(upstream.excerpt, redactor)),
    )


def redact_plan(plan: Plan, redactor: Redactor) -> Plan:
    """Return the plan as people see it: its texts redacted, while its digest seals the arguments as they were sent."""
    return structs.replace(
        plan,
        args=redactor.value(plan.args),
        steps=tuple(_step(step, redactor) for step in plan.steps),
        effects=tuple(redact_text(effect, redactor) for effect in plan.effects),
    )


def _violation(violation: Violation, redactor: Redactor) -> Violation:
    return structs.replace(
        violation,
        path=redact_text(violation.path, redactor),
        message=redact_text(violation.message, redactor),
        hint=redact_text(violation.hint, redactor),
    )


def _step(step: StepVerdict, redactor: Redactor) -> StepVerdict:
    error = None if step.error is None else redact_error(step.error, redactor)
    return structs.replace(
        step, reason=redact_text(step.reason, redactor), remedy=redact_text(step.remedy, redactor), error=error
    )


def _details(details: Mapping[str, JsonValue], redactor: Redactor) -> JsonObject:
    try:
        dumps(dict(details))
    except NotJson:
        return {"left_out": "the details were not JSON"}
    return cast(JsonObject, redactor.value(dict(details)))


def redact_text(text: str, redactor: Redactor) -> str:
    return redactor.text(mended(text))


def mended(text: str) -> str:
    """Replace lone surrogates by `?`: they occur in file names that are not UTF-8 and cannot be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


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


def cancelled() -> ToolError:
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
