"""Failures of calls of workflows. The kind depends on what may have happened in n8n.

    nothing was sent, or n8n has no such webhook         TOOL_UNAVAILABLE: certainly not run
    n8n, or a proxy before it, is busy                   TOOL_UNAVAILABLE, retryable: not run
    it was sent and nobody can tell how it ended          OUTCOME_UNKNOWN, unless a repeat is safe: UPSTREAM_ERROR
    the workflow ran into an error, or says it failed    EXECUTION_ERROR
    anything else that is no result                      UPSTREAM_ERROR

A workflow's own text is quoted: truncated, redacted, without stack traces and paths of n8n's machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from toolhub_service.adapters.n8n.client import MESSAGE_MAX_CHARS, Reply, message_of, quote_foreign
from toolhub_service.adapters.n8n.execution import Execution, error_of
from toolhub_service.adapters.upstream import quote_answer, retry_after_s
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, Upstream, refuse
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secrets import Redact

NOT_REGISTERED: Final = re.compile(r'The requested webhook "[^"]*" is not registered\.')
_WRONG_METHOD: Final = re.compile(r"This webhook is not registered for ([A-Z]+) requests")
_CREDENTIAL: Final = re.compile(r"Authorization (data is wrong|is required|header)|No token provided|jwt |JsonWebToken")
_IN_WORKFLOW: Final = "Error in workflow"


def no_webhook(call: GrantedCall, why: str) -> ToolFailure:
    """The webhook's address is unknown, and n8n does not report it. `why`: a sentence."""
    message = f"{call.spec.name} could not be called: its webhook is not known. {why} It has not run. Try again later."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, reason="WEBHOOK_UNKNOWN")


def not_sent(call: GrantedCall, reason: str) -> ToolFailure:
    """Nothing has reached n8n. `reason`: a sentence."""
    message = f"{call.spec.name} could not be called: n8n could not be reached. {reason} It has not run. "
    return refuse(ErrorKind.TOOL_UNAVAILABLE, f"{message}Try again later, or use another tool.")


def unknown(call: GrantedCall, happened: str, looked: str, details: Mapping[str, JsonValue]) -> ToolFailure:
    """The request was sent and may have run. `happened`, `looked`: sentences; `details`: what is known of its
    execution."""
    message = f"{call.spec.name} was sent to n8n and may still be running. {happened} {looked}"
    if call.safe_to_repeat:
        return _with(ErrorKind.UPSTREAM_ERROR, f"{message} It is safe to call it again.", details)
    advice = "Check whether it had its effect before you call it again."
    return _with(ErrorKind.OUTCOME_UNKNOWN, f"{message} {advice}", details)


def is_unknown(answer: Reply) -> bool:
    """Return whether a proxy before n8n, or n8n itself, gave up on the request, which may have run."""
    return processing_of(answer.status) is Processing.UNKNOWN


def gave_up(answer: Reply) -> str:
    """Return the sentence about an answer that leaves open whether the workflow runs."""
    return f"A proxy before n8n answered with status {answer.status}."


# A webhook answers only `Error in workflow` when the workflow fails: neither the cause nor the execution.
def is_in_workflow(answer: Reply) -> bool:
    """Return whether n8n reports that the workflow failed, without the reason."""
    return answer.status == 500 and message_of(answer.body)[0] == _IN_WORKFLOW


def is_not_registered(answer: Reply) -> bool:
    """Return whether n8n has no such webhook, so that nothing has run."""
    return answer.status == 404 and NOT_REGISTERED.match(message_of(answer.body)[0]) is not None


def is_credential_refused(answer: Reply) -> bool:
    """Return whether n8n rejects the credentials before it has run anything."""
    return answer.status in (401, 403) and _CREDENTIAL.search(message_of(answer.body)[0][:200]) is not None


def answer_failure(call: GrantedCall, answer: Reply, redact: Redact) -> ToolFailure:
    """An answer that is no success, interpreted without a look-up."""
    words, value = message_of(answer.body)
    status, excerpt = answer.status, quote_foreign(words, redact)
    # The 404 is the same for an unknown path and an inactive workflow; 403 comes as plain text.
    if status == 404 and (NOT_REGISTERED.match(words) or _WRONG_METHOD.match(words)):
        return _no_such_webhook(call, words)
    if is_credential_refused(answer):
        message = f"{call.spec.name} could not be called: n8n does not accept the hub's credentials. "
        message += "It has not run. Use another tool; an operator must correct `headers` of the source."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason="WEBHOOK_AUTH", setting="headers")
    processing = processing_of(status)
    if processing is Processing.NOT_REACHED:
        return not_sent(call, gave_up(answer))
    if processing is Processing.REFUSED and _is_before_the_workflow(answer, value):
        message = f"{call.spec.name} could not be called: n8n is busy. It has not run. Try again later."
        wait_s = retry_after_s(answer.headers.get("retry-after")) or None
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retry_after_s=wait_s)
    if status >= 500:
        message = f"{call.spec.name} failed in n8n. Correct the call as it says, or use another tool. "
        return refuse(ErrorKind.EXECUTION_ERROR, message + quote_answer(excerpt), upstream=Upstream(status, excerpt))
    advice = _ADVICE.get(status, "Correct the call as it says, or use another tool.")
    if 300 <= status < 400:
        advice = "The hub follows no redirect of a workflow, which has run. Use another tool, or tell an operator."
    message = f"n8n answered the call of {call.spec.name} with status {status}. {advice} {quote_answer(excerpt)}"
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False, upstream=Upstream(status, excerpt))


_ADVICE: Final[Mapping[int, str]] = {
    413: "The arguments are too large for it: send less.",
    422: "It could not read the request, or rejects it: correct the arguments, or tell an operator.",
}


def execution_failure(
    call: GrantedCall, execution: Execution, redact: Redact, details: Mapping[str, JsonValue], *, status: int = 0
) -> ToolFailure:
    """The workflow failed, and its execution says why. `status`: of its webhook's answer, if there was one."""
    message, node = error_of(execution)
    excerpt = quote_foreign(message, redact, MESSAGE_MAX_CHARS)
    where = f" in its node `{quote_foreign(node, redact, 80)}`" if node else ""
    says = quote_answer(excerpt) if excerpt else "n8n reports no cause."
    ended = "crashed" if execution.status == "crashed" else "failed"
    text = f"{call.spec.name} {ended} in n8n{where}. What it did before that is not undone. {says}"
    return _with(ErrorKind.EXECUTION_ERROR, text, details, upstream=Upstream(status, excerpt))


def check_end(
    call: GrantedCall, execution: Execution, redact: Redact, details: Mapping[str, JsonValue], *, status: int = 0
) -> None:
    """Raises ToolFailure when the execution has failed or was stopped."""
    if execution.has_failed:
        raise execution_failure(call, execution, redact, details, status=status)
    if execution.was_cancelled:
        text = f"{call.spec.name} was stopped in n8n. What it did before that is not undone."
        raise _with(ErrorKind.CANCELLED, text, details)


def in_workflow(call: GrantedCall, looked: str) -> ToolFailure:
    """The workflow failed, and nothing more is known. `looked`: a sentence."""
    message = f"{call.spec.name} failed in n8n. What it did before that is not undone. n8n reports no cause. {looked}"
    return refuse(ErrorKind.EXECUTION_ERROR, message.strip(), upstream=Upstream(500, _IN_WORKFLOW))


def result_is_failure(call: GrantedCall, words: str, redact: Redact, details: Mapping[str, JsonValue]) -> ToolFailure:
    """The result means failure, by the operator's `fails_when`."""
    excerpt = quote_foreign(words, redact, MESSAGE_MAX_CHARS)
    text = f"{call.spec.name} ran and reports a failure. Correct the call as it says, or use another tool. "
    return _with(ErrorKind.EXECUTION_ERROR, text + quote_answer(excerpt), details, upstream=Upstream(200, excerpt))


def empty_answer(call: GrantedCall, looked: str, details: Mapping[str, JsonValue]) -> ToolFailure:
    """A success without a body, which n8n also sends when a workflow fails before its Respond node."""
    text = f"{call.spec.name} answered nothing, which n8n also does when a workflow fails before it responds. {looked} "
    return _with(ErrorKind.UPSTREAM_ERROR, f"{text}Check whether it had its effect.", details, retryable=False)


def unreadable(call: GrantedCall, why: str) -> ToolFailure:
    """The workflow ran, and its answer cannot be used. `why`: a clause."""
    message = f"{call.spec.name} ran, and its answer cannot be read: {why}. Use another tool, or tell an operator."
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False)


def too_large(call: GrantedCall, max_bytes: int, details: Mapping[str, str]) -> ToolFailure:
    text = f"{call.spec.name} ran, and its answer has more than {max_bytes:,} bytes. Its effect is done. Request less."
    return _with(ErrorKind.HTTP_TOO_LARGE, text, {**details, "max_bytes": max_bytes})


def needs_flat_arguments(call: GrantedCall, names: list[str]) -> ToolFailure:
    message = f"{call.spec.name} takes its arguments as a query: send strings, numbers and booleans only. "
    return refuse(ErrorKind.INVALID_INPUT, f"{message}Nested: {', '.join(names[:10])}.", field=names[0])


def reserved_field(call: GrantedCall, field: str) -> ToolFailure:
    message = f"Leave out `{field}`: the hub puts the idempotency key of {call.spec.name} there."
    return refuse(ErrorKind.INVALID_INPUT, message, field=field)


def _no_such_webhook(call: GrantedCall, words: str) -> ToolFailure:
    wrong = _WRONG_METHOD.match(words)
    if wrong:
        what = f"its webhook does not accept {wrong.group(1)}. An operator must correct `method` of the workflow."
        reason, setting = "WEBHOOK_METHOD", "method"
    else:
        what = "n8n has no such webhook. An operator must activate the workflow in n8n, or correct `webhook`."
        reason, setting = "WEBHOOK_UNKNOWN", "webhook"
    message = f"{call.spec.name} could not be called: {what} It has not run. Use another tool."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason=reason, setting=setting)


def _is_before_the_workflow(answer: Reply, value: JsonValue) -> bool:
    """Return whether n8n itself or a proxy answered; a workflow's own answer may mean anything."""
    if isinstance(value, Mapping):
        # n8n's own errors have these shapes; a workflow that answers 503 itself has run.
        return value.get("code") == answer.status or value.keys() == {"message"}
    return value is None


def _with(
    kind: ErrorKind,
    message: str,
    details: Mapping[str, JsonValue],
    *,
    retryable: bool | None = None,
    upstream: Upstream | None = None,
) -> ToolFailure:
    return ToolFailure(ToolError(kind, message, retryable=retryable, details=dict(details), upstream=upstream))


def as_text(value: JsonValue) -> str:
    """Return a workflow's message as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
