"""What principals ask about jobs: get, list, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.job_machine import moved
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.job_state import JobState
from toolhub_service.domain.principal import Principal, Role
from toolhub_service.runtime.jobs.deliver import deliver
from toolhub_service.runtime.jobs.ending import ended, never_ran, without_answer
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.terms import JobTerms
from toolhub_service.runtime.jobs.watch import unknown

_SEE_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})


class Desk:
    """Implements `JobDesk`."""

    def __init__(self, ledger: JobLedger, engine: JobEngine, terms: JobTerms) -> None:
        self._ledger = ledger
        self._engine = engine
        self._terms = terms

    async def get(self, principal: Principal, job_id: str) -> Job:
        job = await self._ledger.store.get(job_id)
        if job is None or not (job.call.principal.id == principal.id or principal.roles & _SEE_ALL):
            raise unknown(job_id)
        return job

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        """As `JobStore.page`, of what the principal may see: its own, for operators and auditors all."""
        if not principal.roles & _SEE_ALL:
            if where.principal not in ("", principal.id):
                return (), 0
            where = replace(where, principal=principal.id)
        return await self._ledger.store.page(where, after=after, limit=limit)

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        job = await self.get(principal, job_id)
        if job.call.principal.id != principal.id and Role.OPERATOR not in principal.roles:
            raise unknown(job_id)
        said = reason.encode("utf-8", "replace").decode()  # a model's words are not always fit to be kept
        cancelled = await self._ledger.change(job_id, lambda now: self._cancelled(now, principal.id, said))
        if cancelled is None:
            raise unknown(job_id)
        if cancelled.state is JobState.CANCELLING and not cancelled.runner:
            await deliver(self._engine, job_id, self._ledger.observer)
        return cancelled

    def _cancelled(self, job: Job, by: str, reason: str) -> Job | None:
        if job.state.is_final or job.state is JobState.CANCELLING:
            return None
        now_unix_ms = self._ledger.clock.unix_ms()
        if job.state is JobState.RUNNING or job.remote is not None:
            return moved(job, JobState.CANCELLING, now_unix_ms, cancel_reason=reason, cancelled_by=by)
        over = ended(
            job, JobState.CANCELLED, without_answer(job, never_ran(), now_unix_ms), now_unix_ms, self._terms.keep_ms
        )
        return replace(over, cancel_reason=reason, cancelled_by=by)
