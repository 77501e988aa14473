"""The Python SDK's 2.x line, as an application uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import itinerary
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult, Implementation


class Connection:
    def __init__(self, client: Client, changed: asyncio.Event) -> None:
        self._client = client
        self._changed = changed

    def about(self) -> dict[str, Any]:
        client = self._client
        info, capabilities = client.server_info, client.server_capabilities
        return {
            "era": client.protocol_version,
            "serverInfo": info.model_dump(exclude_none=True) if info else None,
            "capabilities": capabilities.model_dump(exclude_none=True, by_alias=True),
            "instructions": client.instructions,
        }

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: itinerary.OnProgress | None = None
    ) -> itinerary.Answer:
        return itinerary.answer(await self._client.call_tool(name, dict(arguments), progress_callback=on_progress))

    async def cancel(self, call: asyncio.Task[itinerary.Answer]) -> None:
        call.cancel()

    async def read(self, uri: str) -> str:
        return str((await self._client.read_resource(uri)).contents[0].text)  # type: ignore[union-attr]

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        if self._client.protocol_version < "2026":
            yield self._changed
            return
        async with self._client.listen(tools_list_changed=True) as events:
            hearing = asyncio.create_task(self._collect(events))
            yield self._changed
            hearing.cancel()

    async def _collect(self, events: Any) -> None:
        async for _ in events:
            self._changed.set()


@asynccontextmanager
async def connect(wanted: dict[str, Any], person: itinerary.Person) -> AsyncIterator[Connection]:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    async def ask(_: Any, params: Any) -> ElicitResult:
        accepts = await person.answers(params.message)
        return ElicitResult(action="accept", content={}) if accepts else ElicitResult(action="decline")

    async with AsyncExitStack() as opened:
        transport: Any
        if "url" in wanted:
            http = await opened.enter_async_context(httpx2.AsyncClient(headers=wanted["headers"], timeout=90))
            transport = streamable_http_client(wanted["url"], http_client=http)
        else:
            transport = stdio_client(
                StdioServerParameters(command=wanted["command"], args=wanted["args"], env=wanted["env"])
            )
        client = Client(
            transport,
            mode=wanted.get("mode", "auto"),
            elicitation_callback=ask,
            message_handler=on_message,
            client_info=Implementation(name="python-v2", version="2"),
            read_timeout_seconds=90,
        )
        yield Connection(await opened.enter_async_context(client), changed)


itinerary.report(connect)
