"""Request smuggling at the MCP port (CWE-444): one connection, bytes that two readers could read differently.

The rules themselves: tests/unit/guards/test_http_framing.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.mcp_server.mcp_hub import mcp_hub
from tests.unit.guards.test_http_framing import CHUNKED, GET, REFUSED, REFUSED_CHUNKS

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with mcp_hub(tmp_path) as hub:
        number = urlsplit(hub.url).port
        assert number is not None
        yield number


async def answer_to(port: int, sent: bytes) -> bytes:
    """All that comes until the hub closes the connection, which this side never does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            writer.write(sent)
            return await reader.read()
    finally:
        writer.transport.abort()


@pytest.mark.promise("mcpserver.framing")
async def test_a_head_of_two_readings_is_answered_once_and_its_connection_closed(port: int) -> None:
    """Fails at 513ce725: of most shapes, a second request of the same bytes was answered, too."""
    for name, (status, request) in REFUSED.items():
        if name in ("a head without end", "a long head"):
            continue  # what was not read of them resets the connection, perhaps before the answer was read
        answer = await answer_to(port, request + HEALTH)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (name, answer)
        assert answer.count(b"HTTP/1.1 ") == 1, (name, answer)
        assert b"connection: close" in answer, name


async def test_chunks_of_two_readings_end_their_connection(port: int) -> None:
    head = CHUNKED.replace(b"Host: hub", b"Host: 127.0.0.1\r\ncontent-type: application/json")
    for name, chunks in REFUSED_CHUNKS.items():
        answer = await answer_to(port, head + chunks + HEALTH)
        assert answer.count(b"HTTP/1.1 ") <= 1, (name, answer)
        assert b"ok\n" not in answer, name


async def test_requests_that_arrive_together_are_answered_in_order(port: int) -> None:
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = await answer_to(port, HEALTH * 20 + GET.replace(b"hub", b"elsewhere") + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 21
    assert answer.count(b"HTTP/1.1 421 ") == 1
    assert answer.endswith(b"ok\n")


async def test_a_refusal_says_what_to_send_instead(port: int) -> None:
    _, request = REFUSED["a length and chunks"]
    answer = await answer_to(port, request)
    assert b"The request has Content-Length and Transfer-Encoding. Send one of them." in answer


async def test_methods_are_read_as_they_are_written(port: int) -> None:
    request = b"post /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert (await answer_to(port, request)).startswith(b"HTTP/1.1 405 ")
