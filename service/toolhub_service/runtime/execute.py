"""Step 6: run the adapter inside its budget, with its retries.

A retry happens only when the error may pass, the call is safe to repeat and the deadline leaves room. A side
effect whose end nobody saw is OUTCOME_UNKNOWN, never a failure that invites a second run. A question is neither: it is
handed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from toolhub_service.budget.lease import Lease
from toolhub_service.domain.call import GrantedCall, QuestionAsked
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.ports import Adapter, CallObserver, EventSink
from toolhub_service.domain.result import Chunk, Outcome, Progress
from toolhub_service.runtime.call_state import CallState
from toolhub_service.runtime.failures import outcome_unknown
from toolhub_service.runtime.record import Recorder

# Event sinks of the runtime itself.


class SilentSink:
    """Nobody listens: a unary call."""

    def progress(self, progress: Progress) -> None:
        """Dropped."""

    def chunk(self, chunk: Chunk) -> None:
        """Dropped: the whole output stands in the result."""


SILENT = SilentSink()


# Undoing what was begun although the one who began it is cancelled.

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await the work to its end, whatever cancels the one who waits; the cancellation itself is dropped."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


# A deadline for work that costs nothing where the work never waits.
#
# `asyncio.timeout_at` makes an object, a timer and an entry in the loop's heap for each use, 7 µs a call, and can do
# nothing to work that never gives the loop a turn. So the work is begun first, and a timer made only when it has come
# to its first wait: from there on it is asyncio's own timeout, in the task that runs the work all along.

Result = TypeVar("Result")


async def within(deadline_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns. Raises TimeoutError when it still waits at the deadline (loop clock)."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    async with asyncio.timeout_at(deadline_s):
        return await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, Result], awaited: Any) -> Generator[Any, Any, Result]:
    """Hand on to the task what begun work waits for, and to the work what comes of it (PEP 380, by hand)."""
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - cancellation too is the work's to see
                awaited = work.throw(thrown)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        result: Result = done.value
        return result


# Step 5: is there time, rate, a slot, quota, a closed breaker? The only place where a call becomes granted.


class Executor:
    """Runs granted calls on their adapters."""

    def __init__(self, observer: CallObserver, recorder: Recorder) -> None:
        self._observer = observer
        self._recorder = recorder

    async def execute(
        self, state: CallState, granted: GrantedCall, lease: Lease, adapter: Adapter, sink: EventSink
    ) -> Outcome:
        """The outcome of the last attempt. Raises ToolFailure with the last attempt's error, or QuestionAsked."""
        state.granted = granted
        while True:
            state.attempts += 1
            try:
                with self._observer.executing(granted):
                    try:
                        outcome = await within(granted.deadline_s, adapter.execute(granted, sink))
                    except TimeoutError as expired:
                        raise ToolFailure(_timed_out(granted)) from expired
                    except QuestionAsked as asked:
                        question = asked  # the attempt has not failed, and its span is not to say so
                    else:
                        if outcome.upstream_fails:
                            lease.blame()
                        return outcome
                raise question
            except ToolFailure as failure:
                error = failure.error
                pause_s = lease.retry_pause_s(error, state.attempts)
                if pause_s is None:
                    raise ToolFailure(_final(granted, error)) from failure
                self._recorder.retried(granted, state, error, state.attempts)
                await asyncio.sleep(pause_s)


def _timed_out(granted: GrantedCall) -> ToolError:
    return ToolError(
        kind=ErrorKind.TIMEOUT,
        message=f"{granted.spec.name} did not answer before its deadline; ask for less or allow more time.",
        details={"default_timeout_s": granted.spec.limits.timeout_s},
    )


def _final(granted: GrantedCall, error: ToolError) -> ToolError:
    """A timeout of a call that may have had an effect is an unknown outcome."""
    if error.kind in (ErrorKind.TIMEOUT, ErrorKind.HTTP_TIMEOUT) and not granted.safe_to_repeat:
        return outcome_unknown(granted.spec.name, error)
    return error
