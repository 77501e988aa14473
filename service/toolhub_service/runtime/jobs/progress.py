"""Reports of a running job on their way into its history: the newest one, at most ten a second.

An entry goes to every watcher of its job, so the more jobs run in a process, the fewer reports each makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.progress import Chunk, Progress
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.live import LiveJob, Superseded

INTERVAL_S = 0.1
INTERVAL_MAX_S = 2.0
_JOB_S = 0.005
"""Each running job lengthens the interval of all: a thousand of them make no more entries than forty."""
_MESSAGE_CHARS = 500
_UNIT_CHARS = 32


class JobSink:
    """Implements `EventSink` for one run."""

    def __init__(self, live: LiveJob, ledger: JobLedger, redactor: Redactor, running: Callable[[], int]) -> None:
        """`running`: how many jobs run in this process now."""
        self._live = live
        self._ledger = ledger
        self._redactor = redactor
        self._running = running
        self._latest: Progress | None = None
        self._is_new = False
        self._appending: asyncio.Task[None] | None = None
        self._is_closed = False

    def progress(self, progress: Progress) -> None:
        self._latest, self._is_new = progress, True
        if self._appending is None and not self._is_closed:
            self._appending = asyncio.create_task(self._append())

    def chunk(self, chunk: Chunk) -> None:
        """Dropped: the whole output stands in the result."""

    async def close(self) -> Progress | None:
        """No report is appended any more; the latest one, for the last entry."""
        self._is_closed = True
        if (appending := self._appending) is not None:
            appending.cancel()
            await asyncio.wait({appending})
        return None if self._latest is None else carried_on(self._live.job, self._told(self._latest))

    async def _append(self) -> None:
        try:
            while self._is_new:
                self._is_new = False
                await self._report()
                await asyncio.sleep(min(INTERVAL_MAX_S, max(INTERVAL_S, _JOB_S * self._running())))
        except Superseded:
            self._is_closed = True
        finally:
            self._appending = None

    async def _report(self) -> None:
        try:
            await self._live.change(self._reported)
        except ToolFailure as unreachable:  # a report is worth no trouble: the next one is newer
            self._ledger.observer.troubled(self._live.job.job_id, unreachable)

    def _reported(self, job: Job) -> Job:
        assert self._latest is not None  # only then is there something to append
        told = carried_on(job, self._told(self._latest))
        return moved(job, job.state, self._ledger.clock.unix_ms(), progress=told)

    def _told(self, progress: Progress) -> Progress:
        """As it may be shown and can be kept: a remote side's words are anything but plain text."""
        message = self._plain(progress.message)[:_MESSAGE_CHARS]
        unit = self._plain(progress.unit)[:_UNIT_CHARS]
        return Progress(progress.step, progress.total, unit, message, progress.eta_s)

    def _plain(self, text: str) -> str:
        return self._redactor.text(text.encode("utf-8", "replace").decode()) if text else ""


def carried_on(job: Job, told: Progress) -> Progress:
    """Work on a remote side goes on when its run here is another one, which may have heard of fewer steps: what the
    history says was reached stays reached. Work that begins anew here counts anew."""
    before = job.status.progress
    if before is None or job.remote is None or not job.remote.accepted:
        return told
    is_same = (before.unit, before.total) == (told.unit, told.total)
    return replace(told, step=max(before.step, told.step)) if is_same else told
