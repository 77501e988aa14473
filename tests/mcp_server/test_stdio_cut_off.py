"""`toolhub mcp` whose hub, or which itself, ends in the midst of a call: the model reads what may have happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import always, response, serving
from tests.hub import OPEN_POLICY
from toolhub_service.cli.mcp.bridge import Bridge

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call_of(name: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": name, "arguments": arguments, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).encode() + b"\n"


async def bridged(url: str) -> dict[str, Any]:
    """The answer to one call through a bridge to the URL."""
    answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def lines() -> AsyncIterator[bytes]:
        yield call_of("acme__pay", {})
        await answered

    bridge = Bridge(url, "", lambda line: answered.set_result(json.loads(line)))
    await bridge.run(lines())
    return await answered


EVENTS = response(b": ping\r\n\r\n", content_type="text/event-stream")


@pytest.mark.promise("serving.cut-off", "effects.sent-or-not")
@pytest.mark.parametrize(
    "raw",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", EVENTS, response(b"Internal Server Error", status=500)]
    + [response(b"error code", status=status) for status in (502, 504, 524)],
    ids=["no answer", "half an answer", "a stream that ends", "500 without JSON", "502", "504", "524"],
)
async def test_a_call_whose_hub_breaks_off_is_an_unknown_outcome_for_the_client_of_the_bridge(raw: bytes) -> None:
    async with serving(always(raw, keep=False)) as server:
        result = (await bridged(server.url("/mcp")))["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("OUTCOME_UNKNOWN: The ")
    error = result["_meta"]["toolhub/error"]
    assert (error["kind"], error["retryable"]) == ("OUTCOME_UNKNOWN", False)


@pytest.mark.promise("effects.sent-or-not")
async def test_a_call_that_no_hub_has_got_is_not_an_unknown_outcome() -> None:
    answer = await bridged("http://127.0.0.1:9/mcp")
    assert "does not answer" in answer["error"]["message"]
    async with serving(always(response(b"no", status=403))) as server:
        assert "HTTP status 403" in (await bridged(server.url("/mcp")))["error"]["message"]


@pytest.mark.promise("serving.cut-off")
async def test_a_hub_on_standard_input_that_is_ended_answers_its_running_call(tmp_path: Path) -> None:
    policy, config, held = tmp_path / "policy.yaml", tmp_path / "toolhub.yaml", tmp_path / "never"
    begun = tmp_path / "begun"
    policy.write_text(OPEN_POLICY)
    tools = {"trusted_namespaces": ["tests.rpc"], "custom": [{"tool": "tests.rpc.held_tools:HoldOnce"}]}
    config.write_text(json.dumps({"policy": {"file": str(policy)}, "tools": tools}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    words = ("-m", "toolhub_service", "mcp", "--config", str(config), "--data-dir", str(tmp_path / "hub"))
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**environment, "HOME": str(tmp_path), "TOOLHUB_SERVER_MCP_LISTEN": "127.0.0.1:1"},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(call_of("held__effect_once", {"until": str(held), "begun": str(begun)}))
    await program.stdin.drain()
    async with asyncio.timeout(120):
        while not begun.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        answer = json.loads(await program.stdout.readline())
        program.stdin.close()
        await program.wait()
    assert answer["id"] == 7
    error = answer["result"]["_meta"]["toolhub/error"]
    assert (error["kind"], error["details"]["cause"]) == ("OUTCOME_UNKNOWN", "HUB_STOPPED")
