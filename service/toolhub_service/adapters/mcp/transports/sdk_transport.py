"""The SDK's side of the transport: its client's requests and responses, converted to the hub's own and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx2

from toolhub_service.adapters.mcp.messages.exchanges import Exchanges
from toolhub_service.adapters.mcp.messages.http import Answer, Events, HttpRequest, Transport, place_of

_OWN: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Fields that the connection writes itself."""


class SdkTransport(httpx2.AsyncBaseTransport):
    """What `httpx2.AsyncClient` sends its requests through."""

    def __init__(self, transport: Transport, exchanges: Exchanges) -> None:
        self._transport = transport
        self._exchanges = exchanges

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._exchanges.begin(request)
        content = await request.aread()
        fields = {name: value for name, value in request.headers.items() if name not in _OWN}
        sent = HttpRequest(request.method, place_of(request.url), fields, content, exchange=exchange)
        return response_of(await self._transport.send(sent))


def response_of(answer: Answer) -> httpx2.Response:
    fields = [*answer.fields]
    if answer.events is None:
        return httpx2.Response(answer.status, headers=fields, content=answer.content)
    return httpx2.Response(answer.status, headers=fields, stream=_Stream(answer.events))


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, events: Events) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._events:
            yield piece

    async def aclose(self) -> None:
        self._events.close()
