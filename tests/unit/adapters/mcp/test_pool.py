from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.fakes.tls import server_and_client_tls
from tests.unit.adapters.mcp.links import descriptors, until, within
from toolhub_service.adapters.mcp.transports.http import pool

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    working: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        working.add(task)
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            working.discard(task)

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    for task in (left := set(working)):
        task.cancel()
    if left:
        await asyncio.wait(left)
    await asyncio.sleep(0)


@asynccontextmanager
async def sockets(
    tls: ssl.SSLContext | None = None, connections_max: int = 8
) -> AsyncIterator[httpx2.AsyncBaseTransport]:
    transport = pool(tls or ssl.create_default_context(), connections_max)
    try:
        yield transport
    finally:
        await transport.aclose()


async def post(transport: httpx2.AsyncBaseTransport, url: str, content: bytes = b"{}", **timeout: float) -> bytes:
    extensions = {"timeout": timeout}
    response = await transport.handle_async_request(httpx2.Request("POST", url, content=content, extensions=extensions))
    try:
        return await response.aread()
    finally:
        await response.aclose()


class Kept:
    """Answers every request of a connection."""

    def __init__(self, *, times: int = 1_000) -> None:
        self.connections = 0
        self.has_closed = asyncio.Event()
        self._times = times

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self._times):
            try:
                await reader.readuntil(b"{}")
            except asyncio.IncompleteReadError:
                break
            writer.write(OK)
        writer.close()
        await writer.wait_closed()
        self.has_closed.set()


async def test_a_connection_is_kept_for_the_next_request() -> None:
    server = Kept()
    async with serving(server) as url, sockets() as transport:
        assert [await post(transport, url) for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1


async def test_tls_is_spoken_where_the_certificate_is_trusted(tmp_path: Path) -> None:
    server_tls, client_tls = server_and_client_tls(tmp_path, "localhost")
    server = Kept()
    async with serving(server, server_tls) as address:
        url = address.replace("127.0.0.1", "localhost")
        async with sockets(client_tls) as transport:
            assert [await post(transport, url) for _ in range(2)] == [b"ok"] * 2
        async with sockets() as transport:
            with pytest.raises(httpx2.ConnectError) as refused:
                await post(transport, url)
    assert isinstance(cause_of(refused.value), ssl.SSLCertVerificationError)
    assert server.connections == 1


def cause_of(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


async def test_where_nothing_listens_nothing_was_sent() -> None:
    async with serving(Kept()) as url:
        pass
    async with sockets() as transport:
        with pytest.raises(httpx2.ConnectError) as refused:
            await post(transport, url)
    assert isinstance(cause_of(refused.value), ConnectionRefusedError)


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    server = Kept(times=1)
    async with serving(server) as url, sockets() as transport:
        for _ in range(20):
            assert await post(transport, url) == b"ok"
            await server.has_closed.wait()
            server.has_closed.clear()
            for _ in range(3):  # The end of the connection is there, and has to be read.
                await asyncio.sleep(0)
    assert server.connections == 20


async def test_a_server_that_ends_without_an_answer_is_distinguished_from_one_that_got_nothing() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")

    async with serving(hang_up) as url, sockets() as transport:
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await post(transport, url)


async def test_waiting_for_a_place_ends_in_time() -> None:
    silent = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        silent.set()
        await reader.read()

    async with serving(stay_silent) as url, sockets(connections_max=1) as transport:
        first = asyncio.create_task(post(transport, url))
        await silent.wait()
        with pytest.raises(httpx2.PoolTimeout):
            await within(30, post(transport, url, pool=0.05))
        first.cancel()
        await asyncio.wait({first})


async def test_a_cancelled_request_closes_its_connection_whenever_it_is_cancelled() -> None:
    server = Kept()
    async with serving(server) as url, sockets() as transport:
        await post(transport, url)
        before = descriptors()
        for turns in range(40):
            running = asyncio.create_task(post(transport, url))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait({running})
        assert await post(transport, url) == b"ok"
        await until(lambda: descriptors() <= before + 2)


async def test_an_unread_response_is_not_held_in_memory() -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        for _ in range(1_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with serving(pour) as url, sockets() as transport:
        response = await transport.handle_async_request(httpx2.Request("POST", url, content=b"{}"))
        last = -1
        while last != sent:  # Until the server is held back.
            last = sent
            await asyncio.sleep(0.1)
        assert sent < 50_000_000
        received = [len(piece) async for piece in response.aiter_raw()]
        assert sum(received) == 100_000_000
        assert max(received) <= 1024 * 1024
        await response.aclose()
