"""Messages between the hub and its worker processes: four bytes of length, most significant first, then JSON.

JSON and nothing else, so that a worker, whose code may be of anybody, can hand the hub only plain values.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import msgspec

LENGTH_BYTES: Final = 4


class FrameTooLarge(Exception):
    """The other side announced more than was agreed."""


class ChannelClosed(Exception):
    """The other side is gone."""


def encode(message: Any) -> bytes:
    """The frame of a JSON value."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode(body: bytes | bytearray) -> Any:
    return msgspec.json.decode(body)


def read_frame(channel: socket.socket) -> Any:
    """The next message, waited for. Raises ChannelClosed. For workers, whose hub is to be trusted with sizes."""
    return decode(_read(channel, int.from_bytes(_read(channel, LENGTH_BYTES), "big")))


def _read(channel: socket.socket, size_bytes: int) -> bytearray:
    content = bytearray(size_bytes)
    view, filled = memoryview(content), 0
    while filled < size_bytes:
        received = channel.recv_into(view[filled:])
        if received == 0:
            raise ChannelClosed
        filled += received
    return content


class FrameProtocol(asyncio.Protocol):
    """The hub's end: one question at a time, and one answer to it.

    Whoever sends more than was asked for (a tool that found the descriptor, a child that a tool forked) is cut off:
    what it sent must not pass for the answer to the next question, which is another caller's.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._broken: Exception | None = None

    async def ask(self, frame: bytes) -> Any:
        """Send a frame (none when empty) and wait for the next. Raises ChannelClosed, FrameTooLarge, ValueError."""
        if self._broken is not None:
            raise self._broken
        answer = self._answer = asyncio.get_running_loop().create_future()
        if frame and self._transport is not None:
            self._transport.write(frame)
        self._deliver()
        return decode(await answer)

    def fail(self, error: Exception) -> None:
        """Let nobody wait any longer."""
        self._broken = self._broken or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._broken)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._deliver()
        if self._received and (self._answer is None or self._answer.done()):
            self.fail(ChannelClosed())
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ChannelClosed())

    def _deliver(self) -> None:
        received = self._received
        if len(received) < LENGTH_BYTES:
            return
        size_bytes = int.from_bytes(received[:LENGTH_BYTES], "big")
        if size_bytes > self._max_bytes:
            self.fail(FrameTooLarge())
            return
        end = LENGTH_BYTES + size_bytes
        if len(received) >= end and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(received[LENGTH_BYTES:end]))
            del received[:end]
