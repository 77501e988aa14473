"""An MCP server whose tools never answer, but flood: each is one shape of what costs a client more than it weighs.

    python -m tests.fakes.mcp_servers.floods http|stdio modern|legacy

Over HTTP it prints its URL. `echo` is a tool that answers, so that a caller can see that the server lives.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.fakes.mcp_servers.scripted import LEGACY, MODERN, Script, tool

_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
_LINES = 4_000
"""Repetitions in one write."""


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def _pings() -> Iterator[bytes]:
    number = 0
    while True:
        yield b"".join(_event({"id": f"p-{number + at}", "method": "ping"}) for at in range(_LINES // 10))
        number += _LINES // 10


def _same(head: bytes, piece: bytes, times: int = _LINES) -> Iterator[bytes]:
    yield head
    while True:
        yield piece * times


def _gzipped_events() -> Iterator[bytes]:
    """29 kB that unfold into ten million empty events."""
    yield _SSE + b"content-encoding: gzip\r\n\r\n"
    yield gzip.compress(b"data:\n\n" * 4_000_000)
    yield from _silence()


def _silence() -> Iterator[bytes]:
    while True:
        yield b""


def _progress(token: object) -> Iterator[bytes]:
    news = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
    yield from _same(b"", _event(news), _LINES // 10)


Shape = Callable[[object], Iterator[bytes]]

HTTP: dict[str, Shape] = {
    "chunks": lambda _: _same(_JSON + _CHUNKED + b"1\r\n{\r\n", b"1\r\n \r\n"),
    "chunked_events": lambda _: _same(_SSE + _CHUNKED, b"1\r\n:\r\n1\r\n\n\r\n"),
    "extensions": lambda _: _same(_JSON + _CHUNKED, b"1;" + b"a" * 2_000 + b"\r\n \r\n", 100),
    "gzipped_events": lambda _: _gzipped_events(),
    "empty_events": lambda _: _same(_SSE + b"\r\n", b"data:\n\n"),
    "comments": lambda _: _same(_SSE + b"\r\n", b":\n\n"),
    "long_comments": lambda _: _same(_SSE + b"\r\n", b": " + b"x" * 200 + b"\n\n"),
    "names": lambda _: _same(_SSE + b"\r\n", b"event: message\nid: 1\n\n"),
    "heads": lambda _: _same(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "fields": lambda _: _same(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "pings": lambda _: iter_after(_SSE + b"\r\n", _pings()),
    "progress": lambda token: iter_after(_SSE + b"\r\n", _progress(token)),
}
"""What `tools/call` is answered with, by tool."""

PIPES: dict[str, Shape] = {
    "objects": lambda _: _same(b"", b"{}\n"),
    "lists": lambda _: _same(b"", b"[]\n"),
    "numbers": lambda _: _same(b"", b"1\n"),
    "blank_lines": lambda _: _same(b"", b" \n"),
    "unknown_answers": lambda _: _same(b"", b'{"jsonrpc":"2.0","id":"nobody","result":{}}\n', 500),
    "notices": lambda _: iter([b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n' * 6_000]),
    "pings": lambda _: (event.replace(b"event: message\ndata: ", b"").replace(b"\n\n", b"\n") for event in _pings()),
}

OF_GET = "comments"
"""With the word `standing`, what the standalone stream (GET, 2025-11-25) is flooded with."""


def iter_after(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from pieces


def tools(over: str) -> list[dict[str, Any]]:
    return [tool("echo"), *(tool(name) for name in (HTTP if over == "http" else PIPES))]


@asynccontextmanager
async def flooding(generation: str, *words: str) -> AsyncIterator[str]:
    """The server as a process, over HTTP; its URL."""
    argv = ("-m", "tests.fakes.mcp_servers.floods", "http", generation, *words)
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def _serve_http(script: Script, *, standing: bool) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            await _exchange(script, reader, writer, standing=standing)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _exchange(
    script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, standing: bool
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next((line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")), "0")
    body = await reader.readexactly(int(length))
    if head.startswith("get") and standing:
        await _flood(writer, HTTP[OF_GET](None))
    if not head.startswith("post"):
        writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        return
    message = json.loads(body)
    if "id" not in message or "method" not in message:
        if standing or "method" in message:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        await asyncio.Event().wait()  # an answer of the hub's is never taken
    name = (message.get("params") or {}).get("name")
    if message["method"] == "tools/call" and name in HTTP:
        meta = message["params"].get("_meta") or {}
        await _flood(writer, HTTP[name](meta.get("progressToken")))
    session = b"mcp-session-id: s-1\r\n" if message["method"] == "initialize" else b""
    answer = json.dumps(await script.answer(message, _nowhere)).encode()
    writer.write(_JSON + session + b"content-length: %d\r\n\r\n" % len(answer) + answer)
    await writer.drain()


async def _nowhere(_: dict[str, Any]) -> None: ...


async def _flood(writer: asyncio.StreamWriter, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0 if piece else 0.1)


async def _serve_pipes(script: Script) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        name = (message.get("params") or {}).get("name")
        if message["method"] == "tools/call" and name in PIPES:
            with suppress(OSError):
                for piece in PIPES[name](None):
                    await loop.run_in_executor(None, sys.stdout.buffer.write, piece)
                    sys.stdout.buffer.flush()
            continue
        os.write(1, json.dumps(await script.answer(message, _nowhere)).encode() + b"\n")


if __name__ == "__main__":
    over, generation, *words = sys.argv[1:]
    assert generation in ("modern", "legacy"), f"{MODERN} or {LEGACY}"
    made = Script(generation=generation, pages=[tools(over)])
    asyncio.run(_serve_http(made, standing="standing" in words) if over == "http" else _serve_pipes(made))
