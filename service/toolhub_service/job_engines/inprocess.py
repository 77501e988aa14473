"""The embedded engine: runs jobs as tasks of this process, a bounded number at a time, round-robin by tenant.

Jobs of one tenant start in order of arrival. The only state is a queue of job ids, which ends with the process. The
next process to start, and the reconciler, find jobs that waited or ran in the store.

A job that is enqueued while it runs is delivered again when that run has ended, behind the waiting ones: it was changed
in the store first (handed over, approved), and the current run may have read it before that. This costs at most one
delivery that finds nothing to do.

A run that waits for other jobs is parked: those may need its place to run at all. It gets a place again before any job
that has not begun.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolhub_service.job_engines.runs import Run, Runs


class WaitingJobs:
    """Ids of waiting jobs, each once: taken round-robin by tenant, and for each tenant in order of arrival."""

    def __init__(self) -> None:
        # By tenant, in round-robin order; none is empty.
        self._of: dict[str, OrderedDict[str, None]] = {}
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, job_id: str, tenant: str) -> None:
        if job_id not in self._ids:
            self._ids.add(job_id)
            self._of.setdefault(tenant, OrderedDict())[job_id] = None

    def take(self) -> str:
        """Return the next one. Raises StopIteration when none waits."""
        tenant, own = next(iter(self._of.items()))
        job_id, _ = own.popitem(last=False)
        self._ids.remove(job_id)
        del self._of[tenant]
        if own:
            self._of[tenant] = own  # behind the others
        return job_id

    def clear(self) -> None:
        self._of.clear()
        self._ids.clear()


class InprocessEngine:
    """A JobEngine for one process."""

    def __init__(self, max_running: int) -> None:
        """`max_running` is at least 1."""
        self._max_running = max_running
        self._waiting = WaitingJobs()
        # Jobs enqueued while they run, with their tenants.
        self._again: dict[str, str] = {}
        # By run: how many of its parts only wait.
        self._parked: Counter[str] = Counter()
        # Parked runs that wait for room to continue.
        self._returning: OrderedDict[str, asyncio.Future[None]] = OrderedDict()
        # Runs that may continue since a moment ago, and are still counted as parked.
        self._resumed: set[str] = set()
        self._runs: Runs | None = None
        self._closed = False

    async def start(self, run: Run) -> None:
        self._runs = Runs(run, self._on_run_end)
        self._fill()

    async def enqueue(self, job_id: str, tenant: str = "") -> None:
        """Enqueue a job; never waits and never fails.

        Does nothing once the engine is closed: the job is in the store.
        """
        if self._closed:
            return
        if self._runs is not None and self._runs.get(job_id) is not None:
            self._again[job_id] = tenant
            return
        self._waiting.add(job_id, tenant)
        self._fill()

    @asynccontextmanager
    async def park(self, job_id: str) -> AsyncIterator[None]:
        if self._runs is None or self._runs.get(job_id) is None:
            yield
            return
        self._parked[job_id] += 1
        self._fill()
        try:
            yield
            if self._parked[job_id] == 1:
                await self._wait_for_room(job_id)
        finally:
            self._resumed.discard(job_id)
            self._parked[job_id] -= 1
            if not self._parked[job_id]:
                del self._parked[job_id]

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

    async def _wait_for_room(self, job_id: str) -> None:
        """Return when a parked run may go on."""
        if self._closed or self._busy() < self._max_running:
            return  # parked runs come before all jobs that wait for their first delivery
        returning = self._returning[job_id] = asyncio.get_running_loop().create_future()
        try:
            await returning
        finally:
            self._returning.pop(job_id, None)

    def _busy(self) -> int:
        """Return how many runs take room."""
        return 0 if self._runs is None else len(self._runs) - len(self._parked) + len(self._resumed)

    def _on_run_end(self, job_id: str) -> None:
        tenant = self._again.pop(job_id, None)
        if tenant is not None:
            self._waiting.add(job_id, tenant)
        self._fill()

    def _fill(self) -> None:
        """Start as many waiting jobs as there is room for."""
        if self._runs is None:
            return
        room = self._max_running - self._busy()
        while self._returning and room > 0:
            room -= 1
            returning_id, returning = self._returning.popitem(last=False)
            self._resumed.add(returning_id)
            returning.set_result(None)
        while self._waiting and room > 0:
            room -= 1
            self._runs.start(self._waiting.take())
