"""What a server tells of its own accord: one WebSocket a server and process, a hint and never the truth.

It is opened when there is work to follow, under an id of its own: a server that sees the same id again loses the newer
connection with the older one (measured on 0.3.64 and 0.33). The id is fixed in each prompt that is sent, so those sent
over an earlier connection are not heard any more; they are followed by asking, as all of them can be. Frames are taken
within a budget a second, above which the socket is left to fill: a flood costs the server its own patience.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from toolhub_service.adapters.comfyui.node_progress import NodeProgress
from toolhub_service.adapters.comfyui.websocket import Dialler, NotDialled
from toolhub_service.domain.ports import Clock, Randomness

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_PAUSE_FIRST_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
_LASTING_S: Final = 30.0
"""A connection that held so long was a good one: the next pause is short again."""
_MESSAGES_PER_S: Final = 500
_BYTES_PER_S: Final = 8 * 1024 * 1024
_TOLD_AGAIN_S: Final = 0.25
_TURN: Final = 20
"""Frames after which others get their turn."""


class EventFeed:
    """Of one server. `may_have_ended` is told of a prompt that is worth a look."""

    def __init__(
        self, dialler: Dialler, clock: Clock, randomness: Randomness, may_have_ended: Callable[[str], None]
    ) -> None:
        self._dialler = dialler
        self._clock = clock
        self._randomness = randomness
        self._may_have_ended = may_have_ended
        self._followed: dict[str, NodeProgress] = {}
        self._told_at_s: dict[str, float] = {}
        self._owner: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._tried = asyncio.Event()
        self._is_closed = False
        self.client_id = ""
        """Under which prompts are heard of now; empty: not connected."""
        self.connections = 0
        """How many there were."""
        self.trouble = ""
        """Why there is no connection; a clause."""

    async def ready(self, within_s: float) -> str:
        """The id under which a prompt is to be sent; empty when there is no connection within that time, or was none
        when it was last tried."""
        if self._is_closed:
            return ""
        self._want()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._tried.wait()
        return self.client_id

    def progress_of(self, prompt_id: str) -> NodeProgress | None:
        """What is told of the prompt; None when it is not followed."""
        return self._followed.get(prompt_id)

    def follow(self, prompt_id: str, nodes: NodeProgress) -> None:
        """Tell `nodes` what is heard of the prompt, until `forget`."""
        self._followed[prompt_id] = nodes
        if not self._is_closed:
            self._want()

    def forget(self, prompt_id: str) -> None:
        """Does nothing when it is not followed."""
        self._followed.pop(prompt_id, None)
        self._told_at_s.pop(prompt_id, None)

    async def close(self) -> None:
        self._is_closed = True
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.cancel()
            await asyncio.wait({owner})

    def _want(self) -> None:
        self._wanted.set()
        if self._owner is None:
            self._owner = asyncio.create_task(self._own())

    async def _own(self) -> None:
        """Connect, listen, connect anew, for as long as there is something to hear."""
        pause_s = _PAUSE_FIRST_S
        while True:
            await self._wanted.wait()
            began_s = self._clock.monotonic_s()
            await self._once()
            if not self._followed:
                self._wanted.clear()
            if self._clock.monotonic_s() - began_s >= _LASTING_S:
                pause_s = _PAUSE_FIRST_S
            await asyncio.sleep(self._randomness.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _once(self) -> None:
        """One connection, from its opening to its end, however it ends."""
        client_id = str(uuid.UUID(hex=self._randomness.token_hex(16)))
        try:
            connection = await self._dialler.dial(client_id)
        except NotDialled as failed:
            self.trouble = failed.reason
            self._tried.set()
            return
        self.client_id, self.trouble = client_id, ""
        self.connections += 1
        self._tried.set()
        try:
            await self._listen(connection)
        finally:
            self.client_id, self.trouble = "", "its WebSocket ended"
            connection.transport.abort()

    async def _listen(self, connection: ClientConnection) -> None:
        from websockets.exceptions import WebSocketException

        budget = _Budget(self._clock)
        try:
            async for frame in connection:
                self._hear(frame)
                await budget.spend(len(frame))
        except (WebSocketException, OSError):
            return

    def _hear(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes) or not self._followed:
            return  # pictures of what is being made
        try:
            said = json.loads(frame)
        except (ValueError, RecursionError):
            return
        data = said.get("data") if isinstance(said, dict) else None
        if not isinstance(data, Mapping):
            return
        prompt_id: Any = data.get("prompt_id")
        nodes = self._followed.get(prompt_id) if isinstance(prompt_id, str) else None
        if nodes is not None and nodes.hear(str(said.get("type")), data):
            self._tell_end(prompt_id)

    def _tell_end(self, prompt_id: str) -> None:
        """Each telling costs a question: one that is told again and again is told four times a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._told_at_s.get(prompt_id, -inf) >= _TOLD_AGAIN_S:
            self._told_at_s[prompt_id] = now_s
            self._may_have_ended(prompt_id)


class _Budget:
    """What is taken in a second; above it, the rest of the second is waited for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._messages = self._bytes = 0

    async def spend(self, size_bytes: int) -> None:
        self._messages += 1
        self._bytes += size_bytes
        left_s = 1.0 - (self._clock.monotonic_s() - self._since_s)
        if left_s <= 0:
            self._since_s, self._messages, self._bytes = self._clock.monotonic_s(), 0, 0
        elif self._messages > _MESSAGES_PER_S or self._bytes > _BYTES_PER_S:
            await asyncio.sleep(left_s)
        elif self._messages % _TURN == 0:
            await asyncio.sleep(0)
