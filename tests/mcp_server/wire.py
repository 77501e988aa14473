"""MCP over HTTP as bytes: what an SDK's client would not send, and answers as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2

from tests.mcp_server.mcp_hub import ERAS

CLIENT = {"name": "raw", "version": "1"}
TASKS = "io.modelcontextprotocol/tasks"
KNOWS_TASKS: Mapping[str, Any] = {"extensions": {TASKS: {}}}
ALSO_ASKS: Mapping[str, Any] = {**KNOWS_TASKS, "elicitation": {"form": {}}}
OLDER, NEWER = ERAS


@dataclass(slots=True)
class Wire:
    http: httpx2.AsyncClient
    url: str
    era: str
    capabilities: Mapping[str, Any]
    headers: dict[str, str]
    ids: Any = field(default_factory=count)

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The whole JSON-RPC answer."""
        asked = dict(params or {})
        sent = {**self.headers, "mcp-method": method}
        if self.era == NEWER:
            own = {
                "io.modelcontextprotocol/protocolVersion": self.era,
                "io.modelcontextprotocol/clientInfo": CLIENT,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            }
            asked["_meta"] = {**own, **asked.get("_meta", {})}
            named = asked.get("name") or asked.get("uri") or asked.get("taskId")
            sent |= {"mcp-name": named} if named else {}
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": asked}
        answer = await self.http.post(self.url, json=body, headers={**sent, **(headers or {})})
        messages = [message for message in _messages(answer) if message.get("id") == body["id"]]
        assert messages, answer.text
        return messages[-1]

    async def result(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return await self.result("tools/call", {"name": tool, "arguments": dict(arguments or {}), **more})

    async def until(self, task_id: str, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The task when it is so, asked for again and again, as clients do."""
        async with asyncio.timeout(60):
            while not is_so(task := await self.result("tasks/get", {"taskId": task_id})):  # noqa: ASYNC110 - a task is polled
                await asyncio.sleep(0.05)
        return task

    async def over(self, task_id: str) -> dict[str, Any]:
        return await self.until(task_id, lambda task: task["status"] not in ("working", "input_required"))


def _messages(answer: httpx2.Response) -> list[dict[str, Any]]:
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        return [json.loads(answer.text)]
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@asynccontextmanager
async def wire(url: str, era: str, key: str = "", capabilities: Mapping[str, Any] = KNOWS_TASKS) -> AsyncIterator[Wire]:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": era}
    if key:
        headers["authorization"] = f"Bearer {key}"
    async with httpx2.AsyncClient(timeout=60.0) as http:
        opened = Wire(http, url, era, capabilities, headers)
        if era == OLDER:
            asked = {"protocolVersion": era, "capabilities": {}, "clientInfo": CLIENT}
            body = {"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": asked}
            answer = await http.post(url, json=body, headers=headers)
            headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            opened.capabilities = _messages(answer)[0]["result"]["capabilities"]
            began = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await http.post(url, json=began, headers=headers)
        yield opened
