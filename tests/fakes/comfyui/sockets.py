"""The WebSocket side: who is connected under which client id, and one queue of messages for all.

As the real one: a message finds its socket when it is sent, not when it is made; a client id has one socket; and the
end of a socket removes whatever is then registered under its client id, so that a client that reconnects before its
old socket has ended is deaf for ever (the recorded bug).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from tests.fakes.comfyui.pulse import ChangeSignal

PREVIEW, PREVIEW_WITH_METADATA = 1, 4
"""Kinds of binary frames."""


@dataclass
class Socket:
    """One connection."""

    sid: str
    ws: web.WebSocketResponse
    transport: asyncio.Transport | None = None
    sent: int = 0
    """Messages written to it."""
    flags: dict[str, Any] = field(default_factory=dict)
    """What the client said it supports."""
    ended: bool = False


class Sockets:
    """All connections of a server's life."""

    def __init__(self, pulse: ChangeSignal, features: dict[str, Any]) -> None:
        self._pulse = pulse
        self._features = features
        self._by_sid: dict[str, Socket] = {}
        self._queue: asyncio.Queue[tuple[str | bytes, str | None]] = asyncio.Queue()
        self._unsent = 0
        self.opened: list[Socket] = []
        """Every connection there has been, in order."""
        self.muted = False
        """Messages are dropped without an error."""

    @property
    def all_sent(self) -> bool:
        return self._unsent == 0

    def send(self, kind: str, data: dict[str, Any], sid: str | None = None) -> None:
        """To one client, or (None) to all."""
        self._put(json.dumps({"type": kind, "data": data}), sid)

    def send_preview(self, image: bytes, metadata: dict[str, Any], sid: str | None) -> None:
        """A binary frame; with its metadata to a client that said it understands that."""
        socket = self._by_sid.get(sid or "")
        if socket is not None and socket.flags.get("supports_preview_metadata"):
            about = json.dumps(metadata).encode()
            self._put(struct.pack(">II", PREVIEW_WITH_METADATA, len(about)) + about + image, sid)
        else:
            self._put(struct.pack(">II", PREVIEW, 2) + image, sid)

    def _put(self, message: str | bytes, sid: str | None) -> None:
        self._unsent += 1
        self._queue.put_nowait((message, sid))

    async def publish(self) -> None:
        """Send what is queued, for ever, in order."""
        while True:
            message, sid = await self._queue.get()
            known = list(self._by_sid.values()) if sid is None else [self._by_sid.get(sid)]
            for socket in known:
                if socket is not None and not self.muted:
                    await self._write(socket, message)
            self._unsent -= 1
            self._pulse.beat()

    async def _write(self, socket: Socket, message: str | bytes) -> None:
        # the real one logs a broken connection and goes on, too
        with contextlib.suppress(ConnectionError, RuntimeError):
            await (socket.ws.send_str(message) if isinstance(message, str) else socket.ws.send_bytes(message))
            socket.sent += 1

    async def serve(
        self, request: web.Request, status: dict[str, Any], now_executing: tuple[str | None, Any]
    ) -> Socket:
        """A connection from its beginning to its end; `now_executing`: client id and node of the run."""
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        socket = Socket(request.query.get("clientId", "") or uuid.uuid4().hex, ws, request.transport)
        self._by_sid[socket.sid] = socket
        try:
            self.send("status", {"status": status, "sid": socket.sid}, socket.sid)
            client, node = now_executing
            if client == socket.sid and node is not None:
                self.send("executing", {"node": node}, socket.sid)
            self.opened.append(socket)
            self._pulse.beat()
            async for message in ws:
                if message.type is WSMsgType.TEXT:
                    self._on_message(socket, message.data)
        finally:
            self._by_sid.pop(socket.sid, None)
            socket.ended = True
            self._pulse.beat()
        return socket

    def _on_message(self, socket: Socket, text: str) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            message = json.loads(text)
            if message.get("type") == "feature_flags":
                socket.flags = dict(message.get("data") or {})
                self.send("feature_flags", self._features, socket.sid)

    def drop_all(self) -> None:
        """Cut every connection, without a goodbye."""
        for socket in self.opened:
            if socket.transport is not None and not socket.ended:
                socket.transport.abort()
