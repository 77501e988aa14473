"""What a caller learns when a request that may have an effect is sent and not answered, or not sent at all: through a
whole hub, against servers and gateways that break off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import (
    Answer,
    RawServer,
    RecordedRequest,
    always,
    by_target,
    response,
    serving,
    silent_after,
)
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2
from toolhub_service.domain.event import EventType

EGRESS = (
    "egress: [{hosts: [127.0.0.1, nowhere.invalid], cidrs: [127.0.0.0/8], "
    "methods: [GET, HEAD, POST, PUT, PATCH, DELETE]%s}]\n"
)
REQUEST, TEXT, JSON, HEAD = "core/http.request", "core/http.fetchText", "core/http.fetchJson", "core/http.head"
GAVE_UP = [408, 499, 502, 504, 520, 522, 524]
NOT_REACHED = [521, 523, 525, 526, 530]
UNKNOWN = error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
OK = response(b"{}", content_type="application/json")


@asynccontextmanager
async def web_hub(home: Path, answer: Answer) -> AsyncIterator[tuple[RunningHub, RawServer]]:
    async with serving(answer) as server, running_hub(home, policy=policy_for(server)) as hub:
        yield hub, server


def policy_for(*servers: RawServer, more: str = "") -> str:
    ports = ", ".join(str(server.port) for server in servers)
    return OPEN_POLICY + EGRESS % f", ports: [{ports}, 9]{more}"


async def error_of(hub: RunningHub, tool: str, args: Mapping[str, Any], **fields: Any) -> error_pb2.ToolError:
    result = await hub.invoke(tool, args, **fields)
    assert not result.ok
    return result.error


def is_unknown(error: error_pb2.ToolError, cause: str) -> bool:
    assert (error.kind, error.retryable, error.details["cause"]) == (UNKNOWN, False, cause), error
    assert error.message.endswith("It may have had its effect: check that before you send it again.")
    return error.details["was_sent"] is True


@pytest.mark.promise("retry.unknown-outcome", "effects.sent-or-not")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_request_whose_connection_breaks_after_it_was_sent_has_an_unknown_outcome(
    tmp_path: Path, method: str
) -> None:
    async with web_hub(tmp_path, always(b"", keep=False)) as (hub, server):
        assert is_unknown(await error_of(hub, REQUEST, {"url": server.url(), "method": method}), "NETWORK_ERROR")
        assert [asked.method for asked in server.asked] == [method]


@pytest.mark.promise("effects.sent-or-not")
@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "NETWORK_ERROR"),
        (b"HTTP/1.1 200 OK\r\nX-Cu", "NETWORK_ERROR"),
        (b"SMTP ready\r\n\r\n", "UPSTREAM_ERROR"),
        (response(b"\x1f\x8bno gzip", content_encoding="gzip"), "UPSTREAM_ERROR"),
        (response(b"x", content_encoding="br"), "UPSTREAM_ERROR"),
    ],
    ids=["half a body", "half a head", "no HTTP", "damaged gzip", "an encoding that was not asked for"],
)
async def test_an_answer_that_cannot_be_read_leaves_the_outcome_of_a_post_unknown(
    tmp_path: Path, raw: bytes, cause: str
) -> None:
    async with web_hub(tmp_path, always(raw, keep=False)) as (hub, server):
        for tool in (REQUEST, TEXT, JSON):
            assert is_unknown(await error_of(hub, tool, {"url": server.url(), "method": "POST"}), cause)
        read = await error_of(hub, TEXT, {"url": server.url()}, budget={"max_retries": 0})
        assert error_pb2.ErrorKind.Name(read.kind) == f"ERROR_KIND_{cause}"


@pytest.mark.promise("effects.sent-or-not")
async def test_a_post_that_was_never_sent_is_no_unknown_outcome(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(OK)) as (hub, server):
        for url in ("http://127.0.0.1:9/", f"http://nowhere.invalid:{server.port}/"):
            error = await error_of(hub, REQUEST, {"url": url, "method": "POST"})
            assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_NETWORK_ERROR, True)
            assert error.details["nothing_happened"] is True


@pytest.mark.promise("effects.sent-or-not")
async def test_a_deadline_that_passes_while_connecting_is_a_timeout_after_which_nothing_has_happened(
    tmp_path: Path,
) -> None:
    """The kernel completes no handshake once the queue of a listener is full."""
    async with web_hub(tmp_path, always(OK)) as (hub, server):
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            crowd = [socket.socket() for _ in range(8)]
            for each in crowd:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            policy = OPEN_POLICY + EGRESS % f", ports: [{server.port}, {port}]"
            assert hub.hub.policy.replace(policy).applied
            args = {"url": f"http://127.0.0.1:{port}/", "method": "POST", "timeoutMs": 1_000}
            error = await error_of(hub, REQUEST, args)
            for each in crowd:
                each.close()
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_HTTP_TIMEOUT, True)
        assert error.details["nothing_happened"] is True


@pytest.mark.promise("effects.sent-or-not")
async def test_a_post_that_was_sent_and_not_answered_in_time_is_unknown_whoever_sets_the_time(tmp_path: Path) -> None:
    async with web_hub(tmp_path, silent_after(b"")) as (hub, server):
        args = {"url": server.url(), "method": "POST"}
        assert is_unknown(await error_of(hub, REQUEST, {**args, "timeoutMs": 1_000}), "HTTP_TIMEOUT")
        assert is_unknown(await error_of(hub, REQUEST, args, budget={"timeout_s": 1.0}), "HTTP_TIMEOUT")


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", GAVE_UP)
async def test_a_gateway_that_gave_up_on_a_post_leaves_its_outcome_unknown(tmp_path: Path, status: int) -> None:
    async with web_hub(tmp_path, always(response(b"error code", status=status))) as (hub, server):
        error = await error_of(hub, JSON, {"url": server.url(), "method": "POST"})
        assert is_unknown(error, "UPSTREAM_ERROR")
        assert (error.upstream.status, len(server.asked)) == (status, 1)


@pytest.mark.promise("effects.one-table")
@pytest.mark.parametrize("status", [*NOT_REACHED, 425, 429, 503])
async def test_a_post_that_was_not_processed_may_be_sent_again(tmp_path: Path, status: int) -> None:
    async with web_hub(tmp_path, always(response(status=status))) as (hub, server):
        error = await error_of(hub, JSON, {"url": server.url(), "method": "POST"})
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_UPSTREAM_ERROR, True)
        assert len(server.asked) == 1, "the hub itself sends it once"


@pytest.mark.promise("effects.sent-or-not")
@pytest.mark.parametrize("then", [b"", response(status=404), response(status=503)], ids=["broken", "404", "503"])
async def test_a_post_that_was_redirected_after_it_was_processed_is_not_offered_again(
    tmp_path: Path, then: bytes
) -> None:
    """303 See Other: the answer is elsewhere, and elsewhere fails (RFC 9110 §15.4.4)."""
    answers = {"/orders": response(status=303, location="/orders/7"), "/orders/7": then}
    async with web_hub(tmp_path, by_target(answers) if then else _breaking_at("/orders/7", answers)) as (hub, server):
        error = await error_of(hub, JSON, {"url": server.url("/orders"), "method": "POST"})
        assert is_unknown(error, "UPSTREAM_ERROR" if then else "NETWORK_ERROR")
        assert [asked.method for asked in server.asked].count("POST") == 1


def _breaking_at(target: str, answers: dict[str, bytes]) -> Answer:
    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"" if asked.target == target else answers[asked.target])
        await writer.drain()
        return asked.target != target

    return answer


@pytest.mark.promise("effects.sent-or-not")
async def test_a_post_that_leads_to_a_refused_address_says_that_it_may_have_had_its_effect(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(response(status=303, location="http://elsewhere.example/"))) as (hub, server):
        error = await error_of(hub, REQUEST, {"url": server.url(), "method": "POST"})
        assert is_unknown(error, "HTTP_DISALLOWED_HOST")
        unprocessed = await error_of(hub, REQUEST, {"url": "http://elsewhere.example/", "method": "POST"})
        assert unprocessed.kind == error_pb2.ERROR_KIND_HTTP_DISALLOWED_HOST


@pytest.mark.promise("effects.sent-or-not")
async def test_a_redirect_that_keeps_the_method_has_processed_nothing(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(response(status=307, location="http://127.0.0.1:9/"))) as (hub, server):
        error = await error_of(hub, REQUEST, {"url": server.url(), "method": "POST"})
        assert (error.kind, error.retryable) == (error_pb2.ERROR_KIND_NETWORK_ERROR, True)


@pytest.mark.promise("effects.sent-or-not")
@pytest.mark.parametrize("body", [b"no json", b'["' + b"x" * 5_000 + b'"]'], ids=["not JSON", "too large"])
async def test_an_answered_post_whose_answer_is_of_no_use_is_not_offered_again(tmp_path: Path, body: bytes) -> None:
    async with web_hub(tmp_path, always(response(body))) as (hub, server):
        error = await error_of(hub, JSON, {"url": server.url(), "method": "POST", "maxBytes": 1_024})
        assert "answered with status 200. It may have had its effect" in error.message
        assert not error.retryable


@pytest.mark.promise("retry.unknown-outcome")
async def test_a_keyed_post_that_breaks_at_every_attempt_is_unknown_in_the_end(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(b"", keep=False)) as (hub, server):
        assert hub.hub.policy.replace(policy_for(server, more=", retry_with_key: true")).applied
        args = {"url": server.url(), "method": "POST"}
        error = await error_of(hub, REQUEST, args, idempotency_key="k", budget={"max_retries": 1})
        assert is_unknown(error, "NETWORK_ERROR")
        assert (len(server.asked), error.details["idempotency_key_sent"]) == (2, True)


@pytest.mark.promise("net.reads-retried")
@pytest.mark.parametrize("status", [429, 500, 503, 524])
@pytest.mark.parametrize("tool", [TEXT, HEAD, JSON, REQUEST])
async def test_a_read_that_meets_a_passing_status_is_tried_again_by_every_tool(
    tmp_path: Path, tool: str, status: int
) -> None:
    left = [response(status=status), OK]

    async def in_turn(_: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0))
        await writer.drain()

    async with web_hub(tmp_path, in_turn) as (hub, server):
        result = await hub.invoke(tool, {"url": server.url()})
        assert (result.ok, result.attempts, len(server.asked)) == (True, 2, 2)
        assert [event.event.type for event in await hub.events()].count(EventType.RETRY) == 1


@pytest.mark.promise("net.reads-retried")
async def test_the_last_answer_of_a_read_is_its_result_whatever_its_status(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(response(b"soon", status=503))) as (hub, server):
        result = await hub.invoke(TEXT, {"url": server.url()}, budget={"max_retries": 1})
        assert (result.ok, result.attempts, len(server.asked)) == (True, 2, 2)
        assert b'"status":503' in result.result_json.replace(b" ", b"")


@pytest.mark.promise("net.reads-retried")
@pytest.mark.parametrize("status", [404, 401, 301])
async def test_a_lasting_status_is_a_result_at_once(tmp_path: Path, status: int) -> None:
    async with web_hub(tmp_path, always(response(status=status))) as (hub, server):
        result = await hub.invoke(TEXT, {"url": server.url()})
        assert (result.ok, result.attempts, len(server.asked)) == (True, 1, 1)


@pytest.mark.promise("net.reads-retried")
async def test_a_post_whose_status_is_its_result_is_sent_once(tmp_path: Path) -> None:
    async with web_hub(tmp_path, always(response(status=503))) as (hub, server):
        for tool in (TEXT, REQUEST):
            result = await hub.invoke(tool, {"url": server.url(), "method": "POST"})
            assert (result.ok, result.attempts) == (True, 1)
        assert len(server.asked) == 2
