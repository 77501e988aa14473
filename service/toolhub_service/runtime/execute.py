"""Step 6: run the adapter inside its budget, with its retries.

A retry happens only when the error may pass, the call is safe to repeat and the deadline leaves room. A side
effect whose end nobody saw is OUTCOME_UNKNOWN, never a failure that invites a second run. A question is neither: it is
handed on.
"""

from __future__ import annotations

import asyncio

from toolhub_service.budget.lease import Lease
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.ports import Adapter, CallObserver, EventSink
from toolhub_service.domain.question import QuestionAsked
from toolhub_service.domain.result import Outcome
from toolhub_service.runtime.failures import outcome_unknown
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.walk import Walk
from toolhub_service.runtime.within import within


class Executor:
    """Runs granted calls on their adapters."""

    def __init__(self, observer: CallObserver, recorder: Recorder) -> None:
        self._observer = observer
        self._recorder = recorder

    async def execute(
        self, walk: Walk, granted: GrantedCall, lease: Lease, adapter: Adapter, sink: EventSink
    ) -> Outcome:
        """The outcome of the last attempt. Raises ToolFailure with the last attempt's error, or QuestionAsked."""
        walk.granted = granted
        while True:
            walk.attempts += 1
            try:
                ended = await self._attempt(granted, adapter, sink)
            except ToolFailure as failure:
                error = failure.error
                pause_s = lease.retry_pause_s(error, walk.attempts)
                if pause_s is None:
                    raise ToolFailure(_final(granted, error)) from failure
                self._recorder.retried(granted, walk, error, walk.attempts)
                await asyncio.sleep(pause_s)
            else:
                if isinstance(ended, QuestionAsked):
                    raise ended
                if ended.upstream_fails:
                    lease.blame()
                return ended

    async def _attempt(self, granted: GrantedCall, adapter: Adapter, sink: EventSink) -> Outcome | QuestionAsked:
        with self._observer.executing(granted):
            try:
                return await within(granted.deadline_s, adapter.execute(granted, sink))
            except TimeoutError as expired:
                raise ToolFailure(_timed_out(granted)) from expired
            except QuestionAsked as asked:
                return asked  # the attempt has not failed, and its span is not to say so


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
