"""Asking a remote side again and again, for many jobs at once, without being a burden to either side.

One `Poller` serves all jobs of one endpoint. Each job is asked about at growing intervals with jitter (Brooker,
"Timeouts, retries, and backoff with jitter"); together they ask at most `per_s` times a second, whatever their number,
and at most `at_once` answers are waited for. A Retry-After (RFC 9110 §10.2.3) is honoured, within reason. Between two
questions a job costs one future and one timer. Whoever learns by another way that there is news (a WebSocket, a request
to stop that was accepted) says `poll_now`.
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
from toolhub_service.domain.errors import NOTHING_HAPPENED, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Randomness
from toolhub_service.domain.result import Evidence, EvidenceType

# The marks of work on a remote side, and the refusals when its end cannot be known.

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
    """At which point nobody could tell any more. The value is the `cause` in the error's details."""

    START = "START_UNCLEAR"
    END = "END_UNCLEAR"
    RESULT = "RESULT_UNCLEAR"


_HOW: Final[Mapping[UnclearPoint, str]] = {
    UnclearPoint.START: "was sent, and it is unknown whether it was accepted",
    UnclearPoint.END: "was accepted and may have run, or may still be running; its outcome is unknown",
    UnclearPoint.RESULT: "was accepted and has ended, but its result cannot be fetched",
}


def new_mark(job_id: str) -> RemoteMark:
    """A mark to be kept before anything is sent.

    The key is a UUID (lower case, as remote sides want ids) made from the job's id: two processes that both take the
    job for theirs send the same one, so that a remote side that knows its keys runs it once.
    """
    # From the job's id: each run of the job comes to the same key, whoever runs it.
    return RemoteMark(key=str(uuid.uuid5(_KEYS, job_id)))


def sent(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """A mark whose start is about to be sent."""
    details = {name: value for name, value in mark.details.items() if name != _REFUSED}
    return structs.replace(mark, details={**details, _SENT_AT: str(at_unix_ms)})


def refused(mark: RemoteMark) -> RemoteMark:
    """A mark whose start was refused: nothing runs, and there is nothing to look up."""
    return structs.replace(mark, details={**mark.details, _REFUSED: "true"})


def may_run(mark: RemoteMark) -> bool:
    """Whether the remote side has it, or may have: a start was sent and not refused."""
    return mark.accepted or (_SENT_AT in mark.details and _REFUSED not in mark.details)


def asked_to_stop(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """The mark of work that is about to be asked to stop."""
    return structs.replace(mark, details={**mark.details, _STOP_AT: str(at_unix_ms)})


def attached(mark: RemoteMark, accepted: RemoteMark) -> RemoteMark:
    """The accepted mark, of a remote side that has it, with one more run that follows it."""
    times = int(mark.details.get(_ATTACHED, "0")) + 1
    details = {**mark.details, **accepted.details, _ATTACHED: str(times)}
    return structs.replace(accepted, key=mark.key, accepted=True, details=details)


def facts(call: GrantedCall, mark: RemoteMark) -> dict[str, str]:
    """Where it runs and under which names: for evidence, and for whoever must look there."""
    known = {
        "endpoint": _place(call, mark),
        "remote_id": mark.remote_id,
        "remote_key": mark.key,
        _SENT_AT: mark.details.get(_SENT_AT, ""),
        _ATTACHED: mark.details.get(_ATTACHED, ""),
    }
    return {name: value for name, value in known.items() if value}


def evidence(call: GrantedCall, mark: RemoteMark) -> Evidence:
    """What is known of where it ran; details of the mark whose names begin with `_` are the adapter's own."""
    shown = {name: value for name, value in mark.details.items() if not name.startswith("_")}
    return Evidence(
        type=EvidenceType.TOOL,
        ref=mark.remote_id or mark.key,
        summary=f"ran at {_place(call, mark)}, {_name(mark)}",
        attributes={**shown, **facts(call, mark)},
    )


def unknown(call: GrantedCall, mark: RemoteMark, point: UnclearPoint, why: Exception) -> ToolFailure:
    """OUTCOME_UNKNOWN: what was sent where, and how one can find out. `why`: RemoteUnclear or ToolFailure."""
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


def located(call: GrantedCall, mark: RemoteMark, error: ToolError) -> ToolFailure:
    """The remote side's own verdict, with where it was given."""
    return ToolFailure(structs.replace(error, details={**facts(call, mark), **error.details}))


def never_sent(call: GrantedCall) -> ToolFailure:
    return refuse(ErrorKind.CANCELLED, f"{call.spec.name} was cancelled before it started; nothing happened.")


def not_taken(call: GrantedCall, mark: RemoteMark, starts: int, reason: str) -> ToolFailure:
    """It was sent `starts` times, and the remote side certainly has it not. `reason`: why not."""
    message = f"{_place(call, mark)} did not accept {call.spec.name}; nothing runs there. {reason.rstrip('. ')}."
    details: JsonObject = {**facts(call, mark), "starts": starts, "reason": reason}
    return ToolFailure(ToolError(ErrorKind.TOOL_UNAVAILABLE, f"{message} Try again later.", details=details))


def no_job(call: GrantedCall) -> ToolFailure:
    """A defect of the hub: work on a remote side was about to run without a record by which to find it again."""
    message = (
        f"{call.spec.name} runs only as a job, and this call has no job. Nothing was sent. Submit it as a job, and "
        "tell an operator."
    )
    return ToolFailure(ToolError(ErrorKind.INTERNAL, message, details={NOTHING_HAPPENED: True}))


def unforeseen(call: GrantedCall, mark: RemoteMark) -> ToolFailure:
    """A defect of the hub in the middle of it all; whatever runs on the remote side, runs on."""
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
    """Between the first two questions about a job, and after `poll_now`."""
    growth: float = 1.5
    longest_s: float = 15.0
    jitter: float = 0.2
    """Share by which an interval is shortened or lengthened."""
    at_once: int = 8
    """Questions under way at the endpoint."""
    per_s: float = 50.0
    """Questions a second at the endpoint, on average over all its jobs."""
    retry_after_max_s: float = 120.0
    """The longest Retry-After that is believed."""


class Answer(NamedTuple, Generic[Value]):
    """An answer of the remote side."""

    value: Value
    is_over: bool = False
    """Whether there is nothing more to ask."""
    retry_after_s: float = 0.0
    """The remote side wishes to be left alone for so long."""


class Unreachable(Exception):
    """No answer, or none worth the name: ask again later. Raised by questions."""

    def __init__(self, retry_after_s: float = 0.0) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


Question = Callable[[], Awaitable[Answer[Value]]]  # Asks once. Raises Unreachable, or what ends the asking.


class Poller:
    """Asks one endpoint about any number of jobs."""

    def __init__(self, randomness: Randomness, terms: PollTerms | None = None) -> None:
        self._randomness = randomness
        self._terms = terms or PollTerms()
        self._under_way = asyncio.Semaphore(self._terms.at_once)
        self._states: dict[str, _PollState] = {}
        self.asking = 0  # Jobs that are being asked about

    async def poll(self, ask: Question[Value], *, key: str = "") -> AsyncIterator[Value]:
        """The answers, each time one differs from the last one; ends with the last answer.

        `key` is what `poll_now` is called with; empty for questions that nobody asks to poll now.
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
                    # Progress that says nothing new would only fill the job's history.
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
        """The first answer, however long it takes: for what must be known, such as the result of an ended job."""
        state = _PollState(self._terms.first_s)
        while True:
            try:
                async with self._under_way:
                    return (await ask()).value
            except Unreachable as silent:
                await self._pause(state, silent.retry_after_s)

    def poll_now(self, key: str) -> None:
        """There is news of this job: ask now, and often again. Nothing happens when it is not being asked about."""
        state = self._states.get(key)
        if state is not None:
            state.poll_now(self._terms.first_s)

    async def _pause(self, state: _PollState, at_least_s: float) -> None:
        terms = self._terms
        # The more jobs are followed, the more seldom each: the remote side answers `per_s` questions a second at most.
        share_s = self.asking / terms.per_s
        jittered_s = max(state.interval_s, share_s) * self._randomness.uniform(1 - terms.jitter, 1 + terms.jitter)
        state.interval_s = min(state.interval_s * terms.growth, terms.longest_s)
        await state.pause(jittered_s + min(at_least_s, terms.retry_after_max_s))


class _PollState:
    """The pause of one job between two questions."""

    __slots__ = ("_is_woken", "_woken", "interval_s")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._woken: asyncio.Future[None] | None = None
        self._is_woken = False

    async def pause(self, seconds: float) -> None:
        """Until then, or until hurried; at once when hurried since the last pause."""
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
