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
from typing import Any, Final, TypedDict

import msgspec
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

from toolhub_service.adapters.mcp.kind import sse_advice
from toolhub_service.adapters.upstream import one_line, quote_answer, quote_foreign
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import (
    IDLE,
    NOTHING_HAPPENED,
    ErrorKind,
    ToolError,
    ToolFailure,
    Upstream,
    refuse,
)
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.excerpts import both_ends
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secrets import Redact

# The transports report a breakage between the hub and an MCP server as a JSON-RPC error with a mark that no server can
# know, so that servers cannot imitate one.

_MARK = secrets.token_hex(8)


class Breakage(Enum):
    """How a connection broke. The value is the sentence for people."""

    NOT_SENT = "The server could not be reached."
    LOST = "The connection broke before the answer came."
    TOO_LARGE = "The server sent a message larger than `max_message_bytes` of its source."
    TOO_MANY = "The server sent a message of more than 100,000 values."
    FLOODED = "The server sent far more framing than content."
    UNDECODABLE = "The server sent data that cannot be decoded."
    NOT_MCP = "The answer is not MCP."
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
            *(Breakage.LOST, Breakage.TOO_LARGE, Breakage.TOO_MANY, Breakage.FLOODED, Breakage.UNDECODABLE),
            *(Breakage.NOT_MCP, Breakage.STATUS, Breakage.HTTP_REFUSED),
        }
        return self in taken


class Facts(TypedDict, total=False):
    """What the transport knows about a breakage."""

    status: int
    """Of HTTP."""
    media: str
    """Content type of the answer, without parameters."""
    text: str
    """What the answer says, as far as it is for people. Untrusted, at most 8,000 characters."""
    limit_bytes: int


def error_of(breakage: Breakage, facts: Facts | None = None) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC error response."""
    data = {"mark": _MARK, "breakage": breakage.name, **(facts or {})}
    return {"code": CONNECTION_CLOSED, "message": breakage.value, "data": data}


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


def breakage_error(breakage: Breakage) -> MCPError:
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


# The server has answered, or another than the server is to blame: no reason to give it a rest.
_NO_OUTAGE: Final = frozenset({Breakage.TOO_LARGE, Breakage.TOO_MANY, Breakage.REFUSED, Breakage.NO_SESSION})


def connection_failure(call: GrantedCall, breakage: Breakage, facts: Facts, redact: Redact) -> ToolFailure:
    """The connection failed; the kind depends on what may have happened."""
    name, what = call.spec.name, breakage.value
    if "limit_bytes" in facts:
        what = f"{what} The limit is {facts['limit_bytes']:,} bytes; an operator can raise it."
    upstream, said = None, ""
    if status := facts.get("status"):
        upstream = Upstream(status, quote_foreign(facts.get("text", ""), redact))
        said = f" It answered HTTP {status}" + (f" ({facts['media']})" if breakage is Breakage.NOT_MCP else "")
        said += f": {upstream.excerpt}" if upstream.excerpt else "."
    blames = False if breakage in _NO_OUTAGE else None
    if not breakage.was_taken:
        message = f"{name} could not be called. {what} {_UNTAKEN_ADVICE[breakage]}{said}"
        can_retry = breakage in _PASSING
        return refuse(
            ErrorKind.TOOL_UNAVAILABLE, message, retryable=can_retry, upstream=upstream, blames_upstream=blames
        )
    if call.safe_to_repeat:
        can_retry = breakage is Breakage.LOST
        advice = "It is safe to call it again." if can_retry else "Request less, or use another tool."
        message = f"{name} gave no answer. {what} {advice}{said}"
        return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=can_retry, upstream=upstream, blames_upstream=blames)
    message = f"{name} may have had its effect; its outcome is unknown. {what} Check that before you call it again."
    return refuse(
        *(ErrorKind.OUTCOME_UNKNOWN, message + said),
        upstream=upstream,
        blames_upstream=blames,
        cause=breakage.name,
    )


def protocol_failure(call: GrantedCall, error: MCPError, redact: Redact) -> ToolFailure:
    """An error of the protocol: the server's own, or one that the SDK or the transports made from a broken
    connection."""
    code = error.error.code
    breakage = breakage_in(error)
    facts: Facts = error.error.data if breakage_of(error) else {}
    if breakage is Breakage.HTTP_REFUSED and "status" in facts:
        return _status_refusal(call, facts, redact)
    if breakage is not None:
        return connection_failure(call, breakage, facts, redact)
    if code == REQUEST_TIMEOUT:
        return deadline_failure(call)
    # A request of an unknown session has not run, so the same call may be sent again.
    if is_lost_session(error):
        message = f"{call.spec.name} could not be called: the server lost the hub's session. Try again."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message)
    if code == HEADER_MISMATCH:
        message = f"{call.spec.name} could not be called: its definition has changed and is being reloaded. Try again."
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message)
    excerpt = quote_foreign(error.error.message, redact)
    data = data_of(error)
    message = f"The server refused {call.spec.name}. {_ADVICE.get(code, _PLAIN_ADVICE)} The server says: {excerpt}"
    if data:
        message += f" Its data: {quote_foreign(_json(data['data']), redact, _DATA_SHOWN_CHARS)}"
    upstream = Upstream(status=code, excerpt=excerpt)
    return ToolFailure(ToolError(ErrorKind.UPSTREAM_ERROR, message, retryable=False, details=data, upstream=upstream))


_DATA_SHOWN_CHARS: Final = 500
_DATA_MAX_BYTES: Final = 4_096


def data_of(error: MCPError) -> JsonObject:
    """Return `{"data": …}` of a server's own error; empty without any. Of more than 4 KiB only a text with both
    ends."""
    data: JsonValue = error.error.data
    if data is None or data in ({}, [], ""):
        return {}
    text = _json(data)
    return {"data": data if len(text) <= _DATA_MAX_BYTES else both_ends(text, _DATA_MAX_BYTES)}


def _json(data: JsonValue) -> str:
    return data if isinstance(data, str) else msgspec.json.encode(data).decode("utf-8", "replace")


def _status_refusal(call: GrantedCall, facts: Facts, redact: Redact) -> ToolFailure:
    status, excerpt = facts["status"], quote_foreign(facts.get("text", ""), redact)
    message = f"The server refused {call.spec.name} with HTTP {status}. {_PLAIN_ADVICE} {quote_answer(excerpt)}"
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


def deadline_failure(call: GrantedCall) -> ToolFailure:
    message = f"{call.spec.name} did not answer before its deadline. Request less or allow more time."
    return refuse(ErrorKind.TIMEOUT, message, default_timeout_s=call.spec.limits.timeout_s)


def idle_timeout(call: GrantedCall, limit_s: float) -> ToolFailure:
    message = (
        f"{call.spec.name} neither answered nor reported progress for {limit_s:g} s. Request less, or have `{IDLE}` of "
        "its source raised."
    )
    return ToolFailure(ToolError(ErrorKind.TIMEOUT, message, details={IDLE: limit_s}))


def no_time_left(call: GrantedCall) -> ToolFailure:
    """Nothing was sent: connecting took the whole time."""
    message = f"{call.spec.name} was not called: its server was not connected before the deadline. Allow more time."
    details: JsonObject = {"default_timeout_s": call.spec.limits.timeout_s, NOTHING_HAPPENED: True}
    return ToolFailure(ToolError(ErrorKind.TIMEOUT, message, details=details))


def reported_failure(call: GrantedCall, text: str, redact: Redact, details: JsonObject | None = None) -> ToolFailure:
    """The tool ran and reports that it failed. `details`: what else its result holds."""
    excerpt = quote_foreign(text, redact)
    message = f"{call.spec.name} reported an error. Correct the call as it says, or use another tool. "
    message += quote_answer(excerpt)
    upstream = Upstream(status=0, excerpt=excerpt)
    return ToolFailure(
        ToolError(ErrorKind.UPSTREAM_ERROR, message, retryable=False, upstream=upstream, details=details or {})
    )


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
    # The next two are the SDK's own words, not the server's.
    if (error.code, error.error.message) == _NO_ANSWER_MEANT:
        return "It answered the handshake with HTTP 202, which is for messages that have no answer."
    if error.code == PARSE_ERROR and error.error.message.startswith("Failed to parse"):
        return "Its answer to the handshake is not MCP."
    said = quote_answer(one_line(error.error.message, _SAID_MAX_CHARS))
    return f"It refused the handshake (JSON-RPC error {error.code}). {said}"


_SAID_MAX_CHARS: Final = 300


def reason_of_answer(facts: Facts, url: str) -> str:
    """Return why a server cannot be used that answered the handshake with something else than MCP."""
    status, said = facts["status"], one_line(facts["text"], _SAID_MAX_CHARS)
    says = f" It says: {said}" if said else ""
    if 300 <= status < 400:
        reason = f"HTTP {status}: write the address that it redirects to as `url`, if that is the server's.{says}"
    elif status < 400:
        reason = f"It answered {facts['media'] or 'without a content type'}, not MCP: check `url`.{says}"
    elif status == 404:
        reason = f"HTTP 404: there is nothing at this path: check `url`.{says}"
    elif status == 405:
        reason = "HTTP 405: this path takes no POST, so that it is no endpoint of streamable HTTP: check `url`."
    else:
        reason = f"It refused the handshake with HTTP {status}.{says}"
    return f"{reason} {advice}" if (advice := sse_advice(url)) else reason
