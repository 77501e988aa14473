"""Connections of the MCP port under an application of the test's own: framing of answers, waiting, breaking off."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from toolhub_service.guards.accepting import Accepted, Acceptor
from toolhub_service.mcp_server.http.connection import Connections

App = Callable[[Any, Any, Any], Awaitable[None]]
CLOSE = b"Connection: close\r\n"
LARGE = b"x" * 300_000


def asking(method: bytes = b"GET", path: bytes = b"/", version: bytes = b"HTTP/1.1", more: bytes = b"") -> bytes:
    return method + b" " + path + b" " + version + b"\r\nHost: a\r\n" + more + b"\r\n"


@asynccontextmanager
async def served(app: App, head_s: float = 60.0) -> AsyncIterator[tuple[int, Connections]]:
    connections = Connections(app, head_s)

    async def connect(accepted: Accepted) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connections.add(accepted), accepted.socket)

    bound = socket.create_server(("127.0.0.1", 0))
    port = int(bound.getsockname()[1])
    acceptor = Acceptor([bound], connect, max_connections=10, first_byte_s=60.0)
    acceptor.start()
    try:
        yield port, connections
    finally:
        acceptor.close()
        await connections.close(0.0)


async def answer_to(port: int, *sent: bytes) -> bytes:
    """All that comes until the connection is closed, without the date."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            for each in sent:
                writer.write(each)
                await writer.drain()
            lines = (await reader.read()).split(b"\r\n")
            return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))
    finally:
        writer.transport.abort()


def answering(*parts: bytes, status: int = 200, headers: Any = ()) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


SIZED = [(b"content-length", b"4")]
ANSWERS: dict[str, tuple[App, bytes, bytes]] = {
    "a length": (
        answering(b"ab", b"cd", headers=SIZED),
        asking(more=CLOSE),
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd",
    ),
    "no length": (
        answering(b"ab", b"", b"cd"),
        asking(more=CLOSE),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n",
    ),
    "no length, for HTTP/1.0, which knows no chunks": (
        answering(b"ab", b"cd"),
        asking(version=b"HTTP/1.0", more=b"Connection: keep-alive\r\n"),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabcd",
    ),
    "HEAD": (
        answering(b"abcd", headers=SIZED),
        asking(b"HEAD", more=CLOSE),
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n",
    ),
    "204": (answering(status=204), asking(more=CLOSE), b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"),
    "close among other words": (
        answering(b"abcd", headers=SIZED),
        asking(more=b"Connection: TE, Close\r\n"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd",
    ),
    "an application that closes": (
        answering(b"abcd", headers=[*SIZED, (b"connection", b"close")]),
        asking(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd",
    ),
    "a large one": (
        answering(LARGE, headers=[(b"content-length", b"%d" % len(LARGE))]),
        asking(more=CLOSE),
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(LARGE), LARGE),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_ends_where_its_reader_expects_it(name: str) -> None:
    app, request, answer = ANSWERS[name]
    async with served(app) as (port, _):
        assert await answer_to(port, request) == answer


async def _fails(*_: Any) -> None:
    raise ValueError("a secret")


async def _returns(*_: Any) -> None:
    return


async def _begins(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ab", "more_body": True})
    raise ValueError("a secret")


BROKEN = (b"500 Internal", b"content-length: 0")
FAILURES: dict[str, tuple[App, tuple[bytes, ...]]] = {
    "one that fails": (_fails, BROKEN),
    "one that sends nothing": (_returns, BROKEN),
    "one that fails in its answer": (_begins, (b"200 OK", b"\r\n2\r\nab\r\n")),
    "an answer that is too long": (answering(b"abcde", headers=SIZED), BROKEN),
    "an answer that is too short": (answering(b"abc", headers=SIZED), (b"200 OK", b"\r\nabc")),
    "a header of two lines": (answering(headers=[(b"x", b"a\r\nset-cookie: b")]), BROKEN),
    "a name of two lines": (answering(headers=[(b"x\n", b"a")]), BROKEN),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_application_that_fails_closes_its_connection_and_says_no_reason(name: str) -> None:
    app, parts = FAILURES[name]
    async with served(app) as (port, _):
        answer = await answer_to(port, asking())
        assert all(part in answer for part in parts), answer
        assert b"secret" not in answer
        assert b"cookie" not in answer
        assert not answer.endswith(b"\r\n0\r\n\r\n"), "the answer is not whole"


async def _gives_back(scope: Any, receive: Any, send: Any) -> None:
    """Gives back what it has read, and how the request asked for it."""
    content, more = b"", True
    while more:
        message = await receive()
        content += message["body"]
        more = message["more_body"]
    said = f"{scope['path']} {scope['raw_path'].decode()} {scope['query_string'].decode()} {len(content)}\n".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


async def test_requests_on_one_connection_are_answered_in_order_each_with_its_own_body() -> None:
    async with served(_gives_back) as (port, _):
        bodies = (b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n")
        sent = asking(b"POST", b"/a%20b?c=%20d", more=bodies[0]) + b"abc"
        sent += asking(b"POST", b"/2", more=bodies[1]) + b"2\r\nab\r\n2;x=y\r\ncd\r\n0\r\n\r\n"
        answer = await answer_to(port, sent + asking(path=b"/3") + asking(path=b"/4", more=CLOSE))
        said = re.findall(rb"^/.*$", answer, re.MULTILINE)
        assert said == [b"/a b /a%20b c=%20d 3", b"/2 /2  4", b"/3 /3  0", b"/4 /4  0"]


async def test_a_body_of_which_nothing_is_read_waits_with_its_sender() -> None:
    reading = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reading.wait()
        await _gives_back(scope, receive, send)

    size = 50_000_000
    async with served(app) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asking(b"POST", more=CLOSE + b"content-length: %d\r\n" % size))
        writer.write(b"x" * size)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert writer.transport.get_write_buffer_size() > size / 2
        reading.set()
        async with asyncio.timeout(60):
            assert (await reader.read()).endswith(b" %d\n" % size)
        writer.close()


async def test_a_client_that_waits_for_permission_gets_it_only_from_who_reads_the_body() -> None:
    waiting = asking(b"POST", more=CLOSE + b"Expect: 100-Continue\r\ncontent-length: 3\r\n")
    async with served(_gives_back) as (port, _), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(waiting)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.read()).endswith(b" 3\n")
        writer.close()
    async with served(answering(status=401)) as (port, _):
        assert (await answer_to(port, waiting)).startswith(b"HTTP/1.1 401 ")


async def test_what_a_request_sets_is_unknown_to_the_next_one_of_its_connection() -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(caller.get())
        caller.set("alice")
        await answering(status=204)(scope, receive, send)

    async with served(app) as (port, _):
        await answer_to(port, asking() * 3 + asking(more=CLOSE))
    assert seen == ["nobody"] * 4


async def test_an_application_learns_that_its_client_has_gone() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            told.put_nowait((await receive())["type"])
        await answering(b"nobody reads this")(scope, receive, send)

    async with served(app) as (port, _), asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asking())
        assert await told.get() == "http.request"
        writer.transport.abort()
        assert await told.get() == "http.disconnect"


async def test_what_begins_and_does_not_go_on_is_cut_off() -> None:
    early = asking(b"POST", more=b"content-length: 10\r\n") + b"{"
    async with served(answering(status=401), head_s=0.05) as (port, _):
        assert await answer_to(port, b"GET / HT") == b""
        assert await answer_to(port, asking() + b"GET / HT") == ANSWERED
        assert await answer_to(port, early, b"{") == ANSWERED


ANSWERED = b"HTTP/1.1 401 Unauthorized\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"


async def test_at_the_end_idle_connections_are_closed_and_answers_still_arrive() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/held":
            begun.set()
            await go_on.wait()
        await answering(b"done")(scope, receive, send)

    async with served(app) as (port, connections), asyncio.timeout(60):
        idle, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asking())
        await idle.readuntil(b"0\r\n\r\n")
        held = asyncio.create_task(answer_to(port, asking(path=b"/held")))
        await begun.wait()
        closing = asyncio.create_task(connections.close(60.0))
        assert await idle.read() == b""
        writer.close()
        go_on.set()
        answer = await held
        assert b"connection: close" in answer
        assert answer.endswith(b"4\r\ndone\r\n0\r\n\r\n")
        await closing
