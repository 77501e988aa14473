"""What the calls of a session tell, on its way to the reader: several events a message, of one call in order.

Events are serialised one by one and joined: an InvokeSessionResponse is its events, each behind its tag and length
(protobuf encoding, "repeated elements"), so that a message is never built, measured and serialised a second time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from toolhub_service.transport.session_call import SessionedCall

MESSAGE_MAX_BYTES = 1024 * 1024
"""Of a message with more than one event; readers take 4 MiB unless they say otherwise."""
HELD_MAX_BYTES = 4 * 1024 * 1024
"""Of what waits for the reader. Beyond it output is dropped and no further call begins."""
_EVENTS_TAG = b"\x0a"
"""Field 1, length-delimited: `InvokeSessionResponse.events`."""


class Outbox:
    """Implements `Mailbox`. `sent` is told of each call whose answer has left."""

    def __init__(self, sent: Callable[[SessionedCall], None]) -> None:
        self._sent = sent
        self._ready: deque[SessionedCall] = deque()
        self._held_bytes = 0
        self._over = b""
        """An event that no longer went into its message."""
        self._bell: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        return self._held_bytes > HELD_MAX_BYTES

    def hold(self, size_bytes: int) -> bool:
        self._held_bytes += size_bytes
        return self._held_bytes > HELD_MAX_BYTES

    def list_up(self, call: SessionedCall) -> None:
        if not call.is_listed:
            call.is_listed = True
            self._ready.append(call)
            self._ring()

    def close(self) -> None:
        """Nothing comes any more: the reader is let go when it has caught up."""
        self._closed = True
        self._ring()

    async def next_message(self) -> bytes | None:
        """An InvokeSessionResponse with all that waits, up to the bound; None after the last."""
        while not (self._ready or self._over):
            if self._closed:
                return None
            self._bell = asyncio.get_running_loop().create_future()
            await self._bell
        return self._packed()

    def _packed(self) -> bytes:
        parts, size_bytes, ready = [self._over], len(self._over), self._ready
        self._over = b""
        while ready:
            call = ready[0]
            while (event := call.next_event()) is not None:
                framed = b"%b%b%b" % (_EVENTS_TAG, _varint(len(event)), event)
                if size_bytes and size_bytes + len(framed) > MESSAGE_MAX_BYTES:
                    self._over = framed
                    return b"".join(parts)
                parts.append(framed)
                size_bytes += len(framed)
            self._done_with(ready.popleft())
        return b"".join(parts)

    def _done_with(self, call: SessionedCall) -> None:
        call.is_listed = False
        if call.is_answered:
            self._sent(call)

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


def _varint(number: int) -> bytes:
    """Base 128, least significant group first (protobuf encoding)."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
