"""The WebSocket of ComfyUI's events: aborted instead of closed, its frames counted and passed on in turns.

The library answers a message that is too long with a close frame, and then reads and drops all data until the server
closes its side, which a hostile one never does. It also takes a whole reading at once, which may be a hundred thousand
pings or empty fragments. Importing this needs the extra `comfyui`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from websockets.asyncio.client import ClientConnection

from toolhub_service.aio.turnstile import pass_turnstile
from toolhub_service.egress.breakage import WireError
from toolhub_service.egress.framing import WebSocketFraming

_WAITING_MAX_BYTES: Final = 1024 * 1024
_BLANK_LINE: Final = b"\r\n\r\n"


class AbortingConnection(ClientConnection):
    """A client's connection that abandons a server which floods it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._framing = WebSocketFraming()
        self._is_open = False
        self._head = b""
        self._waiting: deque[bytes] = deque()
        self._feeding: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        head, frames = self._split_handshake(data)
        if head:
            self._feed(head)
        try:
            pieces = self._framing.split(frames)
        except WireError:
            self.transport.abort()
            return
        if len(pieces) == 1 and self._feeding is None:
            self._feed(frames)
            return
        self._waiting.extend(pieces)
        if sum(map(len, self._waiting)) > _WAITING_MAX_BYTES:
            self.transport.abort()
        elif self._feeding is None and pieces:
            self._feeding = asyncio.get_running_loop().create_task(self._feed_in_turns())

    async def _feed_in_turns(self) -> None:
        while self._waiting and not self.transport.is_closing():
            await pass_turnstile()
            self._feed(self._waiting.popleft())
        self._waiting.clear()
        self._feeding = None

    def _feed(self, data: bytes) -> None:
        super().data_received(data)
        if self.protocol.close_expected():
            self.transport.abort()

    def _split_handshake(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the part of the handshake, and that of the frames."""
        if self._is_open:
            return b"", data
        before, self._head = len(self._head), self._head + data
        end = self._head.find(_BLANK_LINE)
        if end < 0:
            return data, b""
        self._is_open, at = True, end + len(_BLANK_LINE) - before
        self._head = b""
        return data[:at], data[at:]
