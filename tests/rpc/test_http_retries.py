"""Which HTTP requests are sent again when they fail, through a whole hub and against a server that fails first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import RawServer, RecordedRequest, response, serving
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2

EGRESS = (
    "egress: [{hosts: [127.0.0.1], ports: [%s], cidrs: [127.0.0.0/8], methods: [GET, POST, PUT, PATCH, DELETE]%s}]\n"
)
HONOURS = ", retry_with_key: true"
FETCH, REQUEST = "core/http.fetchJson", "core/http.request"
OK = response(b'{"id": 7}', content_type="application/json")
BREAKS = b""
"""No answer: the server closes the connection once it has read the request."""


@asynccontextmanager
async def web_hub(home: Path, *answers: bytes, honours: str = HONOURS) -> AsyncIterator[tuple[RunningHub, RawServer]]:
    """A hub, and a server that gives these answers in turn, the last one from then on."""
    left = list(answers)

    async def in_turn(_: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        raw = left.pop(0) if len(left) > 1 else left[0]
        writer.write(raw)
        await writer.drain()
        return raw != BREAKS

    async with (
        serving(in_turn) as server,
        running_hub(home, policy=OPEN_POLICY + EGRESS % (server.port, honours)) as hub,
    ):
        yield hub, server


def post(server: RawServer, **args: Any) -> dict[str, Any]:
    return {"url": server.url("/orders"), "method": "POST", "body": '{"n": 1}', **args}


@pytest.mark.promise("net.posts-never-repeated", "retry.only-safe", "net.keyed-posts")
@pytest.mark.parametrize("fails", [BREAKS, response(status=500), response(status=503), response(status=409)])
async def test_a_post_with_a_key_is_retried_where_policy_trusts_the_hosts_idempotency_keys(
    tmp_path: Path, fails: bytes
) -> None:
    async with web_hub(tmp_path, fails, fails, OK) as (hub, server):
        result = await hub.invoke(FETCH, post(server), idempotency_key="order-1")
        assert (result.ok, result.attempts) == (True, 3)
        assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1
        assert re.fullmatch('"[0-9a-f]{16}-order-1"', server.asked[0].headers["idempotency-key"])
        assert {(asked.method, asked.body) for asked in server.asked} == {("POST", b'{"n": 1}')}
        attributes = result.evidence[0].attributes
        assert (attributes["status"], attributes["fields"], attributes["idempotency_key"]) == ("200", "id", "sent")


@pytest.mark.promise("net.posts-never-repeated", "retry.only-safe", "net.keyed-posts")
@pytest.mark.parametrize(("honours", "key"), [(HONOURS, ""), ("", "order-1"), ("", "")])
async def test_a_post_without_a_key_or_without_such_a_policy_is_sent_once_and_names_no_key(
    tmp_path: Path, honours: str, key: str
) -> None:
    async with web_hub(tmp_path, BREAKS, OK, honours=honours) as (hub, server):
        result = await hub.invoke(FETCH, post(server), idempotency_key=key)
        assert (result.error.kind, result.error.retryable) == (error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, False)
        assert [asked.headers.get("idempotency-key") for asked in server.asked] == [None]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST"])
async def test_every_method_that_may_change_something_takes_a_key_to_be_tried_again(
    tmp_path: Path, method: str
) -> None:
    async with web_hub(tmp_path, BREAKS, OK) as (hub, server):
        args = {"url": server.url(), "method": method}
        once = await hub.invoke(REQUEST, args)
        assert once.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        assert (len(server.asked), once.attempts) == (1, 1)
    async with web_hub(tmp_path / "with-key", BREAKS, OK) as (hub, server):
        args = {"url": server.url(), "method": method}
        assert (await hub.invoke(REQUEST, args, idempotency_key="k")).attempts == 2
        assert [asked.headers["idempotency-key"][-3:] for asked in server.asked] == ['-k"', '-k"']


async def test_the_header_that_a_caller_sets_goes_as_it_is(tmp_path: Path) -> None:
    async with web_hub(tmp_path, BREAKS, OK) as (hub, server):
        args = post(server, headers={"Idempotency-Key": "of-the-caller"})
        assert (await hub.invoke(FETCH, args, idempotency_key="order-1")).attempts == 2
        assert [asked.headers["idempotency-key"] for asked in server.asked] == ["of-the-caller"] * 2


async def test_a_get_needs_no_key_and_sends_none(tmp_path: Path) -> None:
    async with web_hub(tmp_path, response(status=500), OK) as (hub, server):
        assert (await hub.invoke(FETCH, {"url": server.url()}, idempotency_key="k")).attempts == 2
        assert [asked.headers.get("idempotency-key") for asked in server.asked] == [None, None]


async def test_retries_of_a_post_end_with_the_callers_budget_and_report_the_sent_key(tmp_path: Path) -> None:
    async with web_hub(tmp_path, response(status=503)) as (hub, server):
        result = await hub.invoke(FETCH, post(server), idempotency_key="k", budget={"max_retries": 1})
        assert (result.attempts, len(server.asked)) == (2, 2)
        assert result.error.kind == error_pb2.ERROR_KIND_UPSTREAM_ERROR
        assert result.error.details["idempotency_key_sent"] is True
        again = await hub.invoke(FETCH, post(server), idempotency_key="k", budget={"max_retries": 1})
        assert (again.replayed, again.error.retryable, len(server.asked)) == (True, False, 2)


@pytest.mark.promise("retry.unknown-outcome")
async def test_a_post_whose_answer_never_came_is_an_unknown_outcome_after_its_last_attempt(tmp_path: Path) -> None:
    async def silent(asked: RecordedRequest, _: asyncio.StreamWriter) -> bool:
        await asked.reader.read()
        return False

    async with (
        serving(silent) as server,
        running_hub(tmp_path, policy=OPEN_POLICY + EGRESS % (server.port, HONOURS)) as hub,
    ):
        args = post(server, timeoutMs=1_000)
        result = await hub.invoke(FETCH, args, idempotency_key="k", budget={"max_retries": 1})
        assert (result.attempts, len(server.asked)) == (2, 2)
        assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        assert result.error.details["idempotency_key_sent"] is True


async def test_a_key_does_not_follow_to_another_origin_and_what_went_there_is_not_sent_again(tmp_path: Path) -> None:
    async with web_hub(tmp_path, BREAKS) as (hub, other):

        async def leads_away(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(response(status=307, location=other.url("/there")))
            await writer.drain()

        async with serving(leads_away) as server:
            policy = OPEN_POLICY + EGRESS % (f"{server.port}, {other.port}", HONOURS)
            assert hub.hub.policy.replace(policy).applied
            result = await hub.invoke(FETCH, post(server), idempotency_key="k")
            assert (result.attempts, result.error.retryable) == (1, False)
            assert ["idempotency-key" in asked.headers for asked in server.asked + other.asked] == [True, False]


async def test_a_redirect_within_the_origin_takes_the_key_along(tmp_path: Path) -> None:
    async with web_hub(tmp_path, response(status=308, location="/v2"), BREAKS, OK) as (hub, server):
        assert (await hub.invoke(FETCH, post(server), idempotency_key="k")).ok
        assert [asked.target for asked in server.asked][:2] == ["/orders", "/v2"]
        assert len(server.asked) == 3
        assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1


async def test_the_same_key_of_another_tool_is_another_key_to_the_host(tmp_path: Path) -> None:
    async with web_hub(tmp_path, OK) as (hub, server):
        for tool in (FETCH, REQUEST):
            assert (await hub.invoke(tool, post(server), idempotency_key="k")).ok
        first, second = (asked.headers["idempotency-key"] for asked in server.asked)
        assert (first != second, first[-3:], second[-3:]) == (True, '-k"', '-k"')
