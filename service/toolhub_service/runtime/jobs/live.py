"""A job in this process's hands: its changes happen one at a time, and stop when it is no longer ours.

What was sent to a store that did not answer may have been kept or not. So the same change, tried again, sends the very
same record, which is known again when it stands: nothing is put down twice, and nothing that was goes untold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import Job, JobNews
from toolhub_service.domain.job_state import JobState
from toolhub_service.runtime.jobs.ledger import JobLedger

Step = Callable[[Job], Job]


class Superseded(Exception):
    """The job has ended or has another runner: whatever is still being done for it here is void."""


class _Sent(NamedTuple):
    step: Step
    before: Job
    after: Job


class LiveJob:
    def __init__(self, job: Job, runner: str, ledger: JobLedger) -> None:
        self.job = job
        """As this process knows it."""
        self.stopping = asyncio.Event()
        self.heeds_stop = job.remote is not None
        """Whether the adapter ends by itself when `stopping` is set. What may run on a remote side already is stopped
        by its adapter and by nobody else, which must be reached first."""
        self.work: asyncio.Task[Any] | None = None
        """The walk of its call."""
        self.is_cut_off = False
        """Whether the work was cancelled."""
        self.ending: Step | None = None
        """The last entry, once it is known."""
        self.cause = ""
        """Why it is that, as far as the run tells."""
        self._runner = runner
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._sent: _Sent | None = None
        self._heard_of = 0
        self._has_missed = False

    async def change(self, step: Step, cause: str = "") -> Job:
        """`cause`: why, for the audit log. Raises Superseded, or ToolFailure when the store cannot be reached."""
        async with self._one_at_a_time:
            while True:
                before, (after, again) = self.job, self._next(step)
                if await self._ledger.put(before, after, again=again, told={"cause": cause} if cause else {}):
                    self._sent, self.job = None, after
                    return after
                self._sent = None
                await self._look()

    def hears(self, news: JobNews) -> None:
        """The store tells of an entry; without a status, or without an id, one must look."""
        self._heard_of = max(self._heard_of, news.sequence)
        self._has_missed = self._has_missed or not news.job_id
        if news.status is not None and news.status.state is JobState.CANCELLING:
            self.stop()

    @property
    def is_behind(self) -> bool:
        """Whether the store may have more than is known here."""
        return self._has_missed or self._heard_of > self.job.status.sequence

    async def catch_up(self) -> None:
        """Look at the store unless what was heard of was our own doing. Raises as `change`."""
        async with self._one_at_a_time:
            if not self.is_behind:
                return
            self._has_missed, heard_of = False, self._heard_of
            try:
                await self._look()
            except ToolFailure:
                self._has_missed = True
                raise
            if self._heard_of == heard_of:
                self._heard_of = 0

    def stop(self) -> None:
        """Cancellation was asked for."""
        self.stopping.set()
        if not self.heeds_stop:
            self.cut_off()

    def cut_off(self) -> None:
        """Cancel the work, once: a second time would cut off what it does to end well."""
        if self.work is not None and not self.is_cut_off:
            self.is_cut_off = True
            self.work.cancel()

    def _next(self, step: Step) -> tuple[Job, bool]:
        """The record to send, and whether it was sent before."""
        sent = self._sent
        if sent is not None and sent.step is step and sent.before is self.job:
            return sent.after, True
        self._sent = _Sent(step, self.job, step(self.job))
        return self._sent.after, False

    async def _look(self) -> None:
        job = await self._ledger.store.get(self.job.job_id)
        if job is None or job.state.is_final or job.runner != self._runner:
            self.heeds_stop = False
            self.stop()
            raise Superseded
        self.job = job
        if job.state is JobState.CANCELLING:  # whoever looks learns it: the news of it may count as old by now
            self.stop()


def not_ours() -> ToolFailure:
    return refuse(
        ErrorKind.CANCELLED, "Another process of the hub has taken this job, or it has ended; this run of it is void."
    )
