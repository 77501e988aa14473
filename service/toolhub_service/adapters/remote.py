"""Step 6 for work that runs on a remote side: at most once there, whatever dies, breaks or does not answer.

    no mark                mint one and keep it, then start; keep the accepted mark, then follow
        refused, or asked  nothing runs: keep that, and hand it on; the next run starts anew
    mark, not accepted     an earlier run died, or the answer was lost: look it up before anything is sent again
        found              keep the accepted mark, then follow
        certainly absent   start again under the same key
        nobody can tell    OUTCOME_UNKNOWN: the job is LOST
    accepted mark          follow again, never start

Work is followed to its end, and then its result is collected. Work that a remote side forgets is OUTCOME_UNKNOWN, never
done. The order of saving and sending is that of a write-ahead log; an idempotency key would make "look up before
resend" unnecessary, but n8n and ComfyUI honour none.

Work is stopped in three ways, each handled separately:

- Somebody cancels the job: `RunningJobs.stopping` is set. The remote side is asked to stop and followed until it has.
- The deadline passes: this coroutine is cancelled at or after `call.deadline_s` by the hub's clock. The remote side is
  asked once, for a bounded time, to stop.
- This process stops: this coroutine is cancelled before that. The remote side is left alone, because another run
  follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import structs

from toolhub_service.adapters.remote_polling import (
    CANNOT_STOP,
    LEFT_BEHIND,
    STOPPED_LATE,
    WILL_NOT_STOP,
    WILL_STOP,
    UnclearPoint,
    add_location,
    evidence,
    mark_of_follower,
    mark_of_refusal,
    mark_of_start,
    mark_of_stop,
    may_run,
    never_sent,
    new_mark,
    no_job,
    start_not_accepted,
    unforeseen,
    unknown,
)
from toolhub_service.domain.call import GrantedCall, QuestionAsked
from toolhub_service.domain.errors.failure import RemoteUnclear, ToolFailure
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.job_ports import RemoteJob, RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome, Progress


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    look_up_timeout_s: float = 60.0
    """Seconds for which a start of unknown outcome is looked up before it is reported as unknown."""
    lookups_min: int = 3
    """Minimum number of look-ups, however long an answer takes to fail."""
    absent_for_s: float = 2.0
    """Seconds for which a remote side must keep answering that it has no such job before the start is sent again: a
    request can still be under way when its sender is dead. 0 where the remote side refuses a repeated key."""
    starts_max: int = 3
    """Maximum number of starts, if the remote side certainly did not take the earlier ones."""
    stop_timeout_s: float = 5.0
    """Timeout of the one request to stop after the deadline."""
    pause_first_s: float = 0.25
    pause_max_s: float = 10.0
    """Longest pause between two attempts; pauses double from the first one, with jitter."""


Answer = TypeVar("Answer")

_TIMER_S: Final = 0.001  # a loop's timers may fire early by the resolution of its clock


class RemoteExecutor:
    """Runs remote work for an adapter: one executor for each `RemoteJob`, for any number of jobs."""

    def __init__(
        self,
        remote: RemoteJob,
        running: RunningJobs,
        clock: Clock,
        randomness: Randomness,
        terms: RemoteTerms | None = None,
    ) -> None:
        self.remote = remote
        self.running = running
        self.clock = clock
        self.terms = terms or RemoteTerms()
        self._randomness = randomness

    async def is_remote(self, call: GrantedCall) -> bool:
        """Return whether a call runs on the remote side: its tool is declared so, or its job has a mark, which proves
        it whatever the tool's current declaration says."""
        if call.spec.cost.is_async or not call.call.job_id:
            return call.spec.cost.is_async
        return await self.running.mark(call.call.job_id) is not None

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        """Run the call as `Adapter.execute` does, questions included; it must run as a job."""
        if not call.call.job_id:
            raise no_job(call)
        run = _Run(self, call, sink)
        try:
            return await run.outcome()
        except (ToolFailure, QuestionAsked):
            raise
        except asyncio.CancelledError:
            # A job that is cancelled before its deadline is handed over: the next runner continues its work.
            if self.clock.monotonic_s() >= call.deadline_s - _TIMER_S:
                await run.stop_at_deadline()
            raise
        except Exception as defect:
            raise unforeseen(call, run.mark) from defect

    def pauses(self) -> _Pauses:
        """Return the pauses between attempts at one thing."""
        return _Pauses(self.terms, self._randomness)


class _Pauses:
    """Growing pauses, with jitter."""

    def __init__(self, terms: RemoteTerms, randomness: Randomness) -> None:
        self._next_s = terms.pause_first_s
        self._max_s = terms.pause_max_s
        self._randomness = randomness

    async def pause(self) -> None:
        await asyncio.sleep(self._randomness.uniform(self._next_s / 2, self._next_s))
        self._next_s = min(2 * self._next_s, self._max_s)


class _Run:
    """One run of one job."""

    def __init__(self, on: RemoteExecutor, call: GrantedCall, sink: EventSink) -> None:
        self._on = on
        self._call = call
        self._sink = sink
        self._job_id = call.call.job_id
        self._stopping = on.running.stopping(self._job_id)
        self._last_progress = Progress(step=0)
        self._is_asked_to_stop = False
        self._has_ended = False
        self.mark = new_mark(self._job_id)  # as last stored, or about to be stored

    async def outcome(self) -> Outcome:
        await self._ensure_started()
        await self._follow()
        self._has_ended = True
        return await self._collect()

    async def stop_at_deadline(self) -> None:
        """Ask the remote side once to stop, in a task of its own: this one is being cancelled, and timeouts do not nest
        in that state before Python 3.12."""
        if self._has_ended or self._is_asked_to_stop or not may_run(self.mark):
            return
        asking = asyncio.create_task(self._stop_once())
        try:
            await asyncio.wait({asking}, timeout=self._on.terms.stop_timeout_s)
        finally:
            if not asking.done():
                asking.cancel()
                self._report(LEFT_BEHIND)

    async def _ensure_started(self) -> None:
        """Return when the remote side has the work and its accepted mark is stored."""
        kept = await self._with_retries(lambda: self._on.running.mark(self._job_id))
        taken = self.mark = kept or self.mark
        if not taken.accepted:
            found = await self._look_up() if may_run(taken) else None
            taken = found or await self._start()
        await self._keep(mark_of_follower(self.mark, taken))

    async def _start(self) -> RemoteMark:
        """Send the start, again only where it certainly was not taken. Return the accepted mark."""
        why = ""
        for _ in range(self._on.terms.starts_max):
            if self._stopping.is_set():
                raise never_sent(self._call)
            # Stored before sending, so that a run after a crash knows that there may be something to look up.
            await self._keep(mark_of_start(self.mark, self._on.clock.unix_ms()))
            try:
                return await self._on.remote.start(self._call, self.mark)
            except RemoteUnclear as unclear:
                why = str(unclear)
                found = await self._look_up()
            except (ToolFailure, QuestionAsked):
                # Stored so that a later run does not look for work that the server has certainly not taken.
                await self._keep(mark_of_refusal(self.mark))
                raise
            if found is not None:
                return found
        raise start_not_accepted(self._call, self.mark, self._on.terms.starts_max, why)

    async def _look_up(self) -> RemoteMark | None:
        """Return the accepted mark; None when the remote side has answered for long enough that it has none."""
        clock, terms, pauses = self._on.clock, self._on.terms, self._on.pauses()
        began_s = clock.monotonic_s()
        absent_since_s: float | None = None
        lookups = 0
        while True:
            lookups += 1
            try:
                found = await self._on.remote.find(self._call, self.mark)
            except (RemoteUnclear, ToolFailure) as unclear:
                if lookups >= terms.lookups_min and clock.monotonic_s() - began_s >= terms.look_up_timeout_s:
                    raise unknown(self._call, self.mark, UnclearPoint.START, unclear) from unclear
                absent_since_s = None  # only an unbroken series of clear answers proves that it never arrived
            else:
                if found is not None:
                    return found
                absent_since_s = clock.monotonic_s() if absent_since_s is None else absent_since_s
                if clock.monotonic_s() - absent_since_s >= terms.absent_for_s:
                    return None
            await pauses.pause()

    async def _follow(self) -> None:
        """Return when the remote work has ended. Raises QuestionAsked when it waits for a person; a later run finds it
        again."""
        stopper = asyncio.create_task(self._stop_when_asked())
        pauses = self._on.pauses()
        try:
            while not await self._follow_once():
                await pauses.pause()
        except (RemoteUnclear, ToolFailure) as unclear:
            raise unknown(self._call, self.mark, UnclearPoint.END, unclear) from unclear
        finally:
            stopper.cancel()
            await asyncio.wait({stopper})

    async def _follow_once(self) -> bool:
        """Return whether the work has ended; False: it asks a question but is to be stopped, which also ends it."""
        try:
            async for progress in self._on.remote.follow(self._call, self.mark):
                self._last_progress = progress
                self._sink.progress(progress)
        except QuestionAsked:
            if self._stopping.is_set():
                return False
            raise
        return True

    async def _collect(self) -> Outcome:
        try:
            outcome = await self._on.remote.collect(self._call, self.mark)
        except RemoteUnclear as unclear:
            raise unknown(self._call, self.mark, UnclearPoint.RESULT, unclear) from unclear
        except ToolFailure as verdict:
            raise add_location(self._call, self.mark, verdict.error) from verdict
        return structs.replace(outcome, evidence=(*outcome.evidence, evidence(self._call, self.mark)))

    async def _stop_when_asked(self) -> None:
        """Ask the remote side to stop, until it answers.

        The request is stored first: a run that has lost the job to another one fails there and does not ask.
        """
        await self._stopping.wait()
        try:
            await self._keep(mark_of_stop(self.mark, self._on.clock.unix_ms()))
        except ToolFailure:
            return
        pauses = self._on.pauses()
        while True:
            try:
                can_stop = await self._on.remote.cancel(self._call, self.mark)
            except RemoteUnclear:
                pass  # asked again after a pause, because the caller wants to know whether it stops
            except ToolFailure as refusal:
                if not refusal.error.is_retryable:
                    self._report(f"{WILL_NOT_STOP}: {refusal.error.message}")
                    return
            else:
                self._is_asked_to_stop = True
                self._report(WILL_STOP if can_stop else CANNOT_STOP)
                return
            await pauses.pause()

    async def _stop_once(self) -> None:
        try:
            # The start was sent but not answered: the work may run under an id that is found by its key.
            mark = self.mark if self.mark.accepted else await self._on.remote.find(self._call, self.mark)
            if mark is not None:
                can_stop = await self._on.remote.cancel(self._call, mark)
                self._report(STOPPED_LATE if can_stop else LEFT_BEHIND)
        except (RemoteUnclear, ToolFailure):
            self._report(LEFT_BEHIND)

    async def _keep(self, mark: RemoteMark) -> None:
        await self._with_retries(lambda: self._on.running.keep_mark(self._job_id, mark))
        self.mark = mark

    async def _with_retries(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the job store's answer, however long the store is unavailable; the deadline limits that."""
        # Nothing may continue without it: work that is sent without a stored mark cannot be found again.
        pauses = self._on.pauses()
        while True:
            try:
                return await ask()
            except ToolFailure as failure:
                if not failure.error.is_retryable:
                    raise
            await pauses.pause()

    def _report(self, message: str) -> None:
        """Report a message together with the last progress."""
        self._sink.progress(structs.replace(self._last_progress, message=message))
