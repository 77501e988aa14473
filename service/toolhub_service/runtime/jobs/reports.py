"""Reports of a running job on their way into its history: the newest one, at most ten a second.

An entry goes to every watcher of its job, so the more jobs run in a process, the fewer reports each makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import structs

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import Job, move_job
from toolhub_service.domain.ports import Sleep
from toolhub_service.domain.result import Chunk, Progress
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.live_job import LiveJob, Superseded
from toolhub_service.runtime.redaction import redact_text

INTERVAL_S = 0.1
INTERVAL_MAX_S = 2.0
# Each running job lengthens the interval of all: a thousand of them make no more entries than forty.
_JOB_S = 0.005
_MESSAGE_CHARS = 500
_UNIT_CHARS = 32


class JobSink:
    """Implements `EventSink` for one run."""

    def __init__(
        self,
        live: LiveJob,
        ledger: JobLedger,
        redactor: Redactor,
        running: Callable[[], int],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`running` returns how many jobs run in this process. `sleep` waits between two reports."""
        self._live = live
        self._ledger = ledger
        self._redactor = redactor
        self._running = running
        self._sleep = sleep
        self._latest: Progress | None = None
        self._is_new = False
        self._appending: asyncio.Task[None] | None = None
        self._is_closed = False

    def progress(self, progress: Progress) -> None:
        self._latest, self._is_new = progress, True
        if self._appending is None and not self._is_closed:
            self._appending = asyncio.create_task(self._append())

    def chunk(self, chunk: Chunk) -> None:
        """Dropped: the result has the whole output."""

    async def close(self) -> Progress | None:
        """Stop appending reports, and return the latest one for the last entry."""
        self._is_closed = True
        if (appending := self._appending) is not None:
            appending.cancel()
            await asyncio.wait({appending})
        return None if self._latest is None else continue_progress(self._live.job, self._redact_report(self._latest))

    async def _append(self) -> None:
        try:
            while self._is_new:
                self._is_new = False
                await self._report()
                await self._sleep(min(INTERVAL_MAX_S, max(INTERVAL_S, _JOB_S * self._running())))
        except Superseded:
            self._is_closed = True
        finally:
            self._appending = None

    async def _report(self) -> None:
        try:
            await self._live.change(self._append_report)
        except ToolFailure as unreachable:  # a report is not worth a retry: the next one is newer
            self._ledger.observer.on_problem(self._live.job.job_id, unreachable)

    def _append_report(self, job: Job) -> Job:
        assert self._latest is not None  # only then is there a report to append
        report = continue_progress(job, self._redact_report(self._latest))
        return move_job(job, job.state, self._ledger.clock.unix_ms(), progress=report)

    def _redact_report(self, progress: Progress) -> Progress:
        """Return the report redacted and cut for storage: a remote side may send any text."""
        message = excerpt(redact_text(progress.message, self._redactor), _MESSAGE_CHARS)
        unit = redact_text(progress.unit, self._redactor)[:_UNIT_CHARS]
        details = progress.details_json.decode(errors="replace")
        # A part of a JSON object is useless, so details that would need redaction are omitted whole.
        kept = progress.details_json if redact_text(details, self._redactor) == details else b""
        return Progress(progress.step, progress.total, unit, message, progress.eta_s, kept)


def continue_progress(job: Job, report: Progress) -> Progress:
    """Keep the progress that the history shows when another run follows the same work on a remote side, because it may
    have seen fewer steps. Work that starts again here starts its count again."""
    before = job.status.progress
    if before is None or job.remote is None or not job.remote.accepted:
        return report
    is_same = (before.unit, before.total) == (report.unit, report.total)
    return structs.replace(report, step=max(before.step, report.step)) if is_same else report
