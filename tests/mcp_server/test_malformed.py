"""Requests that are no message of the protocol are told so in plain words."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.mcp_server.mcp_hub import ERAS, McpHub
from tests.mcp_server.wire import wire

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "words"),
    [
        ([PING, PING], {}, 400, -32600, "send each message in a request of its own"),
        ([], {}, 400, -32600, "Batches"),
        ("x", {}, 400, -32600, "no JSON-RPC message"),
        ({"method": "ping"}, {}, 400, -32600, "no JSON-RPC message"),
        ({"jsonrpc": "2.0", "id": 1}, {}, 400, -32600, "no JSON-RPC message"),
        (PING, {"content-type": "text/plain"}, 415, -32600, "Content-Type: application/json"),
        (PING, {"mcp-protocol-version": "2020-01-01"}, 400, -32022, "does not speak version '2020-01-01'"),
        (PING, {"accept": "text/html"}, 406, -32600, "must accept both application/json and text/event-stream"),
    ],
)
@pytest.mark.parametrize("era", ERAS)
async def test_what_is_no_message_is_refused_in_plain_words(
    hub: McpHub, era: str, body: Any, headers: dict[str, str], status: int, code: int, words: str
) -> None:
    if "accept" in headers and era == ERAS[1]:
        return  # answered as JSON: the newer protocol needs no stream for it
    sent = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": era,
        **headers,
    }
    async with httpx2.AsyncClient() as http:
        answer = await http.post(hub.url, content=json.dumps(body), headers=sent)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert words in error["message"]
    assert "pydantic" not in answer.text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "method", ["tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"]
)
async def test_a_cursor_that_the_hub_did_not_give_is_refused_by_every_list(hub: McpHub, era: str, method: str) -> None:
    async with wire(hub.url, era) as client:
        error = (await client.ask(method, {"cursor": "bogus"}))["error"]
        assert error["code"] == -32602
        assert "Begin without one" in error["message"]
