"""LangChain's MCP adapter: an agent's tools are what the hub lists, called as the model calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import itinerary
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp.types import ElicitResult


class Connection:
    def __init__(self, client: MultiServerMCPClient, opened: Any, tools: list[BaseTool], progress: list[Any]) -> None:
        self._client = client
        self._opened = opened
        self._tools = {tool.name: tool for tool in tools}
        self._progress = progress
        self._is_program = "command" in client.connections["tool-hub"]

    def about(self) -> dict[str, Any]:
        return {"era": self._opened.protocolVersion, **self._opened.model_dump(mode="json", exclude_none=True)}

    async def tools(self) -> list[str]:
        return list(self._tools)

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: itinerary.OnProgress | None = None
    ) -> itinerary.Answer:
        """What the model sees is the text; the rest is for the application."""
        self._progress[:] = filter(None, [on_progress])
        asked = {"name": name, "args": dict(arguments), "id": "call", "type": "tool_call"}
        message = await self._tools[name].ainvoke(asked)
        blocks = message.content if isinstance(message.content, list) else [{"text": message.content}]
        artifact = message.artifact or {}
        return {
            "isError": message.status == "error",
            "text": "".join(block.get("text", "") for block in blocks),
            "structured": artifact.get("structured_content"),
            "uris": [block["url"] for block in blocks if block.get("type") == "file"],
            "error": None,
        }

    async def cancel(self, call: asyncio.Task[itinerary.Answer]) -> None:
        """Over HTTP a call's session ends with it; what is given up within a session goes on."""
        if self._is_program:
            raise NotImplementedError
        call.cancel()

    async def read(self, uri: str) -> str:
        (blob,) = await self._client.get_resources("tool-hub", uris=uri)
        return str(blob.as_string())

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        raise NotImplementedError  # an application loads the tools again when it likes


@asynccontextmanager
async def connect(wanted: dict[str, Any], person: itinerary.Person) -> AsyncIterator[Connection]:
    listeners: list[itinerary.OnProgress] = []

    async def on_progress(step: float, total: float | None, message: str | None, _: Any) -> None:
        if listeners:
            await listeners[-1](step, total, message)

    async def ask(_: Any, params: Any, __: Any) -> ElicitResult:
        accepts = await person.answers(params.message)
        return ElicitResult(action="accept", content={}) if accepts else ElicitResult(action="decline")

    entry = {name: value for name, value in wanted["entry"].items() if name != "type"}
    asks = {"on_elicitation": ask} if wanted.get("asks") else {}
    transport = "http" if "url" in entry else "stdio"
    client = MultiServerMCPClient(
        {"tool-hub": {"transport": transport, **entry}}, callbacks=Callbacks(on_progress=on_progress, **asks)
    )
    opened = (await client.get_server_info())["tool-hub"]
    if transport == "http":  # a session for each call, as the adapter's documentation begins
        yield Connection(client, opened, await client.get_tools(), listeners)
        return
    async with client.session("tool-hub") as session:  # else each call would start a program
        tools = await load_mcp_tools(session, callbacks=client.callbacks, server_name="tool-hub")
        yield Connection(client, opened, tools, listeners)


itinerary.report(connect)
