"""The two streams that the SDK's client reads and writes, over a program's pipes: no task, no copy between.

`Inbox` is filled by the protocol of the pipe and holds the pipe back when the client does not keep up. `Outbox` writes
to the pipe and waits while the program does not read; the deadline of the call that waits ends that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

HELD_MAX = 256
"""Messages, after which the pipe is not read until half of them are taken."""
HELD_MAX_BYTES = 1024 * 1024
_CANCELLED = "notifications/cancelled"
_TURN = 32
"""Messages in a row before the loop gets its turn."""


class Inbox:
    """What the server sent and the client has not taken yet (`mcp.client._transport.ReadStream`)."""

    def __init__(self, hold_back: Callable[[bool], None]) -> None:
        """`hold_back(True)` stops reading the pipe."""
        self._hold_back = hold_back
        self._held: deque[tuple[SessionMessage, int]] = deque()
        self._held_bytes = 0
        self._wake = asyncio.Event()
        self._is_held_back = False
        self._is_over = False
        self._taken = 0

    def put(self, message: SessionMessage, size_bytes: int) -> None:
        if self._is_over:
            return
        self._held.append((message, size_bytes))
        self._held_bytes += size_bytes
        self._wake.set()
        if not self._is_held_back and (len(self._held) > HELD_MAX or self._held_bytes > HELD_MAX_BYTES):
            self._is_held_back = True
            self._hold_back(True)

    def end(self) -> None:
        """Nothing will come any more; what is held can still be taken."""
        self._is_over = True
        self._wake.set()

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises anyio.EndOfStream."""
        while not self._held:
            if self._is_over:
                raise anyio.EndOfStream
            self._wake.clear()
            await self._wake.wait()
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)
        message, size_bytes = self._held.popleft()
        self._held_bytes -= size_bytes
        if self._is_held_back and len(self._held) <= HELD_MAX // 2 and self._held_bytes <= HELD_MAX_BYTES // 2:
            self._is_held_back = False
            self._hold_back(False)
        return message

    async def aclose(self) -> None:
        self.end()
        self._held.clear()
        self._held_bytes = 0

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


class Outbox:
    """Messages to the server (`mcp.client._transport.WriteStream`)."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._open = asyncio.Event()
        self._open.set()
        self._is_over = False

    def hold(self, is_full: bool) -> None:
        """Whether the pipe is full."""
        if is_full:
            self._open.clear()
        else:
            self._open.set()

    def end(self) -> None:
        """The pipe is gone: whoever waits or sends fails."""
        self._is_over = True
        self._open.set()

    async def send(self, item: SessionMessage, /) -> None:
        """Raises anyio.BrokenResourceError when the program cannot be written to any more.

        While the pipe is full a cancellation is dropped: the SDK would hold the cancelled call back for its sake.
        """
        message = item.message
        if not self._open.is_set() and isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            return
        await self.line(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def line(self, data: bytes) -> None:
        """Raises as `send`."""
        await self._open.wait()
        if self._is_over:
            raise anyio.BrokenResourceError
        self._write(data)

    def line_if_open(self, data: bytes) -> bool:
        """Whether it was written: dropped when the pipe is full or gone."""
        is_open = self._open.is_set() and not self._is_over
        if is_open:
            self._write(data)
        return is_open

    async def aclose(self) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None
