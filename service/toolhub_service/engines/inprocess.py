"""The embedded engine: jobs run as tasks of this process, a bounded number at a time, in the order they came.

Nothing is kept here that outlives the process: what waits is a row of job ids. A job that waited or ran when the
process ended is found in the store when the next one starts, and by the reconciler.

A job that is enqueued while it runs is delivered once more when that run has ended, behind those that wait: whoever
enqueues has changed the job in the store first (handed over, approved), and the run under way may have read it before
that. It costs at most one delivery that finds nothing to do.
"""

from __future__ import annotations

from collections import OrderedDict

from toolhub_service.engines.runs import Run, Runs


class InprocessEngine:
    """A JobEngine for one process."""

    def __init__(self, max_running: int) -> None:
        """`max_running` is at least 1."""
        self._max_running = max_running
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._again: set[str] = set()
        """Enqueued while they run."""
        self._runs: Runs | None = None
        self._closed = False

    async def start(self, run: Run) -> None:
        self._runs = Runs(run, self._ended)
        self._fill()

    async def enqueue(self, job_id: str) -> None:
        """Never waits and never fails. Once the engine is closed nothing happens: the job stands in the store."""
        if self._closed:
            return
        if self._runs is not None and self._runs.get(job_id) is not None:
            self._again.add(job_id)
            return
        self._waiting[job_id] = None
        self._fill()

    @property
    def running(self) -> int:
        return len(self._runs) if self._runs is not None else 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._again)

    async def close(self, grace_s: float) -> None:
        self._closed = True
        self._waiting.clear()
        self._again.clear()
        if self._runs is not None:
            await self._runs.end(grace_s)

    def _ended(self, job_id: str) -> None:
        if job_id in self._again:
            self._again.remove(job_id)
            self._waiting[job_id] = None
        self._fill()

    def _fill(self) -> None:
        """Start as many of those that wait as there is room for."""
        if self._runs is None:
            return
        while self._waiting and len(self._runs) < self._max_running:
            job_id, _ = self._waiting.popitem(last=False)
            self._runs.start(job_id)
