"""The calls of a session, and the queue of their events that wait for the reader.

A call is its own event sink. What waits for the reader is bounded: only the newest progress is kept, and the oldest
output is dropped first. The answer is never dropped, and is the last event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.result import Chunk, Plan, Progress, ToolResult
from toolhub_service.runtime.failures import cancelled_error
from toolhub_service.transport.convert.call import from_chunk, from_progress, wants_struct, write_answer

_NAME_MAX = 128
EVENTS_MAX = 1_024
"""Limit for the waiting output of one call."""


class SessionedCall:
    """Implements `EventSink`."""

    __slots__ = (
        "_answer",
        "_events",
        "_queue",
        "_request",
        "is_cancelled",
        "is_over",
        "is_queued",
        "malformed",
        "name",
        "refusal",
        "size_bytes",
        "task",
        "wants_struct",
    )

    def __init__(self, request: pb.SessionCall, queue: SendQueue) -> None:
        self.name = request.call_id[:_NAME_MAX]
        """The caller's id, not the hub's; a call with one that is too long never begins. Empty: the id of a call in
        flight."""
        self.wants_struct = wants_struct(request)
        intent = request.intent
        self.size_bytes = intent.args_struct.ByteSize() if intent.HasField("args_struct") else len(intent.args_json)
        """Size of its arguments."""
        self.malformed: ToolResult | None = None
        """The answer to a call that violates the contract, which never begins."""
        self.refusal: ToolError | None = None
        """Why the call cannot run: it is then refused in step 2 and recorded like any call."""
        self.is_cancelled = False
        self.is_over = False
        """Whether its answer was taken: there is no further event."""
        self.is_queued = False
        """Whether the call is in the queue; set by the queue only."""
        self.task: asyncio.Task[None] | None = None
        """The task that runs the call, from its start to its answer."""
        self._request: pb.SessionCall | None = request
        self._queue = queue
        self._events: deque[Progress | Chunk] | None = None
        self._answer: bytes | None = None

    def start_in(self, task: asyncio.Task[None]) -> pb.SessionCall:
        """Return the request, once: the reference to the message is dropped when the call runs."""
        request = self._request
        self._request = None
        assert request is not None
        self.task = task
        return request

    def cancel(self) -> None:
        """Cancel the call; it is answered CANCELLED, unless it is answered already."""
        if self.task is not None:
            if not self.is_cancelled:
                self.is_cancelled = True
                self.task.cancel()
        elif self._answer is None:
            self.refusal = cancelled_error()

    def progress(self, progress: Progress) -> None:
        events = self._events
        if events and isinstance(events[-1], Progress):
            events[-1] = progress  # only the newest matters
            return
        self._keep(progress, 0)

    def chunk(self, chunk: Chunk) -> None:
        self._keep(chunk, len(chunk.data))

    def answer(self, answer: ToolResult | Plan) -> None:
        """Set the last event of the call."""
        event = pb.SessionEvent(call_id=self.name)
        write_answer(event, answer, as_struct=self.wants_struct)
        self._answer = event.SerializeToString()
        self.task = None
        self._queue.hold(len(self._answer))
        self._queue.enqueue(self)

    def next_event(self) -> bytes | None:
        """Return the oldest waiting event, serialised; None when there is none."""
        if self._events:
            return self._event(self._take()).SerializeToString()
        answer = self._answer
        if answer is None or self.is_over:
            return None
        self.is_over = True
        self._queue.hold(-len(answer))
        return answer

    def _keep(self, event: Progress | Chunk, size_bytes: int) -> None:
        if self._events is None:
            self._events = deque()
        events = self._events
        events.append(event)
        is_crowded = self._queue.hold(size_bytes)
        while len(events) > EVENTS_MAX or (is_crowded and len(events) > 1):
            self._take()
            is_crowded = self._queue.hold(0)
        self._queue.enqueue(self)

    def _take(self) -> Progress | Chunk:
        assert self._events is not None
        event = self._events.popleft()
        if isinstance(event, Chunk):
            self._queue.hold(-len(event.data))
        return event

    def _event(self, event: Progress | Chunk) -> pb.SessionEvent:
        if isinstance(event, Progress):
            return pb.SessionEvent(call_id=self.name, progress=from_progress(event))
        return pb.SessionEvent(call_id=self.name, chunk=from_chunk(event))


MESSAGE_MAX_BYTES = 1024 * 1024
"""Limit for a message with more than one event; readers accept 4 MiB by default."""
HELD_MAX_BYTES = 4 * 1024 * 1024
"""Limit for what waits for the reader. Beyond it output is dropped and no further call begins."""
# Field 1, length-delimited: `InvokeSessionResponse.events`.
_EVENTS_TAG = b"\x0a"


class SendQueue:
    """The waiting events of all calls of a session. `sent` is called with each call whose answer has been handed
    over.

    Events are serialised one by one and joined: an InvokeSessionResponse consists of its events, each preceded by tag
    and length (protobuf encoding, "repeated elements"), so no message is built, measured and serialised a second time.
    """

    def __init__(self, sent: Callable[[SessionedCall], None]) -> None:
        self._sent = sent
        self._ready: deque[SessionedCall] = deque()
        self.held_bytes = 0
        """Bytes that wait for the reader."""
        # An event that did not fit into its message.
        self._over = b""
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    def hold(self, size_bytes: int) -> bool:
        """Add the bytes to those that wait for the reader (negative: remove them), and return whether they exceed the
        limit."""
        self.held_bytes += size_bytes
        return self.held_bytes > HELD_MAX_BYTES

    def enqueue(self, call: SessionedCall) -> None:
        """Add a call that has events to send."""
        if not call.is_queued:
            call.is_queued = True
            self._ready.append(call)
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(None)

    def close(self) -> None:
        """Accept no more calls; the reader gets None once it has read everything."""
        self._closed = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next_message(self) -> bytes | None:
        """Return an InvokeSessionResponse with all that waits, up to the limit; None after the last."""
        while not (self._ready or self._over):
            if self._closed:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._pack_events()

    def _pack_events(self) -> bytes:
        parts = [self._over]
        size_bytes = len(self._over)
        ready = self._ready
        self._over = b""
        while ready:
            call = ready[0]
            while not call.is_over and (event := call.next_event()) is not None:
                framed = b"%b%b%b" % (_EVENTS_TAG, _varint(len(event)), event)
                if size_bytes and size_bytes + len(framed) > MESSAGE_MAX_BYTES:
                    self._over = framed
                    return b"".join(parts)
                parts.append(framed)
                size_bytes += len(framed)
            ready.popleft()
            call.is_queued = False
            if call.is_over:
                self._sent(call)
        return b"".join(parts)


def _varint(number: int) -> bytes:
    """Return the number in base 128, least significant group first (protobuf encoding)."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
