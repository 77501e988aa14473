"""One blocking reader for a whole process, which reads the changes of all hubs.

All stores of one prefix publish changes in one stream, `<prefix>feed`. An entry's id is `<number>-0`; the numbers
come without gaps from the counter `<prefix>feed:count`, in the script that made the change. A missing number tells a
reader that the stream was trimmed before it came, and a counter behind its own that data was lost. After a gap, and
after every new connection, listeners must read everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse

from toolhub_service.domain.ports import Randomness
from toolhub_service.stores.redis.reconnection import reason_of, stay_connected, unavailable

Listener = Callable[[tuple[bytes, ...] | None], None]
"""Takes the fields of one entry, or None after a gap."""
KEPT = 10_000
"""About how many entries the stream holds, and so how far a reader may lag before it has a gap."""
_READ_AT_ONCE = 500
_BLOCK_S = 5.0


class RedisFeed:
    """Listeners by kind. They are called on the loop and must not block."""

    def __init__(
        self, connection: AbstractConnection, prefix: str, randomness: Randomness, *, patience_s: float
    ) -> None:
        self._connection = connection
        self._stream = f"{prefix}feed"
        self._count = f"{prefix}feed:count"
        self._randomness = randomness
        self._patience_s = patience_s
        self._listeners: dict[bytes, list[Listener]] = {}
        self._following: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._last = 0
        self._trouble = ""

    def listen(self, kind: bytes, on_event: Listener) -> Callable[[], None]:
        """Call `on_event` with entries of this kind from now on; return a function that ends that."""
        listeners = self._listeners.setdefault(kind, [])
        listeners.append(on_event)
        return lambda: listeners.remove(on_event)

    async def start(self) -> None:
        """Start reading; on return nothing appended from then on is missed. Raises ToolFailure TOOL_UNAVAILABLE."""
        if self._following is None or self._following.done():
            reading = stay_connected(
                self._connection,
                self._follow_stream,
                self._on_break,
                self._randomness,
                connect_within_s=self._patience_s,
            )
            self._following = asyncio.create_task(reading, name="redis-feed")
        try:
            async with asyncio.timeout(self._patience_s):
                await self._ready.wait()
        except TimeoutError:
            raise unavailable(self._trouble or "no answer in time") from None

    async def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait((following,))
        await self._connection.disconnect(nowait=True)

    def _on_break(self, error: Exception) -> None:
        self._trouble = reason_of(error)

    async def _follow_stream(self) -> None:
        self._last = await self._read_count()
        # A later connection: entries published between the two were not seen.
        if self._ready.is_set():
            self._notify_gap()
        self._ready.set()
        while True:
            batch = await self._next_batch()
            if batch is None:
                await self._detect_data_loss()
            else:
                self._notify(batch)

    async def _next_batch(self) -> list[tuple[bytes, list[bytes]]] | None:
        block_ms = round(_BLOCK_S * 1_000)
        options = ("COUNT", _READ_AT_ONCE, "BLOCK", block_ms, "STREAMS", self._stream, f"{self._last}-0")
        answer = await self._ask("XREAD", *options, within_s=_BLOCK_S + self._patience_s)
        return None if answer is None else answer[0][1]

    async def _detect_data_loss(self) -> None:
        """Detect a counter behind ours: the server has lost data, and counts again from before."""
        counted = await self._read_count()
        if counted < self._last:
            self._last = counted
            self._notify_gap()

    async def _read_count(self) -> int:
        return int(await self._ask("GET", self._count, within_s=self._patience_s) or 0)

    async def _ask(self, *command: str | int, within_s: float) -> Any:
        async with asyncio.timeout(within_s):
            await self._connection.send_command(*command, check_health=False)
            return await self._connection.read_response(disable_decoding=True)

    def _notify(self, batch: list[tuple[bytes, list[bytes]]]) -> None:
        for entry_id, fields in batch:
            number = int(entry_id.partition(b"-")[0])
            if number != self._last + 1:
                self._notify_gap()
            self._last = number
            if len(fields) < 2:
                raise InvalidResponse
            kind, *values = fields[1::2]
            self._call(self._listeners.get(kind, ()), tuple(values))

    def _notify_gap(self) -> None:
        for listeners in self._listeners.values():
            self._call(listeners, None)

    def _call(self, listeners: list[Listener] | tuple[()], values: tuple[bytes, ...] | None) -> None:
        # In its own callback: a listener that raises must not end the reading.
        loop = asyncio.get_running_loop()
        for on_event in listeners:
            loop.call_soon(on_event, values)
