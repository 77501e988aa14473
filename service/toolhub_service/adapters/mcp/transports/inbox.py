"""Requests that a server makes of the hub (ping, questions): bounded in how many may be unanswered.

The SDK starts a task for each and keeps it until its answer is written; a server that asks without end, and does not
take the answers, would fill the memory with them. So a connection whose server has more than `UNANSWERED_MAX` requests
open is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

UNANSWERED_MAX: Final = 256
SPARE_ANSWERS_MAX: Final = 1_000
FLOODED: Final = "It asks more than the hub can answer."
_CANCELLED: Final = "notifications/cancelled"


class PeerRequests:
    """The server's requests that the hub has not answered."""

    def __init__(self, on_flood: Callable[[str], None]) -> None:
        """`on_flood` is called once, with the reason, when there are too many."""
        self._on_flood: Callable[[str], None] | None = on_flood
        self._open: Counter[object] = Counter()
        self.unanswered = 0
        self._spare_answers = SPARE_ANSWERS_MAX
        """Answers that may still come without a question."""

    def note_incoming(self, message: JSONRPCMessage) -> None:
        match message:
            case JSONRPCRequest():
                self._open[message.id] += 1
                self.unanswered += 1
                if self.unanswered > UNANSWERED_MAX and self._on_flood is not None:
                    on_flood, self._on_flood = self._on_flood, None
                    on_flood(FLOODED)
            case JSONRPCNotification() if message.method == _CANCELLED and message.params:
                self._settle(message.params.get("requestId"))
            case JSONRPCResponse() | JSONRPCError():
                self._spare_answers -= 1
            case _:
                pass

    def note_outgoing(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._settle(message.id)
        elif isinstance(message, JSONRPCRequest):
            self._spare_answers += 1

    def note_own_request(self) -> None:
        """Note that the hub has asked beside the SDK."""
        self._spare_answers += 1

    def note_own_answer(self) -> None:
        """Note that such a request was answered."""
        self._spare_answers -= 1

    @property
    def are_answers_made_up(self) -> bool:
        """Return whether there were far more answers than questions."""
        return self._spare_answers < 0

    @property
    def is_flooded(self) -> bool:
        return self._on_flood is None

    def _settle(self, request_id: object) -> None:
        if not isinstance(request_id, str | int) or request_id not in self._open:
            return
        self.unanswered -= 1
        self._open[request_id] -= 1
        if not self._open[request_id]:
            del self._open[request_id]


class BoundedInbox(ObjectReceiveStream[SessionMessage | Exception]):
    """Messages from the server, as the SDK's transport gives them."""

    def __init__(self, inner: Any, requests: PeerRequests) -> None:
        self._inner = inner
        self._requests = requests

    @property
    def last_context(self) -> Any:
        """Return the context of the task that received the last message: the SDK runs its answer there."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._inner.receive()
            if isinstance(item, SessionMessage):
                self._requests.note_incoming(item.message)
                # Given up: what it still asks is dropped until the connection is closed.
                if self._requests.is_flooded and isinstance(item.message, JSONRPCRequest):
                    continue
            return item

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedOutbox(ObjectSendStream[SessionMessage]):
    """Messages to the server, among them the hub's answers."""

    def __init__(self, inner: Any, requests: PeerRequests) -> None:
        self._inner = inner
        self._requests = requests

    async def send(self, item: SessionMessage) -> None:
        await self._inner.send(item)
        self._requests.note_outgoing(item.message)

    async def aclose(self) -> None:
        await self._inner.aclose()
