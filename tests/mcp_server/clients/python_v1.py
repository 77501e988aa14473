"""The Python SDK's 1.x line, as an application uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import itinerary
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


class Connection:
    def __init__(self, session: ClientSession, opened: types.InitializeResult, changed: asyncio.Event) -> None:
        self._session = session
        self._opened = opened
        self._changed = changed

    def about(self) -> dict[str, Any]:
        return {"era": self._opened.protocolVersion, **self._opened.model_dump(mode="json", exclude_none=True)}

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._session.list_tools()).tools]

    async def call(
        self, name: str, arguments: Mapping[str, Any], on_progress: itinerary.OnProgress | None = None
    ) -> itinerary.Answer:
        return itinerary.answer(await self._session.call_tool(name, dict(arguments), progress_callback=on_progress))

    async def cancel(self, call: asyncio.Task[itinerary.Answer]) -> None:
        """This line of the SDK notifies the server of no call that is given up: an application has to."""
        params = types.CancelledNotificationParams(requestId=self._session._request_id - 1, reason="enough")
        await self._session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        call.cancel()

    async def read(self, uri: str) -> str:
        return (await self._session.read_resource(uri)).contents[0].text

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        yield self._changed


@asynccontextmanager
async def connect(wanted: dict[str, Any], person: itinerary.Person) -> AsyncIterator[Connection]:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(getattr(message, "root", None), types.ToolListChangedNotification):
            changed.set()

    async def ask(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        accepts = await person.answers(params.message)
        return types.ElicitResult(action="accept", content={}) if accepts else types.ElicitResult(action="decline")

    async with AsyncExitStack() as opened:
        if "url" in wanted:
            http = await opened.enter_async_context(httpx.AsyncClient(headers=wanted["headers"], timeout=90))
            streams = await opened.enter_async_context(streamable_http_client(wanted["url"], http_client=http))
        else:
            started = StdioServerParameters(command=wanted["command"], args=wanted["args"], env=wanted["env"])
            streams = await opened.enter_async_context(stdio_client(started))
        about = types.Implementation(name="python-v1", version="1")
        session = ClientSession(
            *streams[:2], timedelta(seconds=90), elicitation_callback=ask, message_handler=on_message, client_info=about
        )
        await opened.enter_async_context(session)
        yield Connection(session, await session.initialize(), changed)


itinerary.report(connect)
