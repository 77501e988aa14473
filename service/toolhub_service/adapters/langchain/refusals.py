"""From a reply that is no result to the refusal that a model can act upon.

`ToolException` is LangChain's way of telling a model what went wrong, so its text is told, as is that of a result whose
status or wording is an error: cut and redacted. Of any other exception nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.guards.redaction import Redact

EXCERPT_CHARS: Final = 2000


class WorkerTrace(Exception):
    """The traceback of an exception in a worker, as text, for the log."""


def said_so(tool: str, text: str, redact: Redact) -> ToolFailure:
    """The tool itself says that it failed."""
    excerpt = redact(text[: 2 * EXCERPT_CHARS])[:EXCERPT_CHARS].strip() or "it does not say why"
    return refuse(
        ErrorKind.EXECUTION_ERROR,
        f"{tool} failed and says: {excerpt}\nChange the arguments, or use another tool.",
    )


def refusal_of(call: GrantedCall, reply: Mapping[str, Any], redact: Redact, max_bytes: int) -> ToolFailure:
    """What a reply with `failed` means."""
    tool = call.spec.name
    match reply["failed"]:
        case "tool":
            return said_so(tool, str(reply.get("message", "")), redact)
        case "input":
            return _invalid(tool, reply.get("violations", ()), redact)
        case "too_large":
            message = f"{tool} answered with more than {max_bytes} bytes: ask it for less."
            return refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=max_bytes)
        case "no_result":
            return refuse(ErrorKind.EXECUTION_ERROR, f"{tool} cannot be used here: {reply.get('message', '')}.")
        case "absent":
            return absent(tool)
    return unforeseen(tool)


def unforeseen(tool: str) -> ToolFailure:
    message = (
        f"{tool} failed in a way it did not foresee. Try other arguments or another tool; operators find it logged."
    )
    return refuse(ErrorKind.INTERNAL, message)


def absent(tool: str) -> ToolFailure:
    message = f"{tool} is listed but not loaded here. Use another tool, or ask an operator."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def no_worker(tool: str) -> ToolFailure:
    message = f"No process could be started for {tool}. Try later or use another tool; operators find it logged."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def died(call: GrantedCall) -> ToolFailure:
    """The worker was gone before it answered."""
    tool = call.spec.name
    if call.safe_to_repeat:
        message = f"{tool} ended its own process before it answered. Try other arguments or another tool."
        return refuse(ErrorKind.EXECUTION_ERROR, message)
    message = (
        f"{tool} ended its own process before it answered and may have had its effect. "
        "Check that before you call it again."
    )
    return refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause=ErrorKind.EXECUTION_ERROR.value)


def _invalid(tool: str, told: Any, redact: Redact) -> ToolFailure:
    violations = tuple(Violation(path=path, keyword=kind, message=redact(text)) for path, kind, text in told)
    first = f" {violations[0].message} (`{violations[0].path or '/'}`)." if violations else ""
    message = f"{tool} cannot use its arguments.{first} Correct them and call again."
    return refuse(ErrorKind.INVALID_INPUT, message, violations=violations)
