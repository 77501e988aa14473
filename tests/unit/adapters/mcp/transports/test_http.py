from __future__ import annotations

import asyncio
import gzip
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import orjson
import pytest
from mcp import MCPError

from tests.fakes.tls import server_and_client_tls
from tests.kills import KILLS
from tests.unit.adapters.mcp.links import (
    at,
    call,
    descriptors,
    linked,
    plain_http,
    scripted_http,
    soon,
    text_of,
    until,
    within,
)
from tests.unit.adapters.mcp.mock_server import answer_to, sending_to
from toolhub_service.adapters.mcp.failures import Breakage, breakage_of
from toolhub_service.adapters.mcp.messages.http import origin_of
from toolhub_service.adapters.mcp.transports.http import BoundedTransport
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.sections.source_config import ClientTls

Answer = Callable[[str, dict[str, str], bytes], bytes]


@asynccontextmanager
async def elicitation_callback(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers each request with the bytes that `answer(verb and path, headers, body)` gives."""

    connections: list[asyncio.StreamWriter] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a connection that the client closed without a request
            writer.close()
            return
        verb, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        writer.write(answer(verb.rpartition(" ")[0], headers, body))
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        for connection in connections:
            connection.close()
            with suppress(ConnectionError, ssl.SSLError):
                await connection.wait_closed()


def http(body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = [
        f"HTTP/1.1 {status}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def handshake(body: bytes, tool: Callable[[object], bytes]) -> bytes:
    """An older server that answers each call with what `tool` makes of its id."""
    message = orjson.loads(body)
    own = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        return http(orjson.dumps({**own, "result": result}))
    if message["method"] == "tools/call":
        return tool(message["id"])
    if "id" not in message:
        return http(b"", status="202 Accepted")
    return http(orjson.dumps({**own, "error": {"code": -32601, "message": "no"}}))


def fails(_verb: str, _headers: dict[str, str], body: bytes) -> bytes:
    return handshake(body, lambda _: http(b"", status="500 Oops"))


async def broken_call(url: str, **more: object) -> Breakage | None:
    """How the one call of a connection broke; the connection itself must stay."""
    async with linked(at(url, protocol="2025-11-25", **more)) as link:
        session = await link.session(soon())
        with pytest.raises(MCPError) as failure:
            await within(30, call(session, "any"))
        assert link.is_connected
        return breakage_of(failure.value)


@pytest.mark.promise("mcp.one-call-fails")
@pytest.mark.parametrize(
    ("reply", "breakage"),
    [
        (http(b"[" + b"1," * 100_000 + b"1]"), Breakage.TOO_LARGE),
        (http(gzip.compress(b" " * 30_000_000), "content-encoding: gzip"), Breakage.TOO_LARGE),
        (http(b"data: " + b"x" * 200_000, kind="text/event-stream"), Breakage.TOO_LARGE),
        (
            http(gzip.compress(b"data: " + b" " * 30_000_000), "content-encoding: gzip", kind="text/event-stream"),
            Breakage.TOO_LARGE,
        ),
        (http(b"\x00", "content-encoding: br"), Breakage.UNDECODABLE),
        (http(b"not gzip", "content-encoding: gzip"), Breakage.UNDECODABLE),
        (http(b"data: x", "content-encoding: gzip", kind="text/event-stream"), Breakage.UNDECODABLE),
        (http(b"", status="500 Oops"), Breakage.STATUS),
        (http(b"<html>", status="502 Bad Gateway", kind="text/html"), Breakage.STATUS),
        (http(b"", status="429 Slow Down"), Breakage.BUSY),
        (http(b"", status="401 Who"), Breakage.UNAUTHORIZED),
        (http(b"", "location: http://169.254.169.254/mcp", status="307 Over There"), Breakage.REFUSED),
        (http(b"", "location: http://[nonsense", status="307 Over There"), Breakage.REFUSED),
        (b"", Breakage.LOST),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{", Breakage.LOST),
        (b"not HTTP at all\r\n\r\n", Breakage.LOST),
    ],
)
async def test_a_transport_failure_fails_its_call_and_is_reported_by_its_kind(reply: bytes, breakage: Breakage) -> None:
    async with elicitation_callback(lambda _verb, _headers, body: handshake(body, lambda _: reply)) as url:
        assert await broken_call(url, max_message_bytes=100_000) is breakage


async def test_a_server_cannot_imitate_messages_of_the_transport() -> None:
    error = {"code": -32000, "message": "x", "data": {"mark": "guess", "breakage": "NOT_SENT"}}

    def imitates(id: object) -> bytes:
        return http(orjson.dumps({"jsonrpc": "2.0", "id": id, "error": error}))

    async with elicitation_callback(lambda _verb, _headers, body: handshake(body, imitates)) as url:
        assert await broken_call(url) is None


async def test_events_come_through_whole_and_only_one_that_is_too_large_fails() -> None:
    small = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"' + b"y" * 900

    def tool(id: object) -> bytes:
        result = orjson.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "last"}]}})
        return http((small + b'"}}\r\n\r\n') * 500 + b"data: " + result + b"\n\n", kind="text/event-stream")

    async with (
        elicitation_callback(lambda _verb, _headers, body: handshake(body, tool)) as url,
        linked(at(url, protocol="2025-11-25", max_message_bytes=2_000)) as link,
    ):
        assert text_of(await call(await link.session(soon()), "any")) == "last"


async def test_headers_are_sent_and_no_cookie_is_kept() -> None:
    seen: list[dict[str, str]] = []

    def answer(_verb: str, headers: dict[str, str], body: bytes) -> bytes:
        seen.append(headers)
        return handshake(body, lambda _: http(b"", status="500 Oops")).replace(
            b"\r\nconnection", b"\r\nset-cookie: a=b\r\nconnection", 1
        )

    async with elicitation_callback(answer) as url:
        await broken_call(url, headers={"Authorization": "Bearer t0ken", "x-team": "core"})
    assert len(seen) >= 3
    assert all(headers["authorization"] == "Bearer t0ken" and headers["x-team"] == "core" for headers in seen)
    assert not any("cookie" in headers for headers in seen)


@pytest.mark.promise("mcp.credentials-stay")
async def test_an_origin_that_is_not_named_is_not_dialled() -> None:
    dialled: list[str] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        dialled.append(str(request.url))
        return httpx2.Response(200, json={})

    origins = frozenset({origin_of(httpx2.URL("https://a.example/mcp"))})
    transport = BoundedTransport(sending_to(answer), origins, 1_000, lambda _: None)
    for url in ("https://a.example:444/", "http://a.example/", "https://b.example/", "https://a.example.b.example/"):
        response = await answer_to(transport, httpx2.Request("GET", url))
        assert orjson.loads(await response.aread())["error"]["data"]["breakage"] == "REFUSED"
    assert (await answer_to(transport, httpx2.Request("GET", "https://A.example:443/x"))).status_code == 200
    assert dialled == ["https://a.example/x"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/mcp", "refuses connections"),
        ("http://no-such-host.invalid/mcp", "does not resolve"),
    ],
)
async def test_a_server_that_cannot_be_reached_is_unavailable_with_its_reason(url: str, reason: str) -> None:
    async with linked(at(url)) as link:
        with pytest.raises(ToolFailure) as failure:
            await within(30, link.session(soon()))
        assert failure.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
        assert reason in failure.value.error.message


async def test_a_server_that_never_answers_is_reported_within_the_time_to_connect() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        async with linked(at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connect_timeout_s=0.5)) as link:
            with pytest.raises(ToolFailure) as failure:
                await within(30, link.session(soon()))
            assert "within 0.5 s" in failure.value.error.message
        for connection in connections:
            connection.close()
            with suppress(ConnectionError):
                await connection.wait_closed()


async def test_tls_trusts_the_named_ca_alone(tmp_path: Path) -> None:
    server, _ = server_and_client_tls(tmp_path, "127.0.0.1")
    async with elicitation_callback(fails, server) as url:
        async with linked(at(url, protocol="2025-11-25")) as link:
            with pytest.raises(ToolFailure) as failure:
                await link.session(soon())
            assert "certificate is not trusted" in failure.value.error.message
        named = url.replace("127.0.0.1", "localhost")
        async with linked(at(named, protocol="2025-11-25", tls=ClientTls(ca_file="/no/such.pem"))) as link:
            with pytest.raises(ToolFailure) as failure:
                await link.session(soon())
            assert "TLS file" in failure.value.error.message


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    server, _ = server_and_client_tls(tmp_path, "localhost")
    pem = str(tmp_path / "server.pem")
    server.load_verify_locations(pem)
    server.verify_mode = ssl.CERT_REQUIRED
    async with elicitation_callback(fails, server) as url:
        named = url.replace("127.0.0.1", "localhost")
        shown = ClientTls(ca_file=pem, certificate_file=pem, key_file=pem)
        assert await broken_call(named, tls=shown) is Breakage.STATUS
        async with linked(at(named, protocol="2025-11-25", tls=ClientTls(ca_file=pem))) as link:
            with pytest.raises(ToolFailure):
                await within(30, link.session(soon()))


@pytest.mark.promise("mcp.heals")
async def test_a_restart_of_a_modern_server_costs_the_calls_in_flight_and_nothing_else() -> None:
    async with scripted_http("modern") as server, linked(at(server.url)) as link:
        session = await link.session(soon())
        waiting = asyncio.create_task(call(session, "hangs"))
        await call(session, "echo", text="the other is under way")
        await server.kill()
        with pytest.raises(MCPError):
            await within(30, waiting)
        with pytest.raises(MCPError) as failure:
            await within(30, call(session, "echo", text="dead"))
        assert breakage_of(failure.value) is Breakage.NOT_SENT
        await server.start()
        assert text_of(await call(session, "echo", text="back")) == "back"
        assert link.connects == 1


@pytest.mark.promise("mcp.heals")
async def test_a_restart_of_an_older_server_is_noticed_by_its_unknown_session() -> None:
    async with plain_http("--generation", "2025-11-25") as server, linked(at(server.url)) as link:
        session = await link.session(soon())
        assert not session.is_modern
        await server.kill()
        await server.start()
        with pytest.raises(MCPError) as failure:
            await within(30, call(session, "echo", text="to the old session"))
        assert breakage_of(failure.value) is Breakage.NO_SESSION
        again = await link.session(soon())
        assert link.connects == 2
        assert text_of(await call(again, "echo", text="back")) == "back"


@pytest.mark.parametrize("generation", ["modern", "legacy"])
async def test_many_kills_leave_nothing_behind(generation: str) -> None:
    async with scripted_http(generation) as server, linked(at(server.url)) as link:
        await link.session(soon())
        before, tasks = descriptors(), len(asyncio.all_tasks())
        for round_ in range(KILLS if generation == "modern" else min(KILLS, 10)):
            session = await link.session(soon())
            assert text_of(await call(session, "echo", text=f"{round_}")) == f"{round_}"
            waiting = asyncio.create_task(call(session, "hangs"))
            await call(session, "echo", text="the other is under way")
            await server.kill()
            with pytest.raises(MCPError):
                await within(30, waiting)
            await server.start()
        await until(lambda: descriptors() <= before + 2)
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 1)


async def test_a_server_that_is_stopped_delays_no_deadline() -> None:
    async with plain_http() as server, linked(at(server.url)) as link:
        session = await link.session(soon())
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                await within(0.5, call(session, "echo", text="x"))
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert text_of(await within(30, call(session, "echo", text="y"))) == "y"
