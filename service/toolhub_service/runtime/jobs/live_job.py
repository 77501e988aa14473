"""A job that this process runs: its changes are made one at a time, and end when another process takes it.

A record that was sent to a store which did not answer may have been stored. So a repeated change sends the very same
record, which is recognised if it is there: nothing is written twice, and nothing goes unaudited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobNews
from toolhub_service.domain.result import JobState
from toolhub_service.runtime.jobs.ledger import JobLedger

Transition = Callable[[Job], Job]


class Superseded(Exception):
    """The job has ended or has another runner, so this run's changes are void."""


class _Sent(NamedTuple):
    transition: Transition
    before: Job
    after: Job


class LiveJob:
    def __init__(self, job: Job, runner: str, ledger: JobLedger) -> None:
        self.job = job
        """The job as this process knows it."""
        self.stopping = asyncio.Event()
        self.stops_itself = job.remote is not None
        """Whether the adapter ends by itself when `stopping` is set. Work that may run on a remote side already can be
        stopped by its adapter only, so the run must reach the adapter."""
        self.work: asyncio.Task[Any] | None = None
        """The pipeline's run of the job's call."""
        self.is_cancelled = False
        """Whether the work was cancelled."""
        self.is_superseded = False
        """Whether another process runs the job."""
        self.waits_within = ""
        """Approval that a call made by this run waits for."""
        self.ending: Transition | None = None
        """The transition that makes the last entry, once it is known."""
        self.cause = ""
        """Cause of the ending, as far as the run shows it."""
        self._runner = runner
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._sent: _Sent | None = None
        self._latest_sequence = 0
        self._has_missed = False

    async def change(self, transition: Transition, cause: str = "") -> Job:
        """Apply the transition and store the job; `cause` is the reason for the audit log. Raises Superseded, or
        ToolFailure when the store cannot be reached."""
        async with self._one_at_a_time:
            while True:
                before, (after, again) = self.job, self._next(transition)
                if await self._ledger.put(before, after, again=again, attributes={"cause": cause} if cause else {}):
                    self._sent, self.job = None, after
                    return after
                self._sent = None
                await self._reload()

    def on_event(self, news: JobNews) -> None:
        """Note an entry that the store announced; one without a status or an id must be read by `catch_up`."""
        self._latest_sequence = max(self._latest_sequence, news.sequence)
        self._has_missed = self._has_missed or not news.job_id
        if news.status is not None and news.status.state is JobState.CANCELLING:
            self.stop()

    @property
    def is_behind(self) -> bool:
        """Whether the store may have more than this process knows."""
        return self._has_missed or self._latest_sequence > self.job.status.sequence

    async def catch_up(self) -> None:
        """Read the record, unless the announced entry was this process's own. Raises as `change` does."""
        async with self._one_at_a_time:
            if not self.is_behind:
                return
            self._has_missed, latest_sequence = False, self._latest_sequence
            try:
                await self._reload()
            except ToolFailure:
                self._has_missed = True
                raise
            if self._latest_sequence == latest_sequence:
                self._latest_sequence = 0

    def stop(self) -> None:
        """Cancel the work where it does not stop itself: cancellation was requested."""
        self.stopping.set()
        if not self.stops_itself:
            self.cancel_work()

    def cancel_work(self) -> None:
        """Cancel the work, once: a second cancellation would interrupt its cleanup."""
        if self.work is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.work.cancel()

    def _next(self, transition: Transition) -> tuple[Job, bool]:
        """Return the record to send, and whether it was sent before."""
        sent = self._sent
        if sent is not None and sent.transition is transition and sent.before is self.job:
            return sent.after, True
        self._sent = _Sent(transition, self.job, transition(self.job))
        return self._sent.after, False

    async def _reload(self) -> None:
        job = await self._ledger.store.get(self.job.job_id)
        if job is None or job.state.is_final or job.runner != self._runner:
            self.stops_itself = False
            self.is_superseded = job is not None and not job.state.is_final
            self.stop()
            raise Superseded
        self.job = job
        if job.state is JobState.CANCELLING:  # its announcement may count as old by now
            self.stop()


def not_ours() -> ToolFailure:
    return refuse(
        ErrorKind.CANCELLED, "Another hub process took this job, or the job has ended. This run has no effect."
    )
