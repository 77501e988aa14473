"""What the tests of the fast client share: one server, called by it and by the SDK's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tests.fakes.mcp_harness import McpHarness, stage_of, started
from tests.fakes.mcp_servers.scripted import INFO, MODERN
from tests.unit.adapters.mcp.links import soon
from tests.unit.adapters.mcp.transports.test_http import Answer, elicitation_callback, http
from toolhub_service.adapters.mcp.kind import HttpTerms
from toolhub_service.adapters.mcp.requests import FastClient

CLIENT_KINDS = ["fast", "sdk"]


async def by(harness: McpHarness, way: str) -> McpHarness:
    """The harness, with calls going that way."""
    fast = (await harness.link.session(soon())).requests.fast
    assert isinstance(fast, FastClient)
    assert fast.is_open
    if way == "sdk":
        fast.close()
    return harness


@asynccontextmanager
async def over(url: str, way: str, *, headers: dict[str, str] | None = None, **more: Any) -> AsyncIterator[McpHarness]:
    async with started(stage_of(HttpTerms(url, headers or {}), **more)) as harness:
        yield await by(harness, way)


@asynccontextmanager
async def answered(tool: Callable[[Any], bytes], way: str, **more: Any) -> AsyncIterator[McpHarness]:
    """Over a modern server that answers each call with the bytes that `tool` makes of its message."""
    async with elicitation_callback(modern(tool)) as url, over(url, way, **more) as harness:
        yield harness


def modern(tool: Callable[[Any], bytes]) -> Answer:
    def answer(_verb: str, _headers: dict[str, str], body: bytes) -> bytes:
        message = orjson.loads(body)
        if message["method"] == "tools/call":
            return tool(message)
        shared = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        known: dict[str, dict[str, Any]] = {
            "server/discover": {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
            },
            "tools/list": {"tools": []},
        }
        result = {**shared, **known[message["method"]]}
        return http(orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    return answer


def response(message: Any, result: object, **more: object) -> bytes:
    """A JSON-RPC response to a message."""
    return orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result, **more})


def text_content(words: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": words}]}


def events(*messages: bytes) -> bytes:
    return http(
        b"".join(b"event: message\ndata: " + message + b"\n\n" for message in messages), kind="text/event-stream"
    )
