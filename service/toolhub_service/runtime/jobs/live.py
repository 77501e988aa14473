"""A job in this process's hands: its changes happen one at a time, and stop when it is no longer ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_state import JobState
from toolhub_service.runtime.jobs.ledger import JobLedger


class Superseded(Exception):
    """The job has ended or has another runner: whatever is still being done for it here is void."""


class LiveJob:
    def __init__(self, job: Job, runner: str, ledger: JobLedger) -> None:
        self.job = job
        """As this process knows it."""
        self.stopping = asyncio.Event()
        self.heeds_stop = job.remote is not None
        """Whether the adapter ends by itself when `stopping` is set: work on a remote side is stopped there."""
        self.work: asyncio.Task[Any] | None = None
        """The walk of its call; cancelled to stop it."""
        self._runner = runner
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()

    async def change(self, step: Callable[[Job], Job]) -> Job:
        """Raises Superseded, or ToolFailure when the store cannot be reached."""
        async with self._one_at_a_time:
            while True:
                after = step(self.job)
                if await self._ledger.put(self.job, after):
                    self.job = after
                    return after
                await self._look()

    async def heard(self, state: JobState | None) -> None:
        """The store has news of it; None: look."""
        if state is None:
            async with self._one_at_a_time:
                await self._look()
            state = self.job.state
        if state is JobState.CANCELLING:
            self.stop()

    def stop(self) -> None:
        """Cancellation was asked for."""
        self.stopping.set()
        if not self.heeds_stop and self.work is not None:
            self.work.cancel()

    async def _look(self) -> None:
        job = await self._ledger.store.get(self.job.job_id)
        if job is None or job.state.is_final or job.runner != self._runner:
            if self.work is not None:
                self.work.cancel()
            raise Superseded
        self.job = job


def not_ours() -> ToolFailure:
    return refuse(
        ErrorKind.CANCELLED, "Another process of the hub has taken this job, or it has ended; this run of it is void."
    )
