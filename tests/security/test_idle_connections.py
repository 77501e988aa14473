"""Connections that ask for nothing, more than there are places, at each port that the hub opens itself.

How many are looked at, and in which order they make room: tests/unit/guards/test_accepting.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.resolvers import FixedResolver
from tests.fakes.tls import server_and_client_tls
from tests.mcp_server.mcp_hub import mcp_hub
from tests.security.mcp_attackers import head
from tests.unit.tools.web.test_filtering_proxy import status
from toolhub_service.domain.call import Principal
from toolhub_service.mcp_server.caller import AccessRefused
from toolhub_service.mcp_server.http.admission import AdmissionTerms
from toolhub_service.mcp_server.http.serving import HttpTerms, serve
from toolhub_service.telemetry.metrics import Metrics, MetricsEndpoint
from toolhub_service.tools.web.filtering_proxy import FilteringProxy

PLACES = 20
CLOSE = "Connection: close\r\n\r\n"
HEALTH = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{CLOSE}".encode()
SENT = {
    "nothing": b"",
    "a byte": b"G",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: local",
    "a request without a key": head("", "localhost", "content-length: 2") + b"{}",
    "a body that does not come": head("", "localhost", "content-length: 100") + b"{",
}


async def answer_to(port: int, sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    try:
        async with asyncio.timeout(60):
            writer.write(sent)
            return await reader.read()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def held(port: int, count: int, sent: bytes) -> AsyncIterator[None]:
    """So many connections that send this, and wait."""
    opened = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", port)))
            opened[-1].sendall(sent)
            await asyncio.sleep(0)
        yield
    finally:
        for each in opened:
            each.close()


@asynccontextmanager
async def mcp_port(folder: Path, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port for MCP with few places, where callers have keys."""

    async def identify(headers: Any, *_: str) -> Principal:
        if not any(name == "authorization" for name, _ in headers):
            raise AccessRefused(401, "Send a key.")
        return Principal("ann")

    async with mcp_hub(folder) as hub:
        bound = socket.create_server(("127.0.0.1", 0), backlog=1_024)
        terms = HttpTerms(AdmissionTerms(is_local=True), max_connections=PLACES, tls=tls)
        server = await serve(hub.grpc.hub.mcp.engine, identify, terms, bound)
        try:
            yield bound.getsockname()[1]
        finally:
            await server.close(1.0)


@pytest.mark.promise("mcpserver.idle-connections")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_at_the_mcp_port_idle_connections_make_room_for_whoever_asks(sent: bytes, tmp_path: Path) -> None:
    async with mcp_port(tmp_path) as port, held(port, 5 * PLACES, sent):
        for _ in range(3):
            assert (await answer_to(port, HEALTH)).endswith(b"ok\n")


async def test_a_caller_with_a_key_keeps_its_connection_beside_strangers(tmp_path: Path) -> None:
    async with mcp_port(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = head("a-key", "localhost", "content-length: 2") + b"{}"
        for _ in range(3):
            writer.write(asked)
            async with asyncio.timeout(60):
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 400 ")
                await reader.readexactly(int(answer.partition(b"content-length: ")[2].split(b"\r")[0]))
            async with held(port, 3 * PLACES, b"G"):
                pass
        writer.transport.abort()


async def test_handshakes_that_do_not_go_on_make_room_too(tmp_path: Path) -> None:
    """At 513ce725 they were not counted, and each was held for a minute."""
    server_tls, client_tls = server_and_client_tls(tmp_path, "localhost")
    for sent in (b"", b"\x16\x03\x01"):
        (tmp_path / str(len(sent))).mkdir()
        async with mcp_port(tmp_path / str(len(sent)), server_tls) as port, held(port, 5 * PLACES, sent):
            assert (await answer_to(port, HEALTH, client_tls)).endswith(b"ok\n")


@pytest.mark.parametrize("sent", [b"", b"GET /me", b"GET /healthz HTTP/1.1\r\nHost: local"])
async def test_probes_are_answered_beside_more_idle_connections_than_there_are_places(sent: bytes) -> None:
    """Fails at 513ce725: 32 connections without a word kept every probe out, and Kubernetes restarts such a hub."""
    endpoint = MetricsEndpoint(Metrics(version="1").scraped)
    port = await endpoint.start("127.0.0.1", 0)
    async with held(port, 100, sent):
        for _ in range(3):
            assert (await answer_to(port, HEALTH)).endswith(b"ok\n")
    await endpoint.stop()


async def test_strangers_on_this_machine_do_not_keep_a_browser_from_its_proxy() -> None:
    """Fails at 513ce725: 64 connections without a word held it up for half a minute."""
    proxy = FilteringProxy(FixedResolver(default=("127.0.0.1",)), (), max_bytes=1_000)
    port = int((await proxy.start()).rpartition(":")[2])
    try:
        async with held(port, 300, b"CONNECT "):
            async with asyncio.timeout(20):
                assert await status(proxy, port, "CONNECT example.com:443 HTTP/1.1") == 403
    finally:
        await proxy.close()


@pytest.mark.parametrize("body", ["content-length: 2", "transfer-encoding: chunked"])
async def test_a_request_refused_before_its_body_has_come_leaves_the_connection_open(body: str, tmp_path: Path) -> None:
    """HTTP clients send heads and bodies apart, and write the next request on a connection that was not closed."""
    rest = b"{}" if "length" in body else b"2\r\n{}\r\n0\r\n\r\n"
    async with mcp_port(tmp_path) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(head("", "localhost", body))
            refusal = await reader.readuntil(b"\r\n\r\n")
            assert refusal.startswith(b"HTTP/1.1 401 ")
            length = int(refusal.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b"Send a key." in await reader.readexactly(length)
            writer.write(rest)
        writer.write(HEALTH)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
