"""Messages between the hub and its worker processes: four bytes of length, big-endian, then JSON.

JSON only, so that a worker, which may run anybody's code, can send the hub only plain values.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import msgspec

LENGTH_BYTES: Final = 4


class FrameTooLarge(Exception):
    """The other side announced a larger frame than agreed."""


class ChannelClosed(Exception):
    """The other side is gone."""


def encode(message: Any) -> bytes:
    """Return the frame of a JSON value."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode(body: bytes | bytearray) -> Any:
    return msgspec.json.decode(body)


def read_frame(channel: socket.socket) -> Any:
    """Wait for the next message and return it. Raises ChannelClosed. For workers, which trust the hub's sizes."""
    return decode(_read_exactly(channel, int.from_bytes(_read_exactly(channel, LENGTH_BYTES), "big")))


def _read_exactly(channel: socket.socket, size_bytes: int) -> bytearray:
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

    A sender of more than was asked for (a tool that found the descriptor, a child that a tool forked) is cut off: its
    data must not pass for the answer to the next question, which is another caller's.
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
        """Fail the waiting and all later questions."""
        self._broken = self._broken or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._broken)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._deliver()
        # Unrequested bytes: the worker's code writes into the channel, and no later answer can be trusted.
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
        # Checked by the announced length, before anything of that size is buffered.
        if size_bytes > self._max_bytes:
            self.fail(FrameTooLarge())
            return
        end = LENGTH_BYTES + size_bytes
        if len(received) >= end and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(received[LENGTH_BYTES:end]))
            del received[:end]
