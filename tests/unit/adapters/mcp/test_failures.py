"""What a failure is called: by what may have happened over there."""

from __future__ import annotations

import pytest
from mcp import MCPError

from tests.fakes.mcp_harness import mcp_tool
from tests.ports.adapter_suite import granted
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.failures import Breakage, error_of
from toolhub_service.adapters.upstream import EXCERPT_MAX_CHARS
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.guards.secrets import Redactor

REDACT = Redactor().text


def call(*, read_only: bool = False) -> GrantedCall:
    made = granted(mcp_tool("t", read_only=read_only))
    return made._replace(has_side_effects=not read_only)


def failure_of(code: int, message: str = "", *, read_only: bool = False) -> ToolError:
    return failures.protocol_failure(call(read_only=read_only), MCPError(code, message), REDACT).error


def broken(breakage: Breakage, *, read_only: bool = False) -> ToolError:
    error = error_of(breakage)
    return failures.protocol_failure(call(read_only=read_only), MCPError(**error), REDACT).error


@pytest.mark.parametrize("breakage", [breakage for breakage in Breakage if not breakage.was_taken])
def test_an_unsent_call_has_certainly_not_run(breakage: Breakage) -> None:
    error = broken(breakage)
    assert error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert error.is_retryable is (breakage not in {Breakage.REFUSED, Breakage.UNAUTHORIZED})
    assert "has not run" in error.message


TAKEN = [Breakage.LOST, Breakage.TOO_LARGE, Breakage.TOO_MANY, Breakage.NOT_MCP, Breakage.UNDECODABLE]


@pytest.mark.parametrize("breakage", TAKEN)
def test_a_sent_and_unanswered_call_is_unknown_unless_a_repeat_is_safe(breakage: Breakage) -> None:
    unsafe, safe = broken(breakage), broken(breakage, read_only=True)
    assert (unsafe.kind, unsafe.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
    assert (safe.kind, safe.is_retryable) == (ErrorKind.UPSTREAM_ERROR, breakage is Breakage.LOST)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32000, "Connection closed"),
        (-32000, "SSE stream ended without a response"),
        (-32000, "SSE stream ended and reconnection attempts were exhausted"),
        (-32000, "SSE stream failed: Expected response with content type 'text/event-stream', got 'text/html'."),
        (-32600, "server answered a request with 202 Accepted"),
        (-32603, "Server returned an error response"),
        (-32700, "Failed to parse JSON response: …"),
    ],
)
def test_the_sdks_own_words_for_a_broken_connection_are_known(code: int, message: str) -> None:
    assert failure_of(code, message).kind is ErrorKind.OUTCOME_UNKNOWN


def test_a_stream_that_ended_is_one_call_and_a_closed_connection_is_all_of_them() -> None:
    assert not failures.is_closed(MCPError(-32000, "SSE stream ended without a response"))
    assert failures.is_closed(MCPError(-32000, "Connection closed"))


def test_a_server_may_use_the_same_codes_for_errors_of_its_own() -> None:
    assert failure_of(-32000, "quota exceeded").kind is ErrorKind.UPSTREAM_ERROR
    assert failure_of(-32603, "it broke").kind is ErrorKind.UPSTREAM_ERROR


@pytest.mark.promise("mcp.never-resent")
def test_a_server_cannot_pretend_that_a_call_was_not_sent() -> None:
    forged = MCPError(-32000, "x", {"mark": "guessed", "breakage": "NOT_SENT"})
    assert failures.protocol_failure(call(), forged, REDACT).error.kind is ErrorKind.UPSTREAM_ERROR


def test_no_answer_in_time_is_a_timeout() -> None:
    assert failure_of(-32001).kind is ErrorKind.TIMEOUT


def test_a_forgotten_session_and_a_stale_definition_have_not_run() -> None:
    for code, message in ((-32600, "Session terminated"), (-32020, "header mismatch")):
        error = failure_of(code, message)
        assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("code", "advice"), [(-32021, "`elicitation`"), (-32042, "open a web page"), (-32602, "Correct")]
)
def test_a_servers_refusal_states_the_remedy(code: int, advice: str) -> None:
    error = failure_of(code, "no")
    assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False)
    assert advice in error.message


def test_text_of_others_is_cut_cleaned_and_free_of_secrets() -> None:
    words = "api_key=sk-" + "a" * 40 + "\x1b[31m\u202e bad\n" + "x" * 100_000 + "\nValueError: no owner"
    error = failures.reported_failure(call(), words, REDACT).error
    assert error.upstream is not None
    assert len(error.upstream.excerpt) <= EXCERPT_MAX_CHARS
    assert "more characters]" in error.upstream.excerpt
    assert error.upstream.excerpt.endswith("\nValueError: no owner"), "the end of a traceback says what is wrong"
    assert "aaaa" not in error.message
    assert "\x1b" not in error.message
    assert "\u202e" not in error.message


def test_an_error_without_a_message_is_reported() -> None:
    assert "no reason" in failures.reported_failure(call(), " \n", REDACT).error.message
