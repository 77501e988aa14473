"""What an HTTP status in place of a JSON-RPC answer says about the call of a tool."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.fakes.mcp_harness import stage_of, started
from tests.unit.adapters.mcp.both_clients import CLIENT_KINDS, answered
from tests.unit.adapters.mcp.test_fast_client import failure_of
from tests.unit.adapters.mcp.transports.test_http import elicitation_callback, handshake, http
from toolhub_service.adapters.mcp.kind import HttpTerms
from toolhub_service.domain.errors.failure import ErrorKind


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [408, 499, 500, 502, 504, 520, 522, 524])
async def test_a_gateway_that_gave_up_leaves_the_outcome_unknown(status: int) -> None:
    for way in CLIENT_KINDS:
        async with answered(lambda _: http(b"error code", status=f"{status} Gone", kind="text/plain"), way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False), way
            assert f"It answered HTTP {status}: error code" in error.message


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [429, 503, 521, 523, 525, 526, 530])
async def test_a_server_that_was_not_reached_or_is_busy_has_run_nothing(status: int) -> None:
    for way in CLIENT_KINDS:
        async with answered(lambda _: http(b"error code", status=f"{status} Away", kind="text/plain"), way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.TOOL_UNAVAILABLE, True), way
            assert "It has not run." in error.message
            assert error.upstream is not None
            assert (error.upstream.status, error.upstream.excerpt) == (status, "error code")


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [400, 404, 405, 413, 422])
async def test_a_refusal_by_status_alone_is_no_broken_connection_and_its_text_is_kept(status: int) -> None:
    reply = http(b"missing required field owner", status=f"{status} No", kind="text/plain")
    for way in CLIENT_KINDS:
        async with answered(lambda _: reply, way) as harness:
            error = await failure_of(harness)
            assert (error.kind, error.is_retryable) == (ErrorKind.UPSTREAM_ERROR, False), way
            assert "missing required field owner" in error.message
            assert error.upstream is not None
            assert error.upstream.status == status


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (
            http(b"<html><head><title>Sign in</title></head><body>x</body>", kind="text/html; charset=utf-8"),
            "It answered HTTP 200 (text/html): Sign in",
        ),
        (http(b"", "location: /login?next=abc", status="302 Found"), "It redirects to /login"),
    ],
)
async def test_a_web_page_in_place_of_an_answer_is_not_taken_for_the_servers_word(reply: bytes, part: str) -> None:
    for way in CLIENT_KINDS:
        async with answered(lambda _: reply, way) as harness:
            error = await failure_of(harness)
            assert error.kind is ErrorKind.OUTCOME_UNKNOWN
            assert "The answer is not MCP." in error.message
            assert part in error.message
            assert "<html>" not in error.message


async def test_a_limit_is_named_with_its_setting_and_its_value() -> None:
    reply = http(b'"' + b"x" * 9_000_000 + b'"')
    for way in CLIENT_KINDS:
        async with answered(lambda _: reply, way) as harness:
            error = await failure_of(harness)
            assert "`max_message_bytes` of its source. The limit is 8,388,608 bytes" in error.message
            assert error.blames_upstream is False, "it has answered: the breaker stays closed"


async def test_the_data_of_a_servers_error_is_kept() -> None:
    def reply(message: Any) -> bytes:
        data = {"missing": ["owner"], "request": "r-7"}
        error = {"code": -32602, "message": "Invalid params", "data": data}
        return http(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), status="400 Bad Request")

    for way in CLIENT_KINDS:
        async with answered(reply, way) as harness:
            error = await failure_of(harness)
            assert error.kind is ErrorKind.UPSTREAM_ERROR
            assert error.details["data"] == {"missing": ["owner"], "request": "r-7"}
            assert error.message.endswith(
                'The server says: Invalid params Its data: {"missing":["owner"],"request":"r-7"}'
            )


@pytest.mark.parametrize("status", ["404 Not Found", "400 Bad Request"])
async def test_a_call_whose_session_was_forgotten_is_sent_once_more_on_a_new_one(status: str) -> None:
    calls: list[str] = []

    def answer(_verb: str, headers: dict[str, str], body: bytes) -> bytes:
        message = orjson.loads(body)
        if message.get("method") == "initialize":
            return handshake(body, lambda _: b"").replace(
                b"\r\n\r\n", b"\r\nmcp-session-id: %d\r\n\r\n" % len(calls), 1
            )
        if message.get("method") == "tools/call":
            calls.append(headers["mcp-session-id"])
            if len(calls) == 1:
                return http(b"Session not found", status=status, kind="text/plain")
            result = {"content": [{"type": "text", "text": "done"}]}
            return http(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return handshake(body, lambda _: b"")

    async with elicitation_callback(answer) as url, started(stage_of(HttpTerms(url))) as harness:
        assert (await harness.run("echo")).value == {"text": "done"}
    assert calls == ["0", "1"]


async def test_a_session_that_is_forgotten_twice_is_unavailable() -> None:
    calls: list[str] = []

    def answer(_verb: str, _headers: dict[str, str], body: bytes) -> bytes:
        message = orjson.loads(body)
        if message.get("method") == "initialize":
            return handshake(body, lambda _: b"").replace(b"\r\n\r\n", b"\r\nmcp-session-id: 1\r\n\r\n", 1)
        calls.append(message.get("method"))
        return handshake(body, lambda _: http(b"no session", status="404 No", kind="text/plain"))

    async with elicitation_callback(answer) as url, started(stage_of(HttpTerms(url))) as harness:
        error = await failure_of(harness)
        assert error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert "It has not run." in error.message
    assert calls.count("tools/call") == 2
