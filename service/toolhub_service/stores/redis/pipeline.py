"""One connection for the commands of a whole process, in the order of their callers: instead of a pool of connections.

Commands of one iteration of the loop are sent in one write and their answers come back in the same order, so that
hundreds of callers share a round trip (pipelining, https://redis.io/docs/latest/develop/using-commands/pipelining). A
cancelled caller only leaves its answer unread: no connection is lost with it, and there is no pool to exhaust.

When the connection breaks, unanswered commands are sent again over the next one until their caller's timeout. So a
command may run twice: the stores' scripts recognise their own repetition, and other commands are run `once`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    ResponseError,
)
from redis.exceptions import TimeoutError as NoAnswer

from toolhub_service.domain.ports import Randomness
from toolhub_service.stores.redis.reconnection import is_demoted, reason_of, stay_connected, unavailable


class _Command:
    __slots__ = ("answer", "is_sent", "once", "packed")

    def __init__(self, packed: Iterable[bytes], answer: asyncio.Future[Any], once: bool) -> None:
        self.packed = packed
        self.answer = answer
        self.once = once
        self.is_sent = False


class Pipeline:
    """Connects at the first command, and again whenever it has to, with backoff."""

    def __init__(
        self, connection: AbstractConnection, randomness: Randomness, *, patience_s: float, max_waiting: int
    ) -> None:
        """`patience_s`: the timeout of a caller, outages included."""
        self._connection = connection
        self._randomness = randomness
        self._patience_s = patience_s
        self._max_waiting = max_waiting
        self._outbox: deque[_Command] = deque()
        # Sent and not answered, in order; also those whose caller has gone.
        self._sent: deque[_Command] = deque()
        self._called = asyncio.Event()
        self._stalled = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._trouble = ""

    async def run(self, *command: bytes | str | int, once: bool = False) -> Any:
        """Return the answer, with RESP2's types. `once`: never send it a second time.

        Raises ResponseError, and ToolFailure TOOL_UNAVAILABLE: the command may have run then.
        """
        if len(self._outbox) + len(self._sent) >= self._max_waiting:
            raise unavailable("too many commands wait for it")
        entry = _Command(self._connection.pack_command(*command), asyncio.get_running_loop().create_future(), once)
        self._outbox.append(entry)
        self._called.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name="redis-pipeline")
        try:
            async with asyncio.timeout(self._patience_s):
                return await entry.answer
        except TimeoutError:
            if entry.is_sent:
                self._stalled.set()
            raise unavailable(self._trouble or "no answer in time") from None

    async def close(self) -> None:
        """Close; callers that still wait get the error that the store cannot be reached."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait((serving,))
        for entry in (*self._sent, *self._outbox):
            if not entry.answer.done():
                entry.answer.set_exception(unavailable("the hub stops"))
        self._sent.clear()
        self._outbox.clear()
        await self._connection.disconnect(nowait=True)

    async def _serve(self) -> None:
        await stay_connected(
            self._connection,
            self._exchange,
            self._on_break,
            randomness=self._randomness,
            connect_within_s=self._patience_s,
        )

    async def _exchange(self) -> None:
        """Send and read until the connection breaks."""
        self._trouble = ""
        self._stalled.clear()
        async with asyncio.TaskGroup() as both_ways:
            both_ways.create_task(self._write_commands())
            both_ways.create_task(self._read_answers())
            both_ways.create_task(self._watch())

    async def _write_commands(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            batch = [entry for entry in self._outbox if not entry.answer.done()]
            self._outbox.clear()
            self._sent.extend(batch)
            chunks: list[bytes] = []
            for entry in batch:
                entry.is_sent = True
                chunks.extend(entry.packed)
            await self._connection.send_packed_command(chunks, check_health=False)

    async def _read_answers(self) -> None:
        while True:
            try:
                answer = await self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                if is_demoted(error):
                    raise
                answer = error
            future = self._sent.popleft().answer
            if future.done():
                continue
            if isinstance(answer, ResponseError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _watch(self) -> None:
        """Break the connection when the peer is silent for longer than its callers' timeout."""
        await self._stalled.wait()
        raise NoAnswer

    def _on_break(self, error: Exception) -> None:
        self._trouble = reason_of(error)
        for entry in self._sent:
            entry.is_sent = False
            if entry.once and not entry.answer.done():
                entry.answer.set_exception(unavailable(self._trouble))
        waiting = [entry for entry in (*self._sent, *self._outbox) if not entry.answer.done()]
        self._sent.clear()
        self._outbox = deque(waiting)
        if waiting:
            self._called.set()
