"""A loopback HTTP server that answers with the very bytes it is given, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolhub_service.domain.verdict import EgressRule

LOOPBACK = ("127.0.0.0/8",)
ALL_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    """The rest of the connection."""


Answer = Callable[[RecordedRequest, asyncio.StreamWriter], Awaitable[bool | None]]
"""Writes the response; False closes the connection afterwards."""


@dataclass
class RawServer:
    """What happened at the server."""

    port: int = 0
    scheme: str = "http"
    asked: list[RecordedRequest] = field(default_factory=list)
    connections: int = 0
    """Accepted so far."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed its connection."""

    def url(self, target: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{target}"

    def rule(self, *hosts: str, methods: frozenset[str] = ALL_METHODS) -> EgressRule:
        """A rule that opens this server, by its address or by the names given."""
        return EgressRule(hosts or ("127.0.0.1",), ports=frozenset({self.port}), methods=methods, cidrs=LOOPBACK)


def response(body: bytes = b"", *, status: int = 200, **headers: str) -> bytes:
    """The bytes of a response with a Content-Length; header names with underscores for hyphens."""
    fields = {"content-length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode() + body


def always(raw: bytes, *, keep: bool = True) -> Answer:
    """The same bytes for every request."""

    async def answer(_: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(raw)
        await writer.drain()
        return keep

    return answer


def by_target(answers: dict[str, bytes]) -> Answer:
    """Bytes by request target."""

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answers[asked.target])
        await writer.drain()

    return answer


def silent_after(raw: bytes) -> Answer:
    """These bytes, then nothing until the client has gone."""

    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(raw)
        await asked.reader.read()
        return False

    return answer


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """A server on a free port of 127.0.0.1."""
    state = RawServer(scheme="https" if tls else "http")
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        open_writers.add(writer)
        try:
            while (asked := await next_request(reader)) is not None:
                state.asked.append(asked)
                state.arrived.set()
                if await answer(asked, writer) is False:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            state.gone.set()
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        # Python 3.12 and later wait for connections that clients keep open.
        for writer in open_writers:
            writer.transport.abort()
        await server.wait_closed()


async def next_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    """The next request of a connection; None when the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method, target, headers, body, reader)
