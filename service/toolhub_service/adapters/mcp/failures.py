"""Failures of calls of MCP tools. The kind depends on what may have happened on the server.

    it was not sent, or the server refused it unread     TOOL_UNAVAILABLE: certainly not run
    it was sent and the answer will never come           OUTCOME_UNKNOWN, unless a repeat is safe: UPSTREAM_ERROR
    no answer in time                                    TIMEOUT (the runtime makes it OUTCOME_UNKNOWN where it must)
    the server or the tool answered with an error        UPSTREAM_ERROR

A tool's own text is truncated, redacted and marked as such: it is for the model, and untrusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
)
from pydantic import ValidationError

from toolhub_service.adapters.upstream import CHECKED_CHARS, quoted, quoted_answer
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import NOTHING_HAPPENED, ErrorKind, ToolError, ToolFailure, Upstream, refuse
from toolhub_service.domain.http_status import Processing, processing_of
from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.secrets import Redact

# The transports report a breakage between the hub and an MCP server as a JSON-RPC error with a mark that no server can
# know, so that servers cannot imitate one.

_MARK = secrets.token_hex(8)


class Breakage(Enum):
    """How a connection broke. The value is the sentence for people."""

    NOT_SENT = "The server could not be reached."
    LOST = "The connection broke before the answer came."
    TOO_LARGE = "The server sent a message larger than the source's limit."
    FLOODED = "The server sent far more framing than content."
    UNDECODABLE = "The server sent data that cannot be decoded."
    REFUSED = "The request would go to an origin that the source does not allow."
    UNAUTHORIZED = "The server or its authorization server refused the hub's credentials."
    NO_SESSION = "The server no longer knows the session."
    BUSY = "The server is overloaded (HTTP 429 or 503)."
    STATUS = "The server, or a gateway before it, gave up with an HTTP error (408, 499 or 5xx)."
    HTTP_REFUSED = "The server refused the request with an HTTP error (4xx)."

    @property
    def was_taken(self) -> bool:
        """Return whether the server may have begun to process the request."""
        taken = {
            *(Breakage.LOST, Breakage.TOO_LARGE, Breakage.FLOODED, Breakage.UNDECODABLE),
            *(Breakage.STATUS, Breakage.HTTP_REFUSED),
        }
        return self in taken


def error_of(breakage: Breakage) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC error response."""
    return {"code": CONNECTION_CLOSED, "message": breakage.value, "data": {"mark": _MARK, "breakage": breakage.name}}


def http_refused(status: int, body: bytes) -> dict[str, Any]:
    """Return the `error` member for a request that the server refused by an HTTP status alone, with its own text."""
    error = error_of(Breakage.HTTP_REFUSED)
    text = body[:CHECKED_CHARS].decode("utf-8", "replace")
    return {**error, "data": {**error["data"], "status": status, "text": text}}


def breakage_of_status(status: int) -> Breakage | None:
    """Return what a status says in place of an answer of the protocol; None: the server's own refusal, or none."""
    if status in {401, 403}:
        return Breakage.UNAUTHORIZED
    processing = processing_of(status)
    if processing is Processing.REFUSED:
        return Breakage.BUSY
    if processing is Processing.NOT_REACHED:
        return Breakage.NOT_SENT
    return Breakage.STATUS if processing is Processing.UNKNOWN or status >= 500 else None


def broken_error(breakage: Breakage) -> MCPError:
    """Return the same as the exception that the SDK raises for a server's error."""
    return MCPError(**error_of(breakage))


def breakage_of(error: MCPError) -> Breakage | None:
    """Return what broke; None when the error is the server's own answer, or the SDK's.

    -32000 without a breakage is a connection that closed during the request, which the server may have taken.
    """
    data = error.error.data
    if not isinstance(data, dict) or data.get("mark") != _MARK:
        return None
    return Breakage[data["breakage"]]


_UNTAKEN_ADVICE: Final[Mapping[Breakage, str]] = {
    Breakage.NOT_SENT: "It has not run. Try again later, or use another tool.",
    Breakage.REFUSED: "It has not run. Use another tool; an operator must correct the source.",
    Breakage.UNAUTHORIZED: "It has not run. Use another tool; an operator must correct the source's credentials.",
    Breakage.NO_SESSION: "It has not run. Try again.",
    Breakage.BUSY: "It has not run. Try again later, or use another tool.",
}
# Failures that the same call may not meet again.
_PASSING: Final = frozenset({Breakage.NOT_SENT, Breakage.NO_SESSION, Breakage.BUSY})


def broken(call: GrantedCall, breakage: Breakage) -> ToolFailure:
    """The connection failed; the kind depends on what may have happened."""
    name, what = call.spec.name, breakage.value
    if not breakage.was_taken:
        message = f"{name} could not be called. {what} {_UNTAKEN_ADVICE[breakage]}"
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=breakage in _PASSING)
    if call.safe_to_repeat:
        can_retry = breakage is Breakage.LOST
        advice = "It is safe to call it again." if can_retry else "Request less, or use another tool."
        return refuse(ErrorKind.UPSTREAM_ERROR, f"{name} gave no answer. {what} {advice}", retryable=can_retry)
    message = f"{name} may have had its effect; its outcome is unknown. {what} Check that before you call it again."
    return refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause=breakage.name)


def answered(call: GrantedCall, error: MCPError, redact: Redact) -> ToolFailure:
    """An error of the protocol: the server's own, or one that the SDK or the transports made from a broken
    connection."""
    code = error.error.code
    breakage = breakage_in(error)
    if breakage is Breakage.HTTP_REFUSED and "status" in error.error.data:
        return _refused_by_status(call, error.error.data, redact)
    if breakage is not None:
        return broken(call, breakage)
    if code == REQUEST_TIMEOUT:
        return timed_out(call)
    # A request of an unknown session has not run, so the same call may be sent again.
    if is_lost_session(error):
        message = f"{call.spec.name} could not be called: the server lost the hub's session. Try again."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message)
    if code == HEADER_MISMATCH:
        message = f"{call.spec.name} could not be called: its definition has changed and is being reloaded. Try again."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message)
    excerpt = quoted(error.error.message, redact)
    return refuse(
        ErrorKind.UPSTREAM_ERROR,
        f"The server refused {call.spec.name}. {_ADVICE.get(code, _PLAIN_ADVICE)} The server says: {excerpt}",
        retryable=False,
        upstream=Upstream(status=code, excerpt=excerpt),
    )


def _refused_by_status(call: GrantedCall, data: Mapping[str, Any], redact: Redact) -> ToolFailure:
    status, excerpt = int(data["status"]), quoted(data["text"], redact)
    message = f"The server refused {call.spec.name} with HTTP {status}. {_PLAIN_ADVICE} {quoted_answer(excerpt)}"
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False, upstream=Upstream(status, excerpt))


_PLAIN_ADVICE: Final = "Correct the call, or use another tool."
_ADVICE: Final[Mapping[int, str]] = {
    MISSING_REQUIRED_CLIENT_CAPABILITY: "It needs a client feature that this hub does not offer for this source, "
    "such as asking a person. An operator can allow questions with "
    "`elicitation`.",
    URL_ELICITATION_REQUIRED: "A person must open a web page of that service first, which this hub does not support.",
}


def breakage_in(error: MCPError) -> Breakage | None:
    """Return what broke on the way; None when this is the server's own answer.

    The SDK reports some breakages only in the message. A server that imitates such a message only makes the outcome of
    its own call unclear.
    """
    known = breakage_of(error)
    if known is not None:
        return known
    code, message = error.error.code, error.error.message
    # `startswith(())` is false: most codes have no such messages.
    if message.startswith(_LOST.get(code, ())):
        return Breakage.LOST
    return Breakage.UNDECODABLE if code == PARSE_ERROR or (code, message) == _NO_ANSWER_MEANT else None


_CLOSED: Final = "Connection closed"
# How the SDK's own messages begin; the last are for an HTTP status without a JSON-RPC error, such as a gateway's 504.
_LOST: Final[Mapping[int, tuple[str, ...]]] = {
    CONNECTION_CLOSED: (
        _CLOSED,
        "SSE stream ended without a response",
        "SSE stream ended and reconnection attempts were exhausted",
        "SSE stream failed: ",
    ),
    INTERNAL_ERROR: ("Server returned an error response",),
}
_NO_ANSWER_MEANT: Final = (INVALID_REQUEST, "server answered a request with 202 Accepted")


def is_closed(error: MCPError) -> bool:
    """Return whether the connection as a whole is unusable."""
    return (
        breakage_of(error) is None
        and error.error.code == CONNECTION_CLOSED
        and error.error.message == _CLOSED  # a stream that ended concerns one call only
    )


def is_lost_session(error: MCPError) -> bool:
    """Return whether a server of 2025-11-25 does not know the session: it refused the request unread."""
    # There is no error code for it; the length is bounded, as the message may be megabytes.
    return error.error.code == INVALID_REQUEST and "session" in error.error.message[:200].lower()


def timed_out(call: GrantedCall) -> ToolFailure:
    message = f"{call.spec.name} did not answer before its deadline. Request less or allow more time."
    return refuse(ErrorKind.TIMEOUT, message, default_timeout_s=call.spec.limits.timeout_s)


def no_time_left(call: GrantedCall) -> ToolFailure:
    """Nothing was sent: connecting took the whole time."""
    message = f"{call.spec.name} was not called: its server was not connected before the deadline. Allow more time."
    details: JsonObject = {"default_timeout_s": call.spec.limits.timeout_s, NOTHING_HAPPENED: True}
    return ToolFailure(ToolError(ErrorKind.TIMEOUT, message, details=details))


def reported_failure(call: GrantedCall, text: str, redact: Redact) -> ToolFailure:
    """The tool ran and reports that it failed."""
    excerpt = quoted(text, redact)
    message = f"{call.spec.name} reported an error. Correct the call as it says, or use another tool. "
    message += quoted_answer(excerpt)
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False, upstream=Upstream(status=0, excerpt=excerpt))


def outside_protocol(call: GrantedCall, what: str) -> ToolFailure:
    """The answer is valid in no version of the protocol. `what`: a clause in the hub's words."""
    message = f"{call.spec.name} ran, but the response of its server is invalid: {what}. "
    return refuse(ErrorKind.UPSTREAM_ERROR, f"{message}Use another tool, or tell an operator.", retryable=False)


def cannot_be_asked(call: GrantedCall, what: str) -> ToolFailure:
    """The tool needs input that nobody here can give. `what`: a clause in the hub's words."""
    message = f"{call.spec.name} did not finish: {what}. Use another tool, or call it so that it does not need to ask."
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False)


class CredentialsRefused(ToolFailure):
    """The server does not let the hub read its list with the present credentials, or without any."""


class NotConnected(Exception):
    """A connection could not be made; `reason` may be shown to models."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """Return the reason of an exception from the SDK's client; for a group, that of its first leaf."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NotConnected):
        return error.reason
    if isinstance(error, MCPError):
        return _of_protocol(error)
    if isinstance(error, ValidationError):
        return "Its answer to the handshake is not MCP."
    if isinstance(error, RuntimeError):
        return "It supports no protocol version that the hub supports."
    return "The connection broke."


def _of_protocol(error: MCPError) -> str:
    if (breakage := breakage_of(error)) is not None:
        return breakage.value
    if error.code == CONNECTION_CLOSED:
        return "It closed the connection during the handshake."
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        return "It supports no protocol version that the hub supports."
    return f"It refused the handshake (JSON-RPC error {error.code})."
