"""Pages of browsers: what an allowed origin may do, and that no other gets any of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.mcp_server.mcp_hub import McpHub, mcp_hub

PAGE = "http://localhost:6274"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}},
}
ACCEPTS = {"accept": "application/json, text/event-stream"}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[McpHub]:
    async with mcp_hub(tmp_path, allowed_origins=[PAGE]) as opened:
        yield opened


async def asked(hub: McpHub, method: str, origin: str, **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.request(
            method, hub.url, headers={**ACCEPTS, "origin": origin, **more.pop("headers", {})}, **more
        )


def cors_of(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def test_a_preflight_of_an_allowed_origin_is_answered_with_what_it_may_send(hub: McpHub) -> None:
    wanted = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, mcp-param-region, x-other, mcp-\u00e9",
    }
    answer = await asked(hub, "OPTIONS", PAGE, headers={k: v.encode("latin-1") for k, v in wanted.items()})
    assert (answer.status_code, answer.text) == (204, "")
    cors = cors_of(answer)
    assert cors["access-control-allow-origin"] == PAGE
    assert cors["access-control-allow-methods"] == "POST, GET, DELETE"
    allowed = set(cors["access-control-allow-headers"].split(", "))
    assert {"authorization", "content-type", "last-event-id", "mcp-protocol-version", "mcp-param-region"} <= allowed
    assert {"mcp-session-id", "mcp-method", "mcp-name"} <= allowed
    assert not allowed & {"x-other", "*", "mcp-\u00e9"}
    assert answer.headers["vary"] == "Origin"


async def test_a_page_of_an_allowed_origin_reads_its_session(hub: McpHub) -> None:
    answer = await asked(hub, "POST", PAGE, json=INITIALIZE)
    assert answer.status_code == 200
    assert answer.headers["mcp-session-id"]
    assert cors_of(answer)["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in cors_of(answer)["access-control-expose-headers"]
    assert "Origin" in answer.headers["vary"]


async def test_a_refusal_can_be_read_by_the_page_too(hub: McpHub) -> None:
    answer = await asked(hub, "POST", PAGE, content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert cors_of(answer)["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:6275", f"{PAGE}.evil.example"])
async def test_a_page_of_another_origin_gets_no_header_of_cors(hub: McpHub, method: str, origin: str) -> None:
    answer = await asked(hub, method, origin, headers={"access-control-request-method": "POST"})
    assert cors_of(answer) == {}
    assert answer.status_code != 204
    assert "Origin" in answer.headers["vary"], "a cache must not give the one the other's answer"


async def test_without_allowed_origins_there_is_no_preflight(tmp_path: Path) -> None:
    async with mcp_hub(tmp_path) as hub:
        answer = await asked(hub, "OPTIONS", PAGE, headers={"access-control-request-method": "POST"})
        assert answer.status_code == 405
        assert cors_of(answer) == {}
