"""Servers that are functions from a request to a response of httpx2, without a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2

from toolhub_service.adapters.mcp.messages.exchanges import Exchanges
from toolhub_service.adapters.mcp.messages.http import HttpRequest, HttpResponse, Transport
from toolhub_service.adapters.mcp.transports.sdk_transport import SdkTransport

Server = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


def sending_to(server: Server) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """What a `BoundedTransport` sends by."""

    async def send(request: HttpRequest) -> HttpResponse:
        sent = httpx2.Request(request.method, request.place.url, headers=request.fields, content=request.content)
        answer = await server(sent)
        pieces = iter([await answer.aread()])

        async def pull() -> bytes:
            return next(pieces, b"")

        fields = [(name.lower(), value) for name, value in answer.headers.raw]
        return HttpResponse(answer.status_code, fields, pull, lambda: None)

    return send


async def answer_to(transport: Transport, request: httpx2.Request) -> httpx2.Response:
    """The answer as the SDK gets it."""
    return await SdkTransport(transport, Exchanges()).handle_async_request(request)
