"""What hostile MCP clients do, over raw connections: one round of each, `count` times, and all of it let go again.

Each takes the port, an API key and how much, and raises AssertionError when it was not answered as it must be, for then
its figures would be those of something else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

ERA, ERA_BEFORE = "2026-07-28", "2025-11-25"
LONG_TOOL = "core__util_text_truncate"
_META = "io.modelcontextprotocol/"
_PIECE = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
_GIGABYTE = 2**30
_LONG_CHARS = 100_000
_PATIENCE_S = 60.0
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attack = Callable[[int, str, int], Awaitable[None]]


def request(
    key: str, method: str, params: dict[str, Any], *, name: str = "", request_id: Any = 1, host: str = "127.0.0.1",
    more: Iterable[str] = (),
) -> bytes:  # fmt: skip
    """A POST of 2026-07-28."""
    meta = {"protocolVersion": ERA, "clientInfo": {"name": "x", "version": "1"}, "clientCapabilities": {}}
    sent = {**params, "_meta": {_META + each: value for each, value in meta.items()}}
    lines = [f"mcp-protocol-version: {ERA}", f"mcp-method: {method}", *([f"mcp-name: {name}"] if name else []), *more]
    return posted({"jsonrpc": "2.0", "id": request_id, "method": method, "params": sent}, key, lines, host)


def posted(body: Any, key: str, lines: Iterable[str], host: str = "127.0.0.1") -> bytes:
    data = json.dumps(body).encode()
    return head(key, host, *lines, f"content-length: {len(data)}") + data


def head(key: str, host: str, *lines: str, verb: str = "POST") -> bytes:
    accept = "application/json, text/event-stream"
    every = [f"{verb} /mcp HTTP/1.1", f"host: {host}", "content-type: application/json", f"accept: {accept}", *lines]
    if key:
        every.append(f"authorization: Bearer {key}")
    return "\r\n".join([*every, "", ""]).encode()


def call(key: str, tool: str, arguments: dict[str, Any], request_id: Any = 1) -> bytes:
    params = {"name": tool, "arguments": arguments}
    return request(key, "tools/call", params, name=tool, request_id=request_id)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """Cut off at the end, whatever is on its way."""
    async with asyncio.timeout(_PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Of the next answer, which is read to its end where it has a length; 0: the connection was closed."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        answered = await reader.readuntil(b"\r\n\r\n")
        if length := _LENGTH.search(answered):
            await reader.readexactly(int(length[1]))
        return int(answered.split(b" ", 2)[1])
    return 0


async def _each(count: int, one: Callable[[int], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(_awaited(one(number)))


async def _awaited(one: Awaitable[None]) -> None:
    await one


async def foreign_hosts(port: int, key: str, count: int) -> None:
    """A page that DNS has led here: its own name as Host, or its Origin."""
    async with connected(port) as (reader, writer):
        for number in range(count):
            host, more = ("evil.example", []) if number % 2 else ("127.0.0.1", ["origin: http://evil.example"])
            writer.write(request(key, "tools/list", {}, host=host, more=more))
            assert await status_of(reader) == (421 if number % 2 else 403)


async def many_streams(port: int, key: str, count: int) -> None:
    """Streams for changes, as many as can be had."""

    async def one(_: int) -> None:
        async with connected(port) as (reader, writer):
            writer.write(request(key, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
            status = await status_of(reader)
            assert status in (200, 503, 0), status
            await everybody.wait()

    everybody = asyncio.Barrier(count)
    await _each(count, one)


async def endless_bodies(port: int, key: str, count: int) -> None:
    """A gigabyte, declared or in pieces."""

    async def one(number: int) -> None:
        async with connected(port) as (reader, writer):
            if number % 2:
                writer.write(head(key, "127.0.0.1", f"content-length: {_GIGABYTE}"))
            else:
                writer.write(head(key, "127.0.0.1", "transfer-encoding: chunked"))
                answered = asyncio.ensure_future(reader.readuntil(b"\r\n"))
                with suppress(ConnectionError):
                    for _ in range(_GIGABYTE // len(_PIECE)):
                        if answered.done():
                            break
                        writer.write(_PIECE)
                        await writer.drain()
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    assert b" 413 " in await answered
                return
            assert await status_of(reader) in (413, 0)

    for first in range(0, count, 8):
        await _each(min(8, count - first), one)


async def deaf_readers(port: int, key: str, count: int) -> None:
    """Large answers, asked for one after the other on one connection, of which nothing is taken."""
    asked = call(key, LONG_TOOL, {"text": "x" * _LONG_CHARS, "maxChars": _LONG_CHARS})

    async def one(_: int) -> None:
        async with connected(port) as (reader, writer):
            writer.write(asked)
            assert await status_of(reader) == 200
            writer.write(asked * 8)
            await asyncio.sleep(0)

    await _each(count, one)


async def same_ids(port: int, key: str, count: int) -> None:
    """One id for all that is on its way, in both protocols."""

    async def one(_: int) -> None:
        async with connected(port) as (reader, writer):
            writer.write(call(key, LONG_TOOL, {"text": "x", "maxChars": 9}, request_id=7))
            assert await status_of(reader) in (200, 0)

    await _each(count, one)
    async with session(port, key) as lines:

        async def within(_: int) -> None:
            async with connected(port) as (reader, writer):
                writer.write(posted({"jsonrpc": "2.0", "id": 7, "method": "ping"}, key, lines))
                assert await status_of(reader) in (200, 400, 409, 503, 0)

        await _each(count, within)


async def cancel_flood(port: int, key: str, count: int) -> None:
    """Calls that are given up as soon as they are sent, and cancellations of what never was."""

    async def one(_number: int) -> None:
        async with connected(port) as (_, writer):
            writer.write(call(key, LONG_TOOL, {"text": "x", "maxChars": 9}))
            await writer.drain()

    await _each(count, one)
    async with session(port, key) as lines, connected(port) as (reader, writer):
        for number in range(count):
            params = {"requestId": number, "reason": "none"}
            writer.write(posted({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, key, lines))
            assert await status_of(reader) == 202


async def slow_heads(port: int, key: str, count: int) -> None:
    """Heads and bodies that do not end, from any peer."""

    async def one(number: int) -> None:
        async with connected(port) as (_, writer):
            begun = head(key, "127.0.0.1", "content-length: 100")
            writer.write(begun + b"{" if number % 2 else begun[: number % 40])
            await writer.drain()
            await everybody.wait()

    everybody = asyncio.Barrier(count)
    await _each(count, one)


async def sessions(port: int, key: str, count: int) -> None:
    """Sessions of the older protocol, each with a stream that nobody reads."""
    for _ in range(count):
        async with session(port, key) as lines, connected(port) as (reader, writer):
            writer.write(head(key, "127.0.0.1", *lines, verb="GET"))
            assert await status_of(reader) == 200


@asynccontextmanager
async def session(port: int, key: str) -> AsyncIterator[list[str]]:
    """The headers that name it. It is ended at the end."""
    params = {"protocolVersion": ERA_BEFORE, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    async with connected(port) as (reader, writer):
        writer.write(posted({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}, key, ()))
        answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        assert " 200 " in answered, answered
        named = next(line for line in answered.splitlines() if line.startswith("mcp-session-id:"))
    lines = [named, f"mcp-protocol-version: {ERA_BEFORE}"]
    async with connected(port) as (reader, writer):
        writer.write(posted({"jsonrpc": "2.0", "method": "notifications/initialized"}, key, lines))
        assert await status_of(reader) == 202
    try:
        yield lines
    finally:
        async with connected(port) as (reader, writer):
            writer.write(head(key, "127.0.0.1", *lines, verb="DELETE"))
            assert await status_of(reader) == 200


ATTACKS: dict[str, Attack] = {
    "foreign Host and Origin": foreign_hosts,
    "streams for changes": many_streams,
    "bodies of 1 GB": endless_bodies,
    "answers that nobody reads": deaf_readers,
    "one id for all requests": same_ids,
    "calls given up at once": cancel_flood,
    "heads and bodies that do not end": slow_heads,
    "sessions": sessions,
}
