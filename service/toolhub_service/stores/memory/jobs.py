"""Jobs in the memory of one process: for tests, and for hubs whose work may be lost with them.

No method awaits between a read and a change, so each is one compare-and-set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from toolhub_service.domain.call import Owners
from toolhub_service.domain.job import Job, JobCounts, JobFilter, JobNews, JobStatus, has_new_entry
from toolhub_service.domain.result import JobState
from toolhub_service.stores.record_store import job_facts, jobs_where

_Scope: TypeAlias = tuple[str, str, str]


class MemoryJobs:
    """Implements `JobStore`."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        # Jobs that are not final: sweeps read these every few seconds, and never all jobs.
        self._open: dict[str, Job] = {}
        self._histories: dict[str, list[JobStatus]] = {}
        self._by_key: dict[_Scope, str] = {}
        self._alive_until_unix_ms: dict[str, int] = {}
        self._on_event: Callable[[JobNews], None] | None = None

    async def create(self, job: Job) -> Job | None:
        scope = _scope(job)
        existing = self._jobs.get(self._by_key.get(scope, job.job_id))
        if existing is not None:
            return existing
        if scope[-1]:
            self._by_key[scope] = job.job_id
        self._histories[job.job_id] = []
        self._keep(job, new_entry=True)
        return None

    async def get(self, job_id: str, seen: Owners | None = None) -> Job | None:
        job = self._jobs.get(job_id)
        return None if job is None or (seen is not None and not seen(job.call.principal.id)) else job

    async def put(self, job: Job) -> bool:
        before = self._jobs.get(job.job_id)
        if before is None or before.version != job.version - 1:
            return False
        self._keep(job, new_entry=has_new_entry(job, before))
        return True

    async def history(self, job_id: str, after_sequence: int, limit: int) -> Sequence[JobStatus]:
        entries = self._histories.get(job_id, [])
        if not entries:
            return []
        start = max(0, after_sequence + 1 - entries[0].sequence)
        return entries[start : start + limit]

    async def page(self, where: JobFilter, *, after: tuple[int, str] | None, limit: int) -> tuple[Sequence[Job], int]:
        terms = jobs_where(where)
        found = (job for job in self._jobs.values() if terms.matches(job_facts(job)))
        matching = sorted(found, key=_place, reverse=True)
        behind = [job for job in matching if after is None or _place(job) < after]
        return behind[:limit], len(matching)

    async def beat(self, runner: str, alive_until_unix_ms: int) -> None:
        if alive_until_unix_ms:
            self._alive_until_unix_ms[runner] = alive_until_unix_ms
        else:
            self._alive_until_unix_ms.pop(runner, None)

    async def find_unattended(self, now_unix_ms: int, queued_before_unix_ms: int, limit: int) -> Sequence[Job]:
        found = [job for job in self._open.values() if self._is_unattended(job, now_unix_ms, queued_before_unix_ms)]
        return sorted(found, key=lambda job: (job.state is JobState.QUEUED, *_waiting(job)))[:limit]

    async def awaiting(self, after: tuple[int, str] | None, limit: int) -> Sequence[Job]:
        found = sorted((job for job in self._open.values() if job.state is JobState.AWAITING_APPROVAL), key=_waiting)
        return [job for job in found if after is None or _waiting(job) > after][:limit]

    async def is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return self._is_alive(runner, now_unix_ms)

    async def forget(self, now_unix_ms: int, limit: int) -> int:
        finished = [job for job in self._jobs.values() if job.state.is_final and job.expires_at_unix_ms > 0]
        over = (job for job in finished if job.expires_at_unix_ms <= now_unix_ms)
        expired = sorted(over, key=lambda job: job.expires_at_unix_ms)[:limit]
        for job in expired:
            del self._jobs[job.job_id], self._histories[job.job_id]
            self._by_key.pop(_scope(job), None)
        for runner, until_unix_ms in list(self._alive_until_unix_ms.items()):
            if until_unix_ms <= now_unix_ms:
                del self._alive_until_unix_ms[runner]
        return len(expired)

    async def count_jobs(self) -> JobCounts:
        queued = [job for job in self._open.values() if job.state is JobState.QUEUED]
        oldest = min(queued, key=lambda job: (job.status.at_unix_ms, job.created_at_unix_ms), default=None)
        by_state = Counter(job.state for job in self._open.values())
        return JobCounts(dict(by_state), None if oldest is None else oldest.created_at_unix_ms)

    def listen(self, on_event: Callable[[JobNews], None]) -> None:
        self._on_event = on_event

    async def start(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def _keep(self, job: Job, *, new_entry: bool) -> None:
        status = job.status
        self._jobs[job.job_id] = job
        if status.state.is_final:
            self._open.pop(job.job_id, None)
        else:
            self._open[job.job_id] = job
        if new_entry:
            self._histories[job.job_id].append(status)
            if self._on_event is not None:
                self._on_event(JobNews(job.job_id, status.sequence, status))

    def _is_unattended(self, job: Job, now_unix_ms: int, queued_before_unix_ms: int) -> bool:
        state = job.state
        if state is JobState.AWAITING_APPROVAL:
            return False
        return (
            job.deadline_unix_ms <= now_unix_ms
            or (state is JobState.QUEUED and job.status.at_unix_ms < queued_before_unix_ms)
            or (state is not JobState.QUEUED and not self._is_alive(job.runner, now_unix_ms))
        )

    def _is_alive(self, runner: str, now_unix_ms: int) -> bool:
        return self._alive_until_unix_ms.get(runner, 0) > now_unix_ms


def _scope(job: Job) -> _Scope:
    return job.call.principal.id, job.call.tool, job.call.idempotency_key


def _place(job: Job) -> tuple[int, str]:
    return job.created_at_unix_ms, job.job_id


def _waiting(job: Job) -> tuple[int, str]:
    return job.status.at_unix_ms, job.job_id
