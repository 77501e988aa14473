"""How the hostile server is reached: lines on standard input and output, and HTTP as bare as it can be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

Message = dict[str, Any]
_LINE_MAX_BYTES = 64 * 1024 * 1024


class Wire:
    """Where the messages of one request go, or those of a whole connection."""

    def __init__(
        self, writer: asyncio.StreamWriter, *, head: bytes = b"", opening: bytes = b"", closing: bytes = b"\n"
    ) -> None:
        self._writer = writer
        self._head = head
        self._opening = opening
        self._closing = closing
        self._one_at_a_time = asyncio.Lock()

    async def raw(self, data: bytes) -> None:
        """Without any frame."""
        head, self._head = self._head, b""
        self._writer.write(head + data)
        await self._writer.drain()

    async def send(self, message: object) -> None:
        await self.stream((json.dumps(message).encode(),))

    async def stream(self, parts: Iterable[bytes]) -> None:
        """One message, never whole in memory."""
        async with self._one_at_a_time:
            await self.raw(self._opening)
            for part in parts:
                await self.raw(part)
            await self.raw(self._closing)

    def complain(self, text: str) -> None:
        """On standard error, where it is the server's own."""

    def cut(self) -> None:
        """Break the connection off; over stdio with the whole process."""
        self._writer.transport.abort()


class _StandardOutput(Wire):
    def complain(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def cut(self) -> None:
        os._exit(3)


class Server(Protocol):
    """What both ways lead to."""

    @property
    def words(self) -> set[str]: ...

    async def answer(self, request: Message, wire: Wire) -> None: ...

    async def listen(self, wire: Wire, meta: Message) -> None:
        """Returns when cancelled."""
        ...


async def serve_stdio(server: Server) -> None:
    """Until standard input ends; with the word `undead` until it is killed."""
    loop = asyncio.get_running_loop()
    if "undead" in server.words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reader = asyncio.StreamReader(_LINE_MAX_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    wire = _StandardOutput(asyncio.StreamWriter(transport, protocol, None, loop))
    running: dict[Any, asyncio.Future[None]] = {}
    while line := await reader.readline():
        message = json.loads(line)
        if "id" in message and "method" in message:
            running[message["id"]] = asyncio.create_task(server.answer(message, wire))
        elif message.get("method") == "notifications/initialized":
            running["listening"] = asyncio.create_task(server.listen(wire, {}))
        elif message.get("method") == "notifications/cancelled" and "deaf" not in server.words:
            running.pop(message["params"].get("requestId"), asyncio.Future()).cancel()
    if "undead" in server.words:
        await asyncio.Event().wait()
    os._exit(0)


@asynccontextmanager
async def serving_http(server: Server, port: int = 0) -> AsyncIterator[str]:
    """The endpoint's URL, on the loopback."""
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_connection(server, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(connected, "127.0.0.1", port, limit=_LINE_MAX_BYTES)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _connection(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request each."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        await _until_gone(server, reader, _exchange(server, head[0].split(" ")[0], body, writer))
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _until_gone(server: Server, reader: asyncio.StreamReader, exchange: Any) -> None:
    """Ends early when the client has gone, which is how it cancels; one who is deaf to that goes on in vain."""
    answering, leaving = asyncio.ensure_future(exchange), asyncio.ensure_future(reader.read())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if "deaf" in server.words:
            await asyncio.wait((answering,))
        if answering.done():
            answering.result()
    finally:
        for task in (answering, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task


async def _exchange(server: Server, method: str, body: bytes, writer: asyncio.StreamWriter) -> None:
    message = json.loads(body) if body else {}
    if trouble := next((_TROUBLES[word] for word in sorted(server.words & _TROUBLES.keys())), None):
        await Wire(writer).raw(trouble)
        if trouble.endswith(_SILENCE):
            await asyncio.Event().wait()
    elif method == "GET":
        await server.listen(_events(writer), {})
    elif method == "POST" and "id" in message and "method" in message:
        streams = message["method"] in {"tools/call", "subscriptions/listen"} and "json" not in server.words
        await server.answer(message, _events(writer) if streams else _document(writer))
    else:
        await Wire(writer).raw(_head(202 if method == "POST" else 200, content_length="0"))


def _head(status: int, **fields: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\nconnection: close\r\nmcp-session-id: one\r\n{lines}\r\n".encode()


def _events(writer: asyncio.StreamWriter) -> Wire:
    head = _head(200, content_type="text/event-stream", cache_control="no-cache")
    return Wire(writer, head=head, opening=b"event: message\ndata: ", closing=b"\n\n")


def _document(writer: asyncio.StreamWriter) -> Wire:
    return Wire(writer, head=_head(200, content_type="application/json"), closing=b"")


_SILENCE = b'{"jsonrpc": "2.0", "id"'
_TROUBLES = {
    "http-redirect": _head(307, location="http://127.0.0.1:1/elsewhere", content_length="0"),
    "http-401": _head(401, www_authenticate='Bearer resource_metadata="http://127.0.0.1:1/x"', content_length="0"),
    "http-500": _head(500, content_type="text/html", content_length="6") + b"<html>",
    "http-html": _head(200, content_type="text/html", content_length="6") + b"<html>",
    "http-half": _head(200, content_type="application/json", content_length="1000") + _SILENCE,
    "http-no-head": b"\x16\x03\x01\x02\x00 not HTTP at all\r\n\r\n",
}
"""What is said instead of any answer."""
