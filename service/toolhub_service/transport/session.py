"""InvokeSession: many calls over one stream, each with all steps.

Leader and followers (Schmidt et al., 2000): one task reads a message and runs its calls itself, one after the other,
while none of them has to wait. When one waits, another task takes over reading and the rest of the message. A call that
never waits costs no task and no turn of the loop, and a call that waits delays no other; whether a call waits shows
only while it runs, and asyncio's own tasks, timeouts and cancellation are sufficient.

At most `max_in_flight` calls are begun and not yet handed to the reader, fewer where their arguments are large or other
sessions have many (session_calls.py). While a call that was read cannot begin, nothing more is read: HTTP/2's flow
control slows the caller down, and a caller that respects the bounds can always cancel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import msgspec

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.aio.turns import Turns
from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import Clock, Invoker
from toolhub_service.domain.result import Evidence, EvidenceType, ToolResult
from toolhub_service.faces.table import Faces
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.failures import cancelled_error
from toolhub_service.transport.convert.call import MODES, answer_deadline_s, to_call
from toolhub_service.transport.envelope import Envelope
from toolhub_service.transport.rpc import CALLER, ServicerContext
from toolhub_service.transport.session_calls import SendQueue, SessionedCall
from toolhub_service.transport.session_limits import Limiter, SharedLimit
from toolhub_service.transport.status import RpcFailure

_NAME_MAX = 128


def result_of_refusal(call_id: str, tool: str, error: ToolError, now_unix_ms: int, request_id: str = "") -> ToolResult:
    """Return the answer of the session itself: to a call that violates the contract, which never begins, or that its
    caller cancelled, which the pipeline has recorded by then."""
    evidence = Evidence(EvidenceType.TOOL, ref=call_id, summary=error.kind.value, created_at_unix_ms=now_unix_ms)
    return ToolResult(ok=False, call_id=call_id, tool=tool, error=error, evidence=(evidence,), request_id=request_id)


# Calls run in one go before the loop gets its turn, so that a large message does not delay other RPCs for long; fewer
# where other tenants would be delayed.
_CALLS_A_TURN = 32
_CALLS_A_SHARED_TURN = 4

_DUPLICATE = "A call with this call_id is still in flight. Use a new call_id for each call of a session."


class Session:
    """Call `begin`, read `next_message` until None, and call `end` in any case."""

    def __init__(self, requests: AsyncIterator[pb.InvokeSessionRequest], terms: SessionTerms) -> None:
        self._requests = requests
        self._terms = terms
        self._queue = SendQueue(self._on_answer_sent)
        # By the caller's id, from reading the call until its answer has left.
        self._calls: dict[str, SessionedCall] = {}
        # Read but not begun: calls of one message at most.
        self._waiting: deque[SessionedCall] = deque()
        # Counts calls that have begun and whose answers have not left yet.
        self._limiter = Limiter(terms.shared, terms.max_in_flight, self._queue)
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader: asyncio.Task[None] | None = None
        # Whether the leader is running a call.
        self._is_calling = False
        self._is_reading = False
        # Whether nothing more will be read.
        self._is_read = False
        self._is_over = False
        self._failure: BaseException | None = None
        self.is_cut_short = False
        """Whether reading ended before the caller had closed its side."""

    def begin(self) -> None:
        self._start_leader()

    async def next_message(self) -> bytes | None:
        """Return a serialised InvokeSessionResponse; None once everything is answered. Raises the failure of the
        session."""
        message = await self._queue.next_message()
        if message is None and self._failure is not None:
            raise self._failure
        return message

    def stop_reading(self) -> None:
        """Finish the calls that were read; the session ends when they are answered."""
        if not self._is_read:
            self._is_read = self.is_cut_short = True
            if self._is_reading and self._leader is not None:
                self._leader.cancel()
            self._close_when_done()

    async def end(self) -> None:
        """Stop all running calls, and wait until they are recorded."""
        self._is_read = self._is_over = True
        self._waiting.clear()
        self._limiter.close()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # Leading

    def _start_leader(self) -> None:
        """Start another task as leader."""
        self._is_calling = False
        self._leader = task = asyncio.create_task(self._lead())
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _replace_waiting_leader(self, leader: asyncio.Task[None]) -> None:
        """Called one turn of the loop after the leader began a call: if it is still in the call, the call waits."""
        if self._leader is leader and self._is_calling and not self._is_over:
            self._start_leader()

    async def _lead(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        try:
            while self._leader is me and await self._has_work():
                if self._terms.journal.is_behind():
                    with suppress(ToolFailure):  # a broken audit log refuses each call by itself
                        await self._terms.journal.flush()
                await self._call_a_turn(me)
        finally:
            if self._leader is me:
                self._leader = None
        self._close_when_done()

    async def _call_a_turn(self, me: asyncio.Task[None]) -> None:
        left = _CALLS_A_TURN
        turns = self._terms.turns
        if turns.is_shared:
            left = min(_CALLS_A_SHARED_TURN, len(self._waiting))
            await turns.take(self._terms.share, left)
        self._is_calling = True
        asyncio.get_running_loop().call_soon(self._replace_waiting_leader, me)
        while left and self._waiting and self._limiter.has_room():
            await self._run(self._waiting.popleft(), me)
            if self._leader is not me:
                return
            left -= 1
        self._is_calling = False
        if self._waiting:
            await asyncio.sleep(0)

    async def _has_work(self) -> bool:
        """Wait for a call that can begin; return False when there will be none."""
        while not (self._waiting and self._limiter.has_room()):
            if self._waiting:
                await self._limiter.wait()
            elif self._is_read:
                return False
            else:
                await self._read_message()
        return True

    async def _read_message(self) -> None:
        self._is_reading = True
        try:
            message = await anext(self._requests)
        except StopAsyncIteration:
            self._is_read = True
            return
        except asyncio.CancelledError:
            if self._is_over or not self._is_read:
                raise
            return  # cancelled by `stop_reading`, not by anything else
        finally:
            self._is_reading = False
        self._receive(message)

    def _receive(self, message: pb.InvokeSessionRequest) -> None:
        """Accept the message's calls first, so that a message may start a call and cancel it."""
        malformed = self._terms.check(message)
        for place, request in enumerate(message.calls):
            call = SessionedCall(request, self._queue)
            self._waiting.append(call)
            if place in malformed:
                call.malformed = malformed[place]
            elif self._calls.setdefault(call.name, call) is not call:
                call.refusal = ToolError(
                    ErrorKind.INVALID_INPUT, _DUPLICATE, details={"field": "call_id", "call_id": call.name}
                )
                call.name = ""  # a waiter for the call in flight must not take this for its answer
        for name in message.cancel_call_ids:
            if name in self._calls:
                self._calls[name].cancel()

    # Calls

    async def _run(self, asked: SessionedCall, task: asyncio.Task[None]) -> None:
        self._limiter.take(asked.size_bytes)
        if asked.malformed is not None:
            asked.answer(asked.malformed)
            return
        self._running += 1
        call = self._terms.begin(asked.start_in(task))
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

    def _on_answer_sent(self, call: SessionedCall) -> None:
        """Called when the queue has handed over the call's answer."""
        if self._calls.get(call.name) is call:
            del self._calls[call.name]
        self._limiter.give_back(call.size_bytes)

    def _close_when_done(self) -> None:
        if self._is_read and not self._running and not self._waiting:
            self._queue.close()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._is_read = self._is_over = True
            self._queue.close()


# Terms of a session: principal and deadline of the stream, contract, limits.


class Journal(Protocol):
    """The log that records every call. A session is faster than a disk: it waits when the log falls behind."""

    def is_behind(self) -> bool: ...

    async def flush(self) -> None:
        """Return when everything recorded so far is written. Raises ToolFailure when it cannot be written."""
        ...


class SessionTerms(msgspec.Struct, frozen=True):
    invoker: Invoker
    begin: Callable[[pb.SessionCall], Call]
    """Returns the request as a Call."""
    check: Callable[[pb.InvokeSessionRequest], Mapping[int, ToolResult]]
    """Returns answers for the calls that violate the contract, by index. Raises RpcFailure when the message itself
    does."""
    cancelled: Callable[[Call], ToolResult]
    """Returns the answer to a call that its caller cancelled."""
    journal: Journal
    shared: SharedLimit
    """Limit shared by all sessions of this process."""
    turns: Turns
    share: str
    """Key for fair turns of its calls."""
    max_in_flight: int


# All sessions of a hub


class Sessions:
    """Opens sessions, and ends them at shutdown."""

    def __init__(
        self,
        invoker: Invoker,
        clock: Clock,
        call_ids: CallIds,
        journal: Journal,
        turns: Turns,
        *,
        max_in_flight: int,
        max_of_all: int,
        faces: Faces | None = None,
    ) -> None:
        """`max_in_flight` limits the calls in flight of one session, `max_of_all` those of all sessions except the
        first call of each."""
        self._shared = SharedLimit(max_of_all)
        self._journal = journal
        self._turns = turns
        self._invoker = invoker
        self._faces = faces
        self._clock = clock
        self._call_ids = call_ids
        self._max_in_flight = max_in_flight
        self._envelope = Envelope()
        self._open: set[Session] = set()

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._open)

    @asynccontextmanager
    async def open_session(
        self, requests: AsyncIterator[pb.InvokeSessionRequest], context: ServicerContext
    ) -> AsyncIterator[Session]:
        """Yield a session that has begun; nothing of it runs after the body. Raises RpcFailure when the hub is shutting
        down."""
        session = Session(requests, self._terms(context))
        self._open.add(session)
        session.begin()
        try:
            yield session
        finally:
            try:
                await session.end()
            finally:
                self._open.discard(session)
        if session.is_cut_short:
            message = (
                "This hub is shutting down and accepts no more calls. All calls that you sent have been "
                "answered. Connect again."
            )
            raise RpcFailure(Reason.DRAINING, message)

    def drain(self) -> None:
        """Read no more calls; a session ends UNAVAILABLE when those that were read are answered."""
        for session in self._open:
            session.stop_reading()

    def _terms(self, context: ServicerContext) -> SessionTerms:
        caller = CALLER.get()
        deadline_s = answer_deadline_s(self._clock, context)

        def begin(request: pb.SessionCall) -> Call:
            return to_call(
                request,
                caller.principal,
                call_id=self._call_ids.next(),
                deadline_s=deadline_s,
                mode=MODES[request.mode],
            )

        return SessionTerms(
            invoker=self._invoker if self._faces is None else self._faces.behind(caller.face),
            begin=begin,
            check=self._check_message,
            cancelled=lambda call: result_of_refusal(
                call.call_id, call.tool, cancelled_error(), self._clock.unix_ms(), call.context.request_id
            ),
            journal=self._journal,
            shared=self._shared,
            turns=self._turns,
            share=caller.principal.share,
            max_in_flight=self._max_in_flight,
        )

    def _check_message(self, message: pb.InvokeSessionRequest) -> Mapping[int, ToolResult]:
        now_unix_ms = self._clock.unix_ms()
        return {
            place: result_of_refusal(
                self._call_ids.next(),
                message.calls[place].intent.tool[:_NAME_MAX],
                ToolError(ErrorKind.INVALID_INPUT, problem),
                now_unix_ms,
            )
            for place, problem in self._envelope.check_calls(message).items()
        }
