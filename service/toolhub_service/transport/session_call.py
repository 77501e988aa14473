"""One call of a session: the caller's name for it, what it tells while it runs, and its answer.

It is the call's own event sink. What waits for the reader is bounded: progress is kept in its newest form only, and of
output the oldest goes first. The answer is never dropped, and nothing comes after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from toolhub.v1 import call_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.plan import Plan
from toolhub_service.domain.progress import Chunk, Progress
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.failures import cancelled
from toolhub_service.transport.convert.call import wants_struct
from toolhub_service.transport.convert.result import from_chunk, from_plan, from_progress, write_result

_NAME_MAX = 128
EVENTS_MAX = 1_024
"""Of one call that wait for the reader."""


class Mailbox(Protocol):
    """Where the events of all calls of a session wait."""

    def list_up(self, call: SessionedCall) -> None:
        """The call has something to tell."""
        ...

    def hold(self, size_bytes: int) -> bool:
        """So many bytes more wait for the reader, or less; whether that is more than may."""
        ...


class SessionedCall:
    """Implements `EventSink`."""

    __slots__ = (
        "_answer",
        "_mailbox",
        "_request",
        "_told",
        "is_cancelled",
        "is_listed",
        "malformed",
        "name",
        "refusal",
        "size_bytes",
        "task",
        "wants_struct",
    )

    def __init__(self, request: pb.SessionCall, mailbox: Mailbox) -> None:
        self.name = request.call_id[:_NAME_MAX]
        """The caller's, not the hub's; one that is too long is never begun."""
        self.wants_struct = wants_struct(request)
        self.size_bytes = _size_bytes(request.intent)
        """Of its arguments."""
        self.malformed: ToolResult | None = None
        """The answer to a call that breaks the contract; it never begins."""
        self.refusal: ToolError | None = None
        """Why it is not even tried; it is refused in step 2 then, and recorded like any call."""
        self.is_cancelled = False
        self.is_listed = False
        """Whether the mailbox knows that there is something to tell; the mailbox's own mark."""
        self.task: asyncio.Task[None] | None = None
        """What runs it, from when it begins to its answer."""
        self._request: pb.SessionCall | None = request
        self._mailbox = mailbox
        self._told: deque[Progress | Chunk] | None = None
        self._answer: bytes | None = None

    def begun_by(self, task: asyncio.Task[None]) -> pb.SessionCall:
        """What was asked, once: what it holds of the message is let go when the call runs."""
        request, self._request = self._request, None
        assert request is not None
        self.task = task
        return request

    def cancel(self) -> None:
        """It is still answered: CANCELLED, unless it is answered already."""
        if self.task is not None:
            if not self.is_cancelled:
                self.is_cancelled = True
                self.task.cancel()
        elif self._answer is None:
            self.refusal = cancelled()

    def progress(self, progress: Progress) -> None:
        told = self._told
        if told and isinstance(told[-1], Progress):
            told[-1] = progress  # only the newest matters
            return
        self._keep(progress, 0)

    def chunk(self, chunk: Chunk) -> None:
        self._keep(chunk, len(chunk.data))

    def answer(self, answer: ToolResult | Plan) -> None:
        """The last event of the call."""
        event = pb.SessionEvent(call_id=self.name)
        if isinstance(answer, Plan):
            event.plan.CopyFrom(from_plan(answer, as_struct=self.wants_struct))
        else:
            write_result(event.result, answer, as_struct=self.wants_struct)
        self._answer = event.SerializeToString()
        self.task = None
        self._mailbox.hold(len(self._answer))
        self._mailbox.list_up(self)

    @property
    def is_answered(self) -> bool:
        """Whether nothing more will come."""
        return self._answer is not None

    def next_event(self) -> bytes | None:
        """The oldest event that waits, serialised; None when none does."""
        if self._told:
            return self._event(self._take()).SerializeToString()
        answer = self._answer
        if answer is not None:
            self._answer = b""
            self._mailbox.hold(-len(answer))
        return answer or None

    def _keep(self, event: Progress | Chunk, size_bytes: int) -> None:
        if self._told is None:
            self._told = deque()
        told = self._told
        told.append(event)
        is_crowded = self._mailbox.hold(size_bytes)
        while len(told) > EVENTS_MAX or (is_crowded and len(told) > 1):
            self._take()
            is_crowded = self._mailbox.hold(0)
        self._mailbox.list_up(self)

    def _take(self) -> Progress | Chunk:
        assert self._told is not None
        event = self._told.popleft()
        if isinstance(event, Chunk):
            self._mailbox.hold(-len(event.data))
        return event

    def _event(self, event: Progress | Chunk) -> pb.SessionEvent:
        if isinstance(event, Progress):
            return pb.SessionEvent(call_id=self.name, progress=from_progress(event))
        return pb.SessionEvent(call_id=self.name, chunk=from_chunk(event))


def _size_bytes(intent: call_pb2.ToolIntent) -> int:
    return intent.args_struct.ByteSize() if intent.HasField("args_struct") else len(intent.args_json)
