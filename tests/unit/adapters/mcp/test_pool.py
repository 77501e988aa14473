from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tls import server_and_client_tls
from tests.unit.adapters.mcp.links import descriptors, until, within
from toolhub_service.adapters.mcp.messages.http import NORMAL, HttpRequest, Times, place_of, same_times
from toolhub_service.adapters.mcp.transports.connections import Connections, PoolFull
from toolhub_service.adapters.mcp.transports.http import IDLE_MAX, pool
from toolhub_service.egress.breakage import Breakage, WireError

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
async def sockets(tls: ssl.SSLContext | None = None, connections_max: int = 8) -> AsyncIterator[Connections]:
    connections = pool(tls or ssl.create_default_context(), connections_max)
    try:
        yield connections
    finally:
        connections.close()
        await asyncio.sleep(0)


async def post(connections: Connections, url: str, content: bytes = b"{}", times: Times = NORMAL) -> bytes:
    response = await connections.send(HttpRequest("POST", place_of(url), {}, content, times))
    try:
        pieces = []
        while piece := await response.pull():
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        response.close()


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
            with pytest.raises(WireError) as refused:
                await post(transport, url)
    assert isinstance(cause_of(refused.value), ssl.SSLCertVerificationError)
    assert not refused.value.was_sent
    assert server.connections == 1


def cause_of(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


async def test_where_nothing_listens_nothing_was_sent() -> None:
    async with serving(Kept()) as url:
        pass
    async with sockets() as transport:
        with pytest.raises(WireError) as refused:
            await post(transport, url)
    assert isinstance(cause_of(refused.value), ConnectionRefusedError)
    assert not refused.value.was_sent


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
        with pytest.raises(WireError) as broken:
            await post(transport, url)
        assert broken.value.was_sent


async def test_waiting_for_a_place_ends_in_time() -> None:
    silent = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        silent.set()
        await reader.read()

    async with serving(stay_silent) as url, sockets(connections_max=1) as transport:
        first = asyncio.create_task(post(transport, url))
        await silent.wait()
        with pytest.raises(PoolFull) as full:
            await within(30, post(transport, url, times=same_times(0.05)))
        assert not full.value.was_sent
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
        response = await transport.send(HttpRequest("POST", place_of(url), {}, b"{}"))
        last = -1
        while last != sent:  # Until the server is held back.
            last = sent
            await asyncio.sleep(0.1)
        assert sent < 50_000_000
        received = []
        while piece := await response.pull():
            received.append(len(piece))
        assert sum(received) == 100_000_000
        assert max(received) <= 1024 * 1024
        response.close()


def answering(*answers: bytes) -> Serve:
    """Answers the requests of one connection in turn, and then stays silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"{}")
            writer.write(answer)
        await reader.read()

    return serve


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_with_more_than_a_response_or_at_its_end_serves_no_other_request(answer: bytes) -> None:
    """Where it were kept, the second request would get what followed the first response, or none."""
    async with serving(answering(answer)) as url, sockets() as connections:
        assert [await within(30, post(connections, url)) for _ in range(2)] == [b"ok", b"ok"]


async def test_what_a_server_sends_unasked_closes_its_idle_connection() -> None:
    go_on, has_left = asyncio.Event(), asyncio.Event()

    async def unasked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(OK)
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await reader.read()
        has_left.set()

    async with serving(unasked) as url, sockets() as connections:
        assert await post(connections, url) == b"ok"
        go_on.set()
        await within(30, has_left.wait())
        assert await post(connections, url) == b"ok"


async def test_idle_connections_beyond_a_number_are_closed() -> None:
    all_there = asyncio.Barrier(IDLE_MAX + 5)
    left = 0

    async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        await reader.readuntil(b"{}")
        await all_there.wait()
        writer.write(OK)
        await reader.read()
        left += 1

    async with serving(together) as url, sockets(connections_max=IDLE_MAX + 5) as connections:
        await asyncio.gather(*(post(connections, url) for _ in range(IDLE_MAX + 5)))
        await until(lambda: left == 5)
        assert len(connections._idle) == IDLE_MAX


async def test_a_connection_that_was_idle_for_too_long_is_replaced() -> None:
    server = Kept()
    tls = ssl.create_default_context()
    connections = Connections(tls, connections_max=8, idle_max=8, keep_alive_s=-1.0)
    async with serving(server) as url:
        assert [await post(connections, url) for _ in range(3)] == [b"ok"] * 3
        await until(lambda: server.connections == 3)
        connections.close()
        await asyncio.sleep(0)


async def test_an_idle_connection_makes_room_for_one_to_another_server() -> None:
    first, second = Kept(), Kept()
    async with serving(first) as one, serving(second) as other, sockets(connections_max=1) as connections:
        for _ in range(3):
            assert await post(connections, one) == b"ok"
            assert await post(connections, other) == b"ok"
        assert (first.connections, second.connections) == (3, 3)


async def test_a_request_that_waits_for_a_place_gets_the_next_that_is_free() -> None:
    server = Kept()
    async with serving(server) as url, sockets(connections_max=2) as connections:
        assert await asyncio.gather(*(post(connections, url) for _ in range(20))) == [b"ok"] * 20
    assert server.connections == 2


async def test_requests_end_with_their_pool() -> None:
    waiting = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nso far")  # its end is that of the connection
        await writer.drain()
        waiting.set()
        await reader.read()

    async with serving(pour) as url, sockets() as connections:
        running = asyncio.create_task(post(connections, url))
        await waiting.wait()
        connections.close()
        with pytest.raises(WireError) as broken:
            await within(30, running)
    assert broken.value.breakage is Breakage.BROKEN


async def test_a_server_that_takes_no_more_of_a_request_is_given_up() -> None:
    async def stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()

    gone = asyncio.Event()
    async with serving(stop_reading) as url, sockets() as connections:
        hasty = Times(connect_s=10, read_s=None, write_s=0.1, pool_s=10)
        with pytest.raises(WireError) as silent:
            await within(30, post(connections, url, b"x" * 50_000_000, hasty))
        gone.set()
    assert silent.value.breakage is Breakage.SILENT
    assert silent.value.was_sent


async def test_an_answer_before_the_request_was_taken_is_read_and_the_connection_not_kept() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await gone.wait()

    gone = asyncio.Event()
    async with serving(refuse) as url, sockets() as connections:
        assert await within(30, post(connections, url, b"x" * 50_000_000)) == b"ok"
        assert await within(30, post(connections, url, b"x" * 50_000_000)) == b"ok"
        gone.set()


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "a\0b", "世界"])
async def test_a_field_that_no_head_can_hold_is_not_sent(value: str) -> None:
    server = Kept()
    async with serving(server) as url, sockets() as connections:
        with pytest.raises(WireError):
            await connections.send(HttpRequest("POST", place_of(url), {"x-name": value}, b"{}"))
        with pytest.raises(WireError):
            await connections.send(HttpRequest("POST", place_of(url), {f"x-{value}": "a"}, b"{}"))
    assert server.connections == 0


async def test_the_next_address_of_a_name_is_tried_where_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    loop = asyncio.get_running_loop()
    tried: list[str] = []
    create_connection = loop.create_connection

    async def note_and_connect(made: Any, host: str, port: int, **more: Any) -> Any:
        tried.append(host)
        return await create_connection(made, host, port, **more)

    monkeypatch.setattr(loop, "getaddrinfo", addresses)
    monkeypatch.setattr(loop, "create_connection", note_and_connect)
    async with serving(Kept()) as url, sockets() as connections:
        named = url.replace("127.0.0.1", "two.example")
        assert await post(connections, named) == b"ok"
        for connection in [*connections._open]:
            connection.abort()
        assert await post(connections, named) == b"ok"
    assert tried == ["127.0.0.2", "127.0.0.1", "127.0.0.1"], "then the one that answered"


async def test_a_connection_is_closed_that_carries_a_byte_at_a_time_for_ever() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        await reader.read()

    async with serving(drip) as url, sockets() as connections:
        response = await connections.send(HttpRequest("POST", place_of(url), {}, b"{}"))
        (connection,) = connections._open

        async def read_all() -> None:
            for _ in range(100_000):
                connection.data_received(b"x")
                assert await response.pull() == b"x"

        with pytest.raises(WireError) as crumbled:
            await read_all()
    assert crumbled.value.breakage is Breakage.CRUMBLED
