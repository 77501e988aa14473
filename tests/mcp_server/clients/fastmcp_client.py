"""FastMCP's client, configured in the form that clients' files have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import itinerary
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.messages import MessageHandler


class ChangeHandler(MessageHandler):
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def on_tool_list_changed(self, message: Any) -> None:
        self.changed.set()


class Connection:
    def __init__(self, client: Client[Any], changed: asyncio.Event) -> None:
        self._client = client
        self._changed = changed

    def about(self) -> dict[str, Any]:
        client = self._client
        return {
            "era": client.protocol_version,
            "serverInfo": client.server_info.model_dump(exclude_none=True),
            "capabilities": client.server_capabilities.model_dump(exclude_none=True, by_alias=True),
            "instructions": client.instructions,
        }

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self._client.list_tools()]

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: itinerary.OnProgress | None = None
    ) -> itinerary.Answer:
        return itinerary.answer(await self._client.call_tool_mcp(name, dict(arguments), progress_handler=on_progress))

    async def cancel(self, call: asyncio.Task[itinerary.Answer]) -> None:
        call.cancel()

    async def read(self, uri: str) -> str:
        return str((await self._client.read_resource(uri))[0].text)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        if self._client.protocol_version > "2026":
            raise NotImplementedError  # it has nothing to listen with in the newer protocol
        yield self._changed


@asynccontextmanager
async def connect(wanted: dict[str, Any], person: itinerary.Person) -> AsyncIterator[Connection]:
    hearing = ChangeHandler()

    async def ask(message: str, *_: Any) -> Any:
        accepts = await person.answers(message)
        return ElicitResult(action="accept", content={}) if accepts else ElicitResult(action="decline")

    options = {"mode": wanted.get("mode", "auto"), "elicitation_handler": ask, "message_handler": hearing}
    async with Client({"mcpServers": {"tool-hub": wanted["entry"]}}, timeout=90, **options) as client:
        yield Connection(client, hearing.changed)


itinerary.report(connect)
