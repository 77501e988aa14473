"""What the fake n8n does that was not recorded: faults, restarts, newer versions, waits that are driven by events."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.fakes.n8n import FOREVER, FakeN8n, How, Owner, fake_n8n

_PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without certificates, which take long to load and are not needed."""
_NODE = {"typeVersion": 1, "position": [0, 0]}


def _workflow(name: str, mode: str, *chain: dict[str, Any]) -> dict[str, Any]:
    """A webhook `/webhook/<name>` and the nodes after it, in a row."""
    parameters = {"httpMethod": "POST", "path": name, "responseMode": mode}
    nodes = [{"name": "Webhook", "type": "n8n-nodes-base.webhook", "parameters": parameters}, *chain]
    wires = {
        one["name"]: {"main": [[{"node": other["name"], "type": "main", "index": 0}]]}
        for one, other in itertools.pairwise(nodes)
    }
    whole = [{"id": f"{name}-{at}"} | _NODE | node for at, node in enumerate(nodes)]
    return {"id": name, "name": name, "nodes": whole, "connections": wires, "settings": {}}


def _wait(seconds: int) -> dict[str, Any]:
    return {"name": "Wait", "type": "n8n-nodes-base.wait", "parameters": {"amount": seconds, "unit": "seconds"}}


_ECHO = {
    "name": "Out",
    "type": "n8n-nodes-base.set",
    "parameters": {"mode": "raw", "jsonOutput": '={{ JSON.stringify({ echo: $("Webhook").first().json.body }) }}'},
}
_ACCEPT = {
    "name": "Respond",
    "type": "n8n-nodes-base.respondToWebhook",
    "parameters": {
        "respondWith": "json",
        "responseBody": "={{ JSON.stringify({ executionId: $execution.id }) }}",
        "options": {"responseCode": 202},
    },
}
_CODE = {"name": "Code", "type": "n8n-nodes-base.code", "parameters": {"jsCode": "for (const x of y) {}"}}
_WORKFLOWS = [
    _workflow("echo", "lastNode", _ECHO),
    _workflow("short", "responseNode", _ACCEPT, _wait(5), _ECHO),
    _workflow("long", "responseNode", _ACCEPT, _wait(70), _ECHO),
    _workflow("slow", "lastNode", _wait(5), _ECHO),
    _workflow("script", "lastNode", _CODE),
    _workflow("strange", "lastNode", {"name": "X", "type": "n8n-nodes-base.gmail", "parameters": {}}),
]


@pytest.fixture
async def n8n() -> AsyncIterator[FakeN8n]:
    async with fake_n8n(workflows=_WORKFLOWS, time_scale=None, owner=Owner()) as n8n:
        yield n8n


@pytest.fixture
async def client(n8n: FakeN8n) -> AsyncIterator[httpx.AsyncClient]:
    key = {"X-N8N-API-KEY": n8n.api_key}
    async with httpx.AsyncClient(base_url=n8n.url, headers=key, timeout=30, verify=_PLAIN) as client:
        yield client


@pytest.mark.parametrize(
    ("how", "starts"),
    [(How.DROP, 0), (How.LOSE_ANSWER, 1), (How.CUT, 1)],
)
async def test_a_lost_connection_leaves_the_outcome_unknown(
    n8n: FakeN8n, client: httpx.AsyncClient, how: How, starts: int
) -> None:
    n8n.fails("/webhook/*", how)
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/webhook/echo", json={"a": 1})
    assert n8n.starts("echo") == starts
    assert (await client.post("/webhook/echo", json={"a": 1})).json() == {"echo": {"a": 1}}


@pytest.mark.parametrize(
    ("how", "status", "starts"),
    [
        (How.EMPTY, 200, 1),
        (How.ERROR, 500, 0),
        (How.ERROR_AFTER, 500, 1),
        (How.BAD_GATEWAY, 502, 0),
        (How.BUSY, 503, 0),
        (How.LIMITED, 429, 0),
        (How.UNAUTHORIZED, 401, 0),
        (How.NO_ROUTE, 404, 0),
        (How.TRUNCATED, 200, 1),
        (How.WRONG_TYPE, 200, 1),
        (How.GARBAGE, 200, 1),
        (How.TWICE, 200, 2),
        (How.FORGET, 200, 1),
    ],
)
async def test_a_fault_occurs_as_often_as_requested(
    n8n: FakeN8n, client: httpx.AsyncClient, how: How, status: int, starts: int
) -> None:
    fault = n8n.fails("/webhook/echo", how)
    assert (await client.post("/webhook/echo", json={})).status_code == status
    assert (n8n.starts("echo"), fault.hits) == (starts, 1)
    assert (await client.post("/webhook/echo", json={})).json() == {"echo": {}}


async def test_faults_hold_by_method_and_path_for_ever_and_after_some(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    fault = n8n.fails("/api/*", How.BUSY, method="GET", times=FOREVER, skip=1, retry_after="7")
    assert (await client.get("/api/v1/workflows")).status_code == 200
    assert (await client.get("/api/v1/workflows")).headers["retry-after"] == "7"
    assert (await client.post("/api/v1/workflows/echo/activate")).status_code == 200
    assert (await client.post("/webhook/echo", json={})).status_code == 200
    fault.over()
    assert (await client.get("/api/v1/workflows")).status_code == 200


async def test_a_held_answer_comes_when_it_is_let_go_and_the_work_was_done_long_before(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    fault = n8n.fails("/webhook/echo", How.HOLD)
    call = asyncio.create_task(client.post("/webhook/echo", json={}))
    execution = await n8n.began("echo")
    await n8n.ended(execution.id)
    assert not call.done()
    fault.let_go()
    assert (await call).status_code == 200


async def test_a_stalled_or_later_execution_is_not_done_until_then(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    stall = n8n.fails("/webhook/echo", How.STALL)
    call = asyncio.create_task(client.post("/webhook/echo", json={}))
    await n8n.was_asked("POST", "/webhook/echo")
    assert n8n.starts("echo") == 0
    stall.let_go()
    await call
    later = n8n.fails("/webhook/echo", How.LATER)
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/webhook/echo", json={})
    assert n8n.starts("echo") == 1
    later.let_go()
    await n8n.began("echo", 2)


async def test_huge_and_dripping_answers_end_when_the_caller_leaves(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    n8n.fails("/webhook/echo", How.HUGE, size_bytes=1_000_003)
    assert len((await client.post("/webhook/echo", json={})).json()) == 1_000_001
    drip = n8n.fails("/webhook/echo", How.DRIP)
    async with client.stream("POST", "/webhook/echo", json={}) as response:
        assert await anext(response.aiter_raw(1)) == b"{"
    drip.let_go()


async def test_a_wait_holds_until_it_is_released_and_shows_by_its_length(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    short = (await client.post("/webhook/short", json={})).json()["executionId"]
    long = (await client.post("/webhook/long", json={})).json()["executionId"]
    await n8n.reached(long, "waiting")
    assert (await client.get(f"/api/v1/executions/{short}")).json()["status"] == "running"
    assert (await client.get(f"/api/v1/executions/{long}")).json()["waitTill"] is not None
    n8n.release(short)
    assert (await n8n.ended(short)).status == "success"


async def test_a_restart_crashes_what_ran_keeps_what_waited_and_answers_nobody(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    long = (await client.post("/webhook/long", json={})).json()["executionId"]
    await n8n.reached(long, "waiting")
    call = asyncio.create_task(client.post("/webhook/slow", json={}))
    slow = await n8n.began("slow")
    await n8n.restart()
    with pytest.raises(httpx.RemoteProtocolError):
        await call
    execution = (await client.get(f"/api/v1/executions/{slow.id}")).json()
    assert (execution["status"], execution["finished"]) == ("crashed", False)
    n8n.release(long)
    assert (await n8n.ended(long)).status == "success"


async def test_a_server_that_is_down_refuses_and_is_the_same_when_it_is_up(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    await client.post("/webhook/echo", json={})
    await n8n.down()
    with pytest.raises(httpx.ConnectError):
        await client.get("/healthz")
    await n8n.up()
    assert (await client.get("/api/v1/executions/1")).json()["status"] == "success"


async def test_pruned_executions_are_gone_but_not_undone(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    await client.post("/webhook/echo", json={})
    n8n.executions.forget("1")
    missing = await client.get("/api/v1/executions/1")
    assert (missing.status_code, missing.json()) == (404, {"message": "Not Found"})
    assert n8n.starts("echo") == 1


async def test_the_public_api_stops_executions_from_2_10_on() -> None:
    async with (
        fake_n8n(workflows=_WORKFLOWS, version="2.10.0", time_scale=None) as n8n,
        httpx.AsyncClient(base_url=n8n.url, headers={"X-N8N-API-KEY": n8n.api_key}, verify=_PLAIN) as client,
    ):
        begun = (await client.post("/webhook/short", json={})).json()["executionId"]
        stopped = await client.post(f"/api/v1/executions/{begun}/stop")
        assert (stopped.status_code, stopped.json()["status"]) == (200, "canceled")
        unknown = await client.post("/api/v1/executions/77/stop")
        assert (unknown.status_code, unknown.json()) == (404, {"message": "Not Found"})


async def test_a_key_allows_its_scopes_only(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    key = {"X-N8N-API-KEY": n8n.make_key("workflow:list")}
    assert (await client.get("/api/v1/workflows", headers=key)).status_code == 200
    assert (await client.get("/api/v1/executions", headers=key)).status_code == 403


async def test_a_stand_in_runs_what_the_little_javascript_cannot(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    assert (await client.post("/webhook/script", json={})).status_code == 500
    n8n.code("Code", lambda items, execution: [{"json": {"by": execution.id, "n": len(items)}}])
    assert (await client.post("/webhook/script", json={})).json() == {"by": "2", "n": 1}


async def test_a_workflow_with_a_node_that_is_not_known_fails(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    assert (await client.post("/webhook/strange", json={})).json() == {"message": "Error in workflow"}
    assert "n8n-nodes-base.gmail" in str(n8n.executions["1"].error)


async def test_every_request_is_kept_as_it_came(n8n: FakeN8n, client: httpx.AsyncClient) -> None:
    await client.post("/webhook/echo?x=1", json={"a": 1}, headers={"X-Idempotency-Key": "k"})
    seen = await n8n.was_asked("POST", "/webhook/*")
    assert (seen.json, seen.query, seen.headers["x-idempotency-key"]) == ({"a": 1}, {"x": "1"}, "k")


async def test_a_node_whose_parameters_make_no_sense_fails_the_workflow(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    broken = {"name": "Out", "type": "n8n-nodes-base.set", "parameters": {"mode": "raw", "jsonOutput": "{not json"}}
    n8n.add(_workflow("broken", "lastNode", broken))
    assert (await client.post("/webhook/broken", json={})).json() == {"message": "Error in workflow"}


async def test_a_server_that_stays_down_closes_anyway() -> None:
    async with fake_n8n(workflows=_WORKFLOWS, time_scale=None) as n8n:
        await n8n.down()
    assert n8n.requests == []


async def test_login_wants_the_owner_and_a_cookie_the_browser_that_made_it(
    n8n: FakeN8n, client: httpx.AsyncClient
) -> None:
    assert n8n.owner is not None
    login = {"emailOrLdapLoginId": n8n.owner.email, "password": n8n.owner.password}
    assert (await client.post("/rest/login", json=login | {"password": "another"})).status_code == 401
    assert (await client.post("/rest/login", json=login, headers={"browser-id": "b"})).status_code == 200
    begun = (await client.post("/webhook/short", json={})).json()["executionId"]
    stopped = await client.post(f"/rest/executions/{begun}/stop", headers={"browser-id": "b"})
    assert (stopped.status_code, stopped.json()["data"]["status"]) == (200, "canceled")
    assert (await client.post(f"/rest/executions/{begun}/stop")).status_code == 401
