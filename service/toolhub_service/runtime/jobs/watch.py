"""Watches of jobs: one listener on the store per process, fanned out in memory.

A watcher holds only the last sequence it has sent. Events of a watched job are kept once in the tail of its topic,
which all its watchers read at their own pace; a watcher that has fallen behind the tail, or is new, reads the store. So
a slow watcher costs no more than a fast one and never delays the job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.job import Job, JobFilter, JobNews, JobStatus, move_job
from toolhub_service.domain.job_ports import JobEngine, JobObserver, JobStore
from toolhub_service.domain.result import FINAL_STATES, JobState
from toolhub_service.runtime.jobs.accept import deliver
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.settle import cancelled_job_error, end_job_unanswered, never_ran
from toolhub_service.runtime.redaction import replace_surrogates

TAIL_ENTRIES = 64
OPEN_STATES = frozenset(JobState) - FINAL_STATES
_READ_ENTRIES = 256
# Jobs that a watch of several remembers as done, so that it need not read them again.
_OTHERS_MAX = 10_000
# Seconds between attempts to read an unreachable store; the watchers stay.
_RETRY_S = 0.5

_Read = TypeVar("_Read")


class _WatchedJob:
    """One watched job."""

    __slots__ = ("changed", "gaps", "latest", "read_gaps", "reading", "tail", "watchers")

    def __init__(self) -> None:
        self.watchers = 0
        self.changed = asyncio.Event()
        """Set, and replaced, when there may be more entries."""
        self.tail: deque[JobStatus] = deque(maxlen=TAIL_ENTRIES)
        """Newest entries, without gaps."""
        self.latest = 0
        """Highest announced sequence."""
        self.gaps = 1
        """Number of gaps, after which entries may be missing; the start counts as one."""
        self.read_gaps = 0
        """Number of those gaps that reading the store has closed."""
        self.reading = asyncio.Lock()

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def since(self, sequence: int) -> Sequence[JobStatus] | None:
        """Return the entries after `sequence`; None when the store must be read."""
        if self.gaps != self.read_gaps:
            return None
        if self.latest <= sequence:
            return ()
        tail = self.tail
        if not tail or tail[-1].sequence < self.latest or tail[0].sequence > sequence + 1:
            return None
        return [tail[index] for index in range(sequence + 1 - tail[0].sequence, len(tail))]

    def put(self, status: JobStatus) -> None:
        self.latest = max(self.latest, status.sequence)
        if self.tail and status.sequence <= self.tail[-1].sequence:
            return
        if self.tail and status.sequence != self.tail[-1].sequence + 1:
            self.tail.clear()
        self.tail.append(status)


class _Several:
    """One watch of several jobs: what each has been sent, and which may have more entries."""

    def __init__(self, where: JobFilter | None) -> None:
        self.where = where
        """Filter for jobs that are followed once they are submitted; None follows the given jobs only."""
        self.places: dict[str, int] = {}
        """Last sequence that was sent, by job."""
        self.others: dict[str, None] = {}
        """The latest jobs that have ended or do not match."""
        self.pending: dict[str, None] = {}
        self.has_gap = False
        self.changed = asyncio.Event()
        """Set, and replaced, when there may be more entries."""

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def offer(self, news: JobNews) -> None:
        job_id = news.job_id
        if not job_id:
            self.has_gap = True
        elif job_id in self.places:
            if news.status is not None and news.sequence <= self.places[job_id]:
                return
            self.pending[job_id] = None
        elif self.where is None or job_id in self.others:
            return
        else:
            self.pending[job_id] = None
        self.wake()

    def note_sent(self, status: JobStatus) -> None:
        self.places[status.job_id] = status.sequence
        if status.state.is_final:
            self.leave(status.job_id)

    def leave(self, job_id: str) -> None:
        self.places.pop(job_id, None)
        self.pending.pop(job_id, None)  # entries that arrived during the last read have been sent with it
        self.others[job_id] = None
        if len(self.others) > _OTHERS_MAX:
            del self.others[next(iter(self.others))]


class JobWatch:
    """Implements `JobWatching` over the one listener of the store."""

    def __init__(self, store: JobStore, observer: JobObserver) -> None:
        self._store = store
        self.observer = observer
        self._topics: dict[str, _WatchedJob] = {}
        self._several: set[_Several] = set()
        self._is_draining = False
        self.watchers = 0
        """Number of watchers."""

    def on_event(self, news: JobNews) -> None:
        """Listener of the store."""
        for several in self._several:
            several.offer(news)
        if not news.job_id:
            for topic in self._topics.values():
                topic.gaps += 1
                topic.wake()
            return
        topic_of = self._topics.get(news.job_id)
        if topic_of is None:
            return
        if news.status is not None:
            topic_of.put(news.status)
        topic_of.latest = max(topic_of.latest, news.sequence)
        topic_of.wake()

    def drain(self) -> None:
        """End every watch with a status that asks the client to reconnect."""
        self._is_draining = True
        for topic in self._topics.values():
            topic.wake()
        for several in self._several:
            several.wake()

    async def watch(
        self, job: Job, after_sequence: int, *, from_first: bool = False
    ) -> AsyncGenerator[JobStatus, None]:
        job_id = job.job_id
        topic = self._topics.setdefault(job_id, _WatchedJob())
        topic.watchers += 1
        self._count(1)
        try:
            # A watcher ahead of its job follows it, too, without output: the job may end before that sequence.
            sequence = min(after_sequence, job.status.sequence)
            is_over = job.state.is_final and after_sequence >= job.status.sequence
            topic.latest = max(topic.latest, job.status.sequence)
            if after_sequence == 0 and not from_first:
                yield job.status
                sequence, is_over = job.status.sequence, job.state.is_final
            while not is_over:
                changed = topic.changed
                entries = await self._since(job_id, topic, sequence)
                for status in entries:
                    if status.sequence > after_sequence:
                        yield status
                    sequence, is_over = status.sequence, status.state.is_final
                if self._is_draining and not is_over:
                    raise _leaving()
                if not entries and changed is topic.changed:
                    await changed.wait()
        finally:
            self._count(-1)
            topic.watchers -= 1
            if not topic.watchers:
                self._topics.pop(job_id, None)

    async def watch_many(
        self, jobs: Sequence[Job], where: JobFilter | None, after_sequences: Mapping[str, int]
    ) -> AsyncGenerator[JobStatus, None]:
        """Implements `JobWatching.watch_many`."""
        several = _Several(where)
        self._several.add(several)
        self._count(1)
        try:
            async for status in self._first(several, jobs, after_sequences):
                yield status
            while where is not None or several.places:
                changed = several.changed
                for job_id in await self._affected_jobs(several):
                    async for status in self._later(several, job_id):
                        yield status
                if self._is_draining:
                    raise _leaving()
                if changed is several.changed and (where is not None or several.places):
                    await changed.wait()
        finally:
            self._count(-1)
            self._several.discard(several)

    async def _first(
        self, several: _Several, jobs: Sequence[Job], after_sequences: Mapping[str, int]
    ) -> AsyncGenerator[JobStatus, None]:
        """Yield the current state of each job, or its entries after the sequence that was seen."""
        for job in [*jobs, *await self._open(several.where)]:
            sequence = after_sequences.get(job.job_id, 0)
            if job.job_id in several.places or job.job_id in several.others:
                continue
            if sequence:
                several.places[job.job_id] = sequence
                async for status in self._later(several, job.job_id):
                    yield status
                if job.state.is_final:  # also when there were no later entries
                    several.leave(job.job_id)
            else:
                several.note_sent(job.status)
                yield job.status
        several.pending.update(dict.fromkeys(several.places))  # they may have new entries since they were read

    async def _open(self, where: JobFilter | None) -> Sequence[Job]:
        """Return the unfinished jobs that match the filter; none without a filter."""
        found: list[Job] = []
        after: tuple[int, str] | None = None
        while where is not None:
            open_ones = replace(where, states=OPEN_STATES)
            page = await self._retry_read("", partial(self._store.page, open_ones, after=after, limit=_READ_ENTRIES))
            jobs = () if page is None else page[0]
            found += jobs
            if len(jobs) < _READ_ENTRIES:
                break
            after = jobs[-1].created_at_unix_ms, jobs[-1].job_id
        return found

    async def _affected_jobs(self, several: _Several) -> Sequence[str]:
        """Return jobs that may have new entries; after a gap all open ones."""
        if several.has_gap:
            several.has_gap = False
            for job in await self._open(several.where):
                if job.job_id not in several.others:
                    several.places.setdefault(job.job_id, 0)
            several.pending.update(dict.fromkeys(several.places))
        pending, several.pending = several.pending, {}
        return list(pending)

    async def _later(self, several: _Several, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the entries of one job after the last one sent; none when the job is not followed."""
        if job_id not in several.places:
            job = await self._retry_read(job_id, partial(self._store.get, job_id))
            if job is None or several.where is None or not several.where.matches(job):
                several.leave(job_id)
                return
            several.places[job_id] = 0
        while (sequence := several.places.get(job_id)) is not None:
            topic = self._topics.get(job_id)
            entries = None if topic is None else topic.since(sequence)
            if entries is None:
                entries = await self._retry_read(job_id, partial(self._store.history, job_id, sequence, _READ_ENTRIES))
            if not entries:
                return
            for status in entries:
                several.note_sent(status)
                yield status

    def _count(self, change: int) -> None:
        self.watchers += change
        self.observer.watching(self.watchers)

    async def _since(self, job_id: str, topic: _WatchedJob, sequence: int) -> Sequence[JobStatus]:
        cached = topic.since(sequence)
        if cached is not None:
            return cached
        async with topic.reading:  # the others find in the tail what the first one has read
            cached = topic.since(sequence)
            return await self._read(job_id, topic, sequence) if cached is None else cached

    async def _read(self, job_id: str, topic: _WatchedJob, sequence: int) -> Sequence[JobStatus]:
        gaps = topic.gaps
        entries = await self._retry_read(job_id, lambda: self._store.history(job_id, sequence, _READ_ENTRIES)) or ()
        for status in entries:
            topic.put(status)
        if len(entries) < _READ_ENTRIES:
            topic.read_gaps = gaps
        if not entries and (topic.latest > sequence or gaps > 1):
            await self._check_exists(job_id)
        return entries

    async def _check_exists(self, job_id: str) -> None:
        """Raises ToolFailure NOT_FOUND when the job has been deleted, so there is nothing left to follow."""

        async def is_gone() -> bool:
            return await self._store.get(job_id) is None

        if await self._retry_read(job_id, is_gone):
            raise unknown(job_id)

    async def _retry_read(self, job_id: str, read: Callable[[], Awaitable[_Read]]) -> _Read | None:
        """Return the store's answer, retrying while it is unreachable; None when this process shuts down meanwhile."""
        while not self._is_draining:
            try:
                return await read()
            except ToolFailure as away:
                self.observer.on_problem(job_id, away)
                await asyncio.sleep(_RETRY_S)
        return None


def _leaving() -> HubFailure:
    return HubFailure(Reason.DRAINING, "This hub is shutting down. Watch again with the last sequence you have seen.")


def unknown(job_id: str) -> ToolFailure:
    return refuse(
        ErrorKind.NOT_FOUND,
        f"There is no job {job_id!r}, or it is not yours. Finished jobs are deleted after a time.",
        job_id=job_id,
    )


# The jobs of a principal: get, list, cancel.

_SEE_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})


def visible(principal: Principal, where: JobFilter) -> JobFilter | None:
    """Return the filter restricted to what the principal may see; None where that is nothing."""
    if principal.roles & _SEE_ALL and principal.may_know(where.principal or principal.id):
        return replace(where, owners=principal.owners)
    return replace(where, principal=principal.id) if where.principal in ("", principal.id) else None


class PrincipalJobs:
    """Implements `JobService`."""

    def __init__(self, ledger: JobLedger, engine: JobEngine) -> None:
        self._ledger = ledger
        self._engine = engine

    async def get(self, principal: Principal, job_id: str) -> Job:
        sees_others = bool(principal.roles & _SEE_ALL)
        job = await self._ledger.store.get(
            job_id, lambda owner: owner == principal.id or (sees_others and principal.may_know(owner))
        )
        if job is None:
            raise unknown(job_id)
        return job

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        """Return a page as `JobStore.page` does: the principal's own jobs, for operators and auditors all."""
        seen = visible(principal, where)
        return ((), 0) if seen is None else await self._ledger.store.page(seen, after=after, limit=limit)

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        job = await self.get(principal, job_id)
        if job.call.principal.id != principal.id and Role.OPERATOR not in principal.roles:
            raise unknown(job_id)
        mended_reason = replace_surrogates(reason)  # text from a model may not be valid for storage
        cancelled = await self._ledger.change(job_id, lambda now: self._cancel_job(now, principal.id, mended_reason))
        if cancelled is None:
            raise unknown(job_id)
        if cancelled.state is JobState.CANCELLING and not cancelled.runner:
            await deliver(self._engine, cancelled, self._ledger)
        return cancelled

    def _cancel_job(self, job: Job, by: str, reason: str) -> Job | None:
        if job.state.is_final or job.state is JobState.CANCELLING:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.state is JobState.RUNNING or job.remote is not None:
            return move_job(job, JobState.CANCELLING, now_unix_ms, cancel_reason=reason, cancelled_by=by)
        error = cancelled_job_error(job) if job.runs and job.replays else never_ran()
        over = end_job_unanswered(self._ledger, job, JobState.CANCELLED, error)
        return replace(over, cancel_reason=reason, cancelled_by=by)
