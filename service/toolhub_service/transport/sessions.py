"""All sessions of a hub: each opened under its RPC's principal and deadline, all told when the hub leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import grpc

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.call import Call
from toolhub_service.domain.ports import Clock, Invoker
from toolhub_service.domain.result import ToolResult
from toolhub_service.transport.call_ids import CallIds
from toolhub_service.transport.convert.call import to_call
from toolhub_service.transport.deadlines import answer_deadline_s
from toolhub_service.transport.envelope import Envelope
from toolhub_service.transport.rpc import ServicerContext, current_caller
from toolhub_service.transport.session import Session
from toolhub_service.transport.session_answers import cancelled_by_caller, malformed
from toolhub_service.transport.session_room import Crowd
from toolhub_service.transport.session_terms import MAX_IN_FLIGHT, MAX_OF_ALL, Journal, SessionTerms
from toolhub_service.transport.status import RpcFailure

_LAST_WORDS_S = 0.25
"""Kept back from the grace, so that calls that do not end in it are still answered."""


class Sessions:
    """Opens sessions, and lets them leave."""

    def __init__(
        self,
        invoker: Invoker,
        clock: Clock,
        call_ids: CallIds,
        journal: Journal,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_of_all: int = MAX_OF_ALL,
    ) -> None:
        """`max_in_flight` bounds the calls that are in flight in one session, `max_of_all` those of all but the first
        of each."""
        self._crowd = Crowd(max_of_all)
        self._journal = journal
        self._invoker = invoker
        self._clock = clock
        self._call_ids = call_ids
        self._max_in_flight = max_in_flight
        self._envelope = Envelope()
        self._open: set[Session] = set()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    @asynccontextmanager
    async def opened(
        self, requests: AsyncIterator[pb.InvokeSessionRequest], context: ServicerContext
    ) -> AsyncIterator[Session]:
        """A session that has begun; nothing of it runs any more at the end. Raises RpcFailure when the hub left."""
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
            message = "This hub is leaving and takes no more calls; what you sent has been answered. Connect again."
            raise RpcFailure(grpc.StatusCode.UNAVAILABLE, "DRAINING", message, retry_after_s=0.5)

    def drain(self, grace_s: float) -> None:
        """Read no more calls; what runs has so long to end, then it is cancelled. Each session ends UNAVAILABLE."""
        for session in self._open:
            session.stop_reading()
        asyncio.get_running_loop().call_later(max(0.0, grace_s - _LAST_WORDS_S), self._cut_off)

    def _cut_off(self) -> None:
        for session in self._open:
            session.cancel_all()

    def _terms(self, context: ServicerContext) -> SessionTerms:
        caller, deadline_s = current_caller(), answer_deadline_s(self._clock, context)

        def begin(request: pb.SessionCall) -> Call:
            return to_call(request, caller.principal, call_id=self._call_ids.next(), deadline_s=deadline_s)

        return SessionTerms(
            invoker=self._invoker,
            begin=begin,
            check=self._check,
            cancelled=lambda call: cancelled_by_caller(call, self._clock.unix_ms()),
            journal=self._journal,
            crowd=self._crowd,
            max_in_flight=self._max_in_flight,
        )

    def _check(self, message: pb.InvokeSessionRequest) -> Mapping[int, ToolResult]:
        problems = self._envelope.check_calls(message)
        return {place: self._malformed(message.calls[place], problem) for place, problem in problems.items()}

    def _malformed(self, request: pb.SessionCall, problem: str) -> ToolResult:
        return malformed(request, self._call_ids.next(), problem, self._clock.unix_ms())
