"""InvokeSession: many calls over one stream, each through the whole chain.

Leader and followers (Schmidt et al., 2000): one task reads a message and runs its calls itself, one after the other,
for as long as none of them has to wait. Where one does, another task takes over, with the rest of the message and with
reading. A call that never waits costs no task and no turn of the loop, and a call that waits holds up nobody; which of
them it is shows only while it runs, and asyncio's own tasks, timeouts and cancellation are all that is needed.

At most `max_in_flight` calls are begun and not yet handed to the reader, fewer where their arguments are large or other
sessions have many (session_room.py). While one that was read cannot begin, nothing more is read: HTTP/2's flow control
holds the caller back, and a caller that keeps to the bounds can always cancel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.transport.session_call import SessionedCall
from toolhub_service.transport.session_outbox import Outbox
from toolhub_service.transport.session_room import Room
from toolhub_service.transport.session_terms import SessionTerms

_CALLS_A_TURN = 32
"""Run in one go before the loop gets its turn, so that a large message holds up no other RPC for long."""

_DUPLICATE = ToolError(
    kind=ErrorKind.INVALID_INPUT,
    message="A call with this call_id is still in flight: give each call of a session a call_id of its own.",
    details={"field": "call_id"},
)


class Session:
    """`begin`, read `next_message` until None, and `end` it whatever happens."""

    def __init__(self, requests: AsyncIterator[pb.InvokeSessionRequest], terms: SessionTerms) -> None:
        self._requests = requests
        self._terms = terms
        self._outbox = Outbox(self._sent)
        self._calls: dict[str, SessionedCall] = {}
        """By the caller's name, from being read to having been answered."""
        self._waiting: deque[SessionedCall] = deque()
        """Read and not begun: of one message at most."""
        self._room = Room(terms.crowd, terms.max_in_flight, self._outbox)
        """For those that were begun, and whose answers were not handed over yet."""
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader: asyncio.Task[None] | None = None
        self._is_calling = False
        """Whether the leader is inside of a call."""
        self._is_reading = False
        self._is_read = False
        """Whether nothing more will be read."""
        self._is_over = False
        self._failure: BaseException | None = None
        self.is_cut_short = False
        """Whether reading ended before the caller had closed its side."""

    def begin(self) -> None:
        self._appoint()

    async def next_message(self) -> bytes | None:
        """A serialised InvokeSessionResponse; None once all is answered. Raises what broke the session."""
        message = await self._outbox.next_message()
        if message is None and self._failure is not None:
            raise self._failure
        return message

    def stop_reading(self) -> None:
        """What has been read goes on; the session ends when it is answered."""
        if not self._is_read:
            self._is_read = self.is_cut_short = True
            if self._is_reading and self._leader is not None:
                self._leader.cancel()
            self._close_when_done()

    def cancel_all(self) -> None:
        """Everything in flight is answered CANCELLED."""
        for call in list(self._calls.values()):
            call.cancel()

    async def end(self) -> None:
        """Stop everything that still runs, and wait until it has been recorded."""
        self._is_read = self._is_over = True
        self._waiting.clear()
        self._room.close()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # Leading

    def _appoint(self) -> None:
        """Let another task lead."""
        self._is_calling = False
        self._leader = task = asyncio.create_task(self._lead())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _relieve(self, leader: asyncio.Task[None]) -> None:
        """Called in the turn after the leader began to call: whether it is still inside tells that it waits."""
        if self._leader is leader and self._is_calling and not self._is_over:
            self._appoint()

    async def _lead(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        try:
            while self._leader is me and await self._has_work():
                if self._terms.journal.is_behind():
                    with suppress(ToolFailure):  # a log that is broken refuses each call by itself
                        await self._terms.journal.flush()
                await self._call_a_turn(me)
        finally:
            if self._leader is me:
                self._leader = None
        self._close_when_done()

    async def _call_a_turn(self, me: asyncio.Task[None]) -> None:
        self._is_calling = True
        asyncio.get_running_loop().call_soon(self._relieve, me)
        left = _CALLS_A_TURN
        while left and self._waiting and self._room.has_room():
            await self._run(self._waiting.popleft(), me)
            if self._leader is not me:
                return
            left -= 1
        self._is_calling = False
        if self._waiting:
            await asyncio.sleep(0)

    async def _has_work(self) -> bool:
        """Wait for a call that can begin; False when there will be none."""
        while not (self._waiting and self._room.has_room()):
            if self._waiting:
                await self._room.wait()
            elif self._is_read:
                return False
            else:
                await self._read()
        return True

    async def _read(self) -> None:
        self._is_reading = True
        try:
            message = await anext(self._requests)
        except StopAsyncIteration:
            self._is_read = True
            return
        except asyncio.CancelledError:
            if self._is_over or not self._is_read:
                raise
            return  # told to stop reading, and that is all
        finally:
            self._is_reading = False
        self._take_in(message)

    def _take_in(self, message: pb.InvokeSessionRequest) -> None:
        """Calls first, so that a message may start a call and cancel it."""
        malformed = self._terms.check(message)
        for place, request in enumerate(message.calls):
            call = SessionedCall(request, self._outbox)
            self._waiting.append(call)
            if place in malformed:
                call.malformed = malformed[place]
            elif self._calls.setdefault(call.name, call) is not call:
                call.refusal = _DUPLICATE
        for name in message.cancel_call_ids:
            if name in self._calls:
                self._calls[name].cancel()

    # Calls

    async def _run(self, asked: SessionedCall, task: asyncio.Task[None]) -> None:
        self._room.take(asked.size_bytes)
        if asked.malformed is not None:
            asked.answer(asked.malformed)
            return
        self._running += 1
        call = self._terms.begin(asked.begun_by(task))
        if asked.refusal is not None:
            call = call._replace(args_error=asked.refusal, mode=Mode.EXECUTE, names_artifacts=False, unread=None)
        try:
            answer = await self._terms.invoker.invoke(call, asked)
        except asyncio.CancelledError:
            if self._is_over or not asked.is_cancelled:
                raise
            answer = self._terms.cancelled(call)
        finally:
            self._running -= 1
        asked.answer(answer)
        if self._is_read:
            self._close_when_done()

    def _sent(self, call: SessionedCall) -> None:
        """The outbox has handed the call's answer over."""
        if self._calls.get(call.name) is call:
            del self._calls[call.name]
        self._room.give_back(call.size_bytes)

    def _close_when_done(self) -> None:
        if self._is_read and not self._running and not self._waiting:
            self._outbox.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._is_read = self._is_over = True
            self._outbox.close()
