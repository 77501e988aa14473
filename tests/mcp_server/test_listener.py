"""The port of the MCP endpoint, before anything is served on it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from toolhub_service.mcp_server.http.listener import Listener, Served


async def test_a_close_that_is_cancelled_while_the_endpoint_opens_ends_as_cancelled_and_frees_the_port() -> None:
    opening = asyncio.Event()

    async def serve(serving: Any, bound: socket.socket) -> Served:
        opening.set()
        await asyncio.Event().wait()
        raise AssertionError

    listener = Listener(serve, lambda failed: None)
    listener.bind("127.0.0.1", 0, share_port=False)
    listener.start()
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await opening.wait()
    closing = asyncio.create_task(listener.close(1.0))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
