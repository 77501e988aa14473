"""Polling of a remote side for many jobs at once, with a limited load on both sides.

One `Poller` serves all jobs of one endpoint. Each job is polled at growing intervals with jitter (Brooker, "Timeouts,
retries, and backoff with jitter"); all jobs together send at most `per_s` requests a second and wait for at most
`at_once` answers. A Retry-After (RFC 9110 §10.2.3) is honoured up to a limit. Between two polls a job costs one future
and one timer. Code that learns of news in another way (a WebSocket, an accepted request to stop) calls `poll_now`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import structs

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import NOTHING_HAPPENED, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Randomness
from toolhub_service.domain.result import Evidence, EvidenceType

# The marks of work on a remote side, and the failures when its end cannot be known.

_KEYS: Final = uuid.UUID("5f0c1d52-6c0e-4a57-9b8e-4d1f3a1c7e10")
_ATTACHED: Final = "attached"
_SENT_AT: Final = "sent_at_unix_ms"
_REFUSED: Final = "refused"
_STOP_AT: Final = "stop_asked_at_unix_ms"

WILL_STOP: Final = "asked the remote server to stop; waiting for its confirmation"
CANNOT_STOP: Final = "the remote server cannot stop it; it runs to its end"
WILL_NOT_STOP: Final = "the remote server refuses to stop it; it runs to its end"
LEFT_BEHIND: Final = "its deadline passed, and the remote server could not be asked to stop"
STOPPED_LATE: Final = "its deadline passed; the remote server was asked to stop"


class UnclearPoint(Enum):
    """The point from which the outcome is unclear. The value is the `cause` in the error's details."""

    START = "START_UNCLEAR"
    END = "END_UNCLEAR"
    RESULT = "RESULT_UNCLEAR"


_HOW: Final[Mapping[UnclearPoint, str]] = {
    UnclearPoint.START: "was sent, and it is unknown whether it was accepted",
    UnclearPoint.END: "was accepted and may have run, or may still be running; its outcome is unknown",
    UnclearPoint.RESULT: "was accepted and has ended, but its result cannot be fetched",
}


def new_mark(job_id: str) -> RemoteMark:
    """Return a mark to be stored before anything is sent.

    Its key is a UUID (lower case, as remote sides expect ids) derived from the job's id: two processes that both run
    the job send the same key, so that a remote side that checks keys runs it once.
    """
    return RemoteMark(key=str(uuid.uuid5(_KEYS, job_id)))


def mark_of_start(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """Return the mark of a start that is about to be sent."""
    details = {name: value for name, value in mark.details.items() if name != _REFUSED}
    return structs.replace(mark, details={**details, _SENT_AT: str(at_unix_ms)})


def mark_of_refusal(mark: RemoteMark) -> RemoteMark:
    """Return the mark of a start that was refused: nothing runs, and there is nothing to look up."""
    return structs.replace(mark, details={**mark.details, _REFUSED: "true"})


def may_run(mark: RemoteMark) -> bool:
    """Return whether the remote side has the work or may have it: a start was sent and not refused."""
    return mark.accepted or (_SENT_AT in mark.details and _REFUSED not in mark.details)


def mark_of_stop(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """Return the mark of work that is about to be asked to stop."""
    return structs.replace(mark, details={**mark.details, _STOP_AT: str(at_unix_ms)})


def mark_of_follower(mark: RemoteMark, accepted: RemoteMark) -> RemoteMark:
    """Return the accepted mark of work that the remote side has, with one more run counted that follows it."""
    times = int(mark.details.get(_ATTACHED, "0")) + 1
    details = {**mark.details, **accepted.details, _ATTACHED: str(times)}
    return structs.replace(accepted, key=mark.key, accepted=True, details=details)


def facts(call: GrantedCall, mark: RemoteMark) -> dict[str, str]:
    """Return where the work runs and under which names, for evidence and for people who look there."""
    known = {
        "endpoint": _place(call, mark),
        "remote_id": mark.remote_id,
        "remote_key": mark.key,
        _SENT_AT: mark.details.get(_SENT_AT, ""),
        _ATTACHED: mark.details.get(_ATTACHED, ""),
    }
    return {name: value for name, value in known.items() if value}


def evidence(call: GrantedCall, mark: RemoteMark) -> Evidence:
    """Return what is known of where it ran; details of the mark with names that begin with `_` are the
    adapter's own."""
    shown = {name: value for name, value in mark.details.items() if not name.startswith("_")}
    return Evidence(
        type=EvidenceType.TOOL,
        ref=mark.remote_id or mark.key,
        summary=f"ran at {_place(call, mark)}, {_name(mark)}",
        attributes={**shown, **facts(call, mark)},
    )


def unknown(call: GrantedCall, mark: RemoteMark, point: UnclearPoint, why: Exception) -> ToolFailure:
    """OUTCOME_UNKNOWN: what was sent where, and how to find out. `why`: RemoteUnclear or ToolFailure."""
    reason = why.error.message if isinstance(why, ToolFailure) else str(why)
    advice = (
        "It is safe to call it again."
        if call.safe_to_repeat
        else "Check it there before you call it again: it may have had its effect."
    )
    at = f"{call.spec.name} at {_place(call, mark)}, {_name(mark)}"
    message = f"{at}: it {_HOW[point]}. {reason.rstrip('. ')}. {advice}"
    details = {**facts(call, mark), "cause": point.value, "reason": reason}
    return ToolFailure(ToolError(ErrorKind.OUTCOME_UNKNOWN, message, retryable=call.safe_to_repeat, details=details))


def add_location(call: GrantedCall, mark: RemoteMark, error: ToolError) -> ToolFailure:
    """Return the remote side's own error, with where it happened."""
    return ToolFailure(structs.replace(error, details={**facts(call, mark), **error.details}))


def never_sent(call: GrantedCall) -> ToolFailure:
    return refuse(ErrorKind.CANCELLED, f"{call.spec.name} was cancelled before it started; nothing happened.")


def start_not_accepted(call: GrantedCall, mark: RemoteMark, starts: int, reason: str) -> ToolFailure:
    """The start was sent `starts` times, and the remote side certainly did not take it. `reason`: why not."""
    message = f"{_place(call, mark)} did not accept {call.spec.name}; nothing runs there. {reason.rstrip('. ')}."
    details: JsonObject = {**facts(call, mark), "starts": starts, "reason": reason}
    return ToolFailure(ToolError(ErrorKind.TOOL_UNAVAILABLE, f"{message} Try again later.", details=details))


def no_job(call: GrantedCall) -> ToolFailure:
    """A defect of the hub: remote work was about to run without a record by which it could be found again."""
    message = (
        f"{call.spec.name} runs only as a job, and this call has no job. Nothing was sent. Submit it as a job, and "
        "tell an operator."
    )
    return ToolFailure(ToolError(ErrorKind.INTERNAL, message, details={NOTHING_HAPPENED: True}))


def unforeseen(call: GrantedCall, mark: RemoteMark) -> ToolFailure:
    """A defect of the hub during remote work; what runs on the remote side continues."""
    may = "Nothing was sent"
    where: JsonObject = {NOTHING_HAPPENED: True}
    if may_run(mark):
        may = "It may still run, and have its effect, on the remote server. Check there first"
        where = facts(call, mark)
    message = f"The hub failed while it ran {call.spec.name}. Operators find the error in the log. {may}."
    return ToolFailure(ToolError(ErrorKind.INTERNAL, message, details=where))


def _place(call: GrantedCall, mark: RemoteMark) -> str:
    return mark.endpoint or call.spec.endpoint or call.spec.upstream_key


def _name(mark: RemoteMark) -> str:
    return f"there known as {mark.remote_id} (key {mark.key})" if mark.remote_id else f"under the key {mark.key}"


Value = TypeVar("Value")

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class PollTerms:
    first_s: float = 0.25
    """Between the first two polls of a job, and after `poll_now`."""
    growth: float = 1.5
    longest_s: float = 15.0
    jitter: float = 0.2
    """Fraction by which an interval is shortened or lengthened."""
    at_once: int = 8
    """Maximum number of polls under way at the endpoint."""
    per_s: float = 50.0
    """Polls a second at the endpoint, on average over all its jobs."""
    retry_after_max_s: float = 120.0
    """The longest Retry-After that is honoured."""


class Answer(NamedTuple, Generic[Value]):
    """An answer of the remote side."""

    value: Value
    is_over: bool = False
    """Whether polling ends with this answer."""
    retry_after_s: float = 0.0
    """Seconds for which the remote side asks not to be polled."""


class Unreachable(Exception):
    """No usable answer arrived: poll again later. Raised by questions."""

    def __init__(self, retry_after_s: float = 0.0) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


Question = Callable[[], Awaitable[Answer[Value]]]  # asks once; raises Unreachable, or what ends the polling


class Poller:
    """Polls one endpoint for any number of jobs."""

    def __init__(self, randomness: Randomness, terms: PollTerms | None = None) -> None:
        self._randomness = randomness
        self._terms = terms or PollTerms()
        self._under_way = asyncio.Semaphore(self._terms.at_once)
        self._states: dict[str, _PollState] = {}
        self.asking = 0  # jobs that are being polled

    async def poll(self, ask: Question[Value], *, key: str = "") -> AsyncIterator[Value]:
        """Yield each answer that differs from the one before; the last answer ends the iteration.

        `key` is the argument for `poll_now`; empty for questions that are never polled early.
        """
        state = _PollState(self._terms.first_s)
        self.asking += 1
        if key:
            self._states[key] = state
        before: object = _NOTHING
        try:
            while True:
                at_least_s = 0.0
                try:
                    async with self._under_way:
                        answer = await ask()
                except Unreachable as silent:
                    at_least_s = silent.retry_after_s
                else:
                    # Unchanged progress would only fill the job's history.
                    if answer.value != before:
                        before = answer.value
                        yield answer.value
                    if answer.is_over:
                        return
                    at_least_s = answer.retry_after_s
                await self._pause(state, at_least_s)
        finally:
            self.asking -= 1
            if self._states.get(key) is state:
                del self._states[key]

    async def answer(self, ask: Question[Value]) -> Value:
        """Return the first answer, however long it takes: for what must be known, such as the result of an
        ended job."""
        state = _PollState(self._terms.first_s)
        while True:
            try:
                async with self._under_way:
                    return (await ask()).value
            except Unreachable as silent:
                await self._pause(state, silent.retry_after_s)

    def poll_now(self, key: str) -> None:
        """Poll this job now and at short intervals again, because there is news of it. Does nothing when it is not
        being polled."""
        state = self._states.get(key)
        if state is not None:
            state.poll_now(self._terms.first_s)

    async def _pause(self, state: _PollState, at_least_s: float) -> None:
        terms = self._terms
        # The more jobs are followed, the less often each is polled: the remote side answers at most `per_s` polls a
        # second.
        share_s = self.asking / terms.per_s
        jittered_s = max(state.interval_s, share_s) * self._randomness.uniform(1 - terms.jitter, 1 + terms.jitter)
        state.interval_s = min(state.interval_s * terms.growth, terms.longest_s)
        await state.pause(jittered_s + min(at_least_s, terms.retry_after_max_s))


class _PollState:
    """The pause of one job between two polls."""

    __slots__ = ("_is_woken", "_woken", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._woken: asyncio.Future[None] | None = None
        self._is_woken = False

    async def pause(self, seconds: float) -> None:
        """Wait so many seconds or until `poll_now`; return at once when `poll_now` was called since the last pause."""
        if not self._is_woken:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._woken
            finally:
                timer.cancel()
                self._woken = None
        self._is_woken = False

    def poll_now(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._is_woken = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
