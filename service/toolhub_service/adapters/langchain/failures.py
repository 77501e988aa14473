"""Failures of LangChain tools and their workers, as the hub reports them.

`ToolException` is LangChain's way to explain an error to a model, so its text is passed on, truncated and redacted, as
is the text of a result whose status or wording is an error. Of any other exception only the type and the text, redacted
and without paths, are passed on; the traceback goes only to the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolhub_service.adapters.upstream import not_loaded, tool_failed, without_paths
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.guards.secrets import Redact

EXCERPT_CHARS: Final = 2000


class WorkerTrace(Exception):
    """The traceback of an exception in a worker, as text, for the log."""


def reported_failure(tool: str, text: str, redact: Redact) -> ToolFailure:
    """The tool itself reports that it failed."""
    said = excerpt(redact(text), EXCERPT_CHARS).strip() or "it does not say why"
    return refuse(
        ErrorKind.EXECUTION_ERROR,
        f"{tool} failed and says: {said}\nChange the arguments, or use another tool.",
    )


def tool_raised(call: GrantedCall, kind: str, text: str, redact: Redact) -> ToolFailure:
    """The tool raised an exception after it had begun; its effects up to then remain."""
    said = excerpt(without_paths(redact(text)), EXCERPT_CHARS).strip().rstrip(".")
    partly = "" if call.safe_to_repeat else " It may have had a part of its effect: check that first."
    message = f"{call.spec.name} failed with {kind}{f': {said}' if said else ''}.{partly}"
    advice = "Change the arguments, or use another tool. Operators find the error in the log."
    return refuse(ErrorKind.EXECUTION_ERROR, f"{message}\n{advice}", exception=kind)


def refusal_of(call: GrantedCall, reply: Mapping[str, Any], redact: Redact, max_bytes: int) -> ToolFailure:
    """Return the failure for a reply with `failed`."""
    tool = call.spec.name
    match reply["failed"]:
        case "tool":
            return reported_failure(tool, str(reply.get("message", "")), redact)
        case "exception":
            return tool_raised(call, str(reply.get("type", "")), str(reply.get("message", "")), redact)
        case "input":
            return _invalid(tool, reply.get("violations", ()), redact)
        case "too_large":
            message = f"{tool} returned more than {max_bytes} bytes: request less."
            return refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=max_bytes)
        case "no_result":
            return refuse(ErrorKind.EXECUTION_ERROR, f"{tool} cannot be used here: {reply.get('message', '')}.")
        case "absent":
            return not_loaded(tool)
    return tool_failed(tool)


def no_worker(tool: str) -> ToolFailure:
    message = (
        f"No process could be started for {tool}. Try later, or use another tool. Operators find the error in the log."
    )
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def worker_death(call: GrantedCall) -> ToolFailure:
    """The worker ended before it answered."""
    tool = call.spec.name
    if call.safe_to_repeat:
        message = f"The process of {tool} ended before it answered. Try other arguments or another tool."
        return refuse(ErrorKind.EXECUTION_ERROR, message)
    message = (
        f"The process of {tool} ended before it answered, and the call may have had its effect. Check that before "
        "you call it again."
    )
    return refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause=ErrorKind.EXECUTION_ERROR.value)


def _invalid(tool: str, reported: Any, redact: Redact) -> ToolFailure:
    violations = tuple(Violation(path=path, keyword=kind, message=redact(text)) for path, kind, text in reported)
    first = f" {violations[0].message} (`{violations[0].path or '/'}`)." if violations else ""
    message = f"{tool} rejected its arguments.{first} Correct them and call again."
    return refuse(ErrorKind.INVALID_INPUT, message, violations=violations)
