"""Long work of a hub: jobs and who runs them, put together, started and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from toolhub_service.app.means import Means
from toolhub_service.app.storing import Stores, not_installed
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.job import JobNews
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.ports import AuditLog, Catalog, Invoker
from toolhub_service.domain.principal import Principal
from toolhub_service.engines.inprocess import InprocessEngine
from toolhub_service.runtime.approval_watch import ApprovalNews
from toolhub_service.runtime.approvals import Approvals
from toolhub_service.runtime.jobs.accept import Acceptance
from toolhub_service.runtime.jobs.decisions import Decisions
from toolhub_service.runtime.jobs.desk import Desk
from toolhub_service.runtime.jobs.ledger import JobLedger
from toolhub_service.runtime.jobs.life import Life
from toolhub_service.runtime.jobs.reconcile import Reconciler
from toolhub_service.runtime.jobs.run import JobRuns
from toolhub_service.runtime.jobs.submit import Submission
from toolhub_service.runtime.jobs.terms import JobTerms
from toolhub_service.runtime.jobs.unwaited import Unwaited
from toolhub_service.runtime.jobs.watch import JobWatch
from toolhub_service.telemetry.job_telemetry import JobTelemetry
from toolhub_service.telemetry.trace_context import current_traceparent


@dataclass(slots=True)
class LongWork:
    """Made by `make_long_work`; `begin` with the pipeline, `start`, then `leave` and `close`."""

    engine: JobEngine
    runs: JobRuns
    watch: JobWatch
    desk: Desk
    acceptance: Acceptance
    approvals: Approvals
    approval_news: ApprovalNews
    reconciler: Reconciler
    life: Life
    stores: Stores
    _reconciling: asyncio.Task[None] | None = field(default=None)

    def submission(self, invoker: Invoker, catalog: Catalog) -> Submission:
        """The pipeline is made after this, for its adapters ask about their jobs."""
        self.runs.invoker = invoker
        return Submission(invoker, self.acceptance, self.stores.jobs, catalog)

    async def start(self) -> None:
        """Jobs are run from here on, those of processes that died, too."""
        await self.life.beat()
        await self.engine.start(self.runs.run)
        self._reconciling = asyncio.create_task(self.reconciler.run())

    def leave(self) -> None:
        """Watchers are told to come again, here or to another process."""
        self.watch.drain()
        self.approval_news.close()

    async def close(self, grace_s: float) -> None:
        """What runs gets its grace, the rest is handed over."""
        await self.engine.close(grace_s)
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.wait({self._reconciling})
            await self.life.leave()


def make_long_work(
    means: Means,
    stores: Stores,
    audit: AuditLog,
    approvals: Approvals,
    describe: Callable[[str], Principal],
    tidy: Sequence[Callable[[int], Awaitable[int]]],
) -> LongWork:
    """`describe`: a principal under the policy in force. `tidy`: what else is removed when it has expired."""
    terms, clock, observing = _terms(means), means.clock, means.observing
    observer = JobTelemetry(observing.metrics, observing.tracing, observing.log, clock.unix_ms)
    ledger = JobLedger(stores.jobs, audit, observer, clock, approvals.withdraw)
    life = Life(stores.jobs, observer, clock, f"runner_{means.randomness.token_hex(8)}", terms)
    runs = JobRuns(ledger, life, means.redactor, terms, describe)
    watch = JobWatch(stores.jobs, observer)

    def heard(news: JobNews) -> None:
        watch.heard(news)
        runs.heard(news)

    stores.jobs.listen(heard)
    engine = _engine(means)
    decisions = Decisions(ledger, engine, stores.approvals, terms)
    approval_news = ApprovalNews(stores.approvals)
    approval_news.listen(decisions.heard)
    approval_news.listen(approvals.heard)
    acceptance = Acceptance(
        ledger, engine, clock, means.randomness, terms, means.redactor, trace_parent=current_traceparent
    )
    reconciler = Reconciler(
        stores.jobs,
        engine,
        life,
        observer,
        clock,
        terms,
        awaiting=decisions.look_after,
        give_up=runs.give_up,
        each_time=[approvals.sweep],
        tidy=[*tidy, Unwaited(stores.approvals, ledger).withdraw],
    )
    desk = Desk(ledger, engine, terms)
    return LongWork(engine, runs, watch, desk, acceptance, approvals, approval_news, reconciler, life, stores)


def _engine(means: Means) -> JobEngine:
    settings = means.settings
    if settings.jobs.engine == "inprocess":
        return InprocessEngine(settings.jobs.max_running)
    if not settings.stores.redis_url:
        raise HubFailure(
            HubStatus.FAILED_PRECONDITION,
            "ENGINE_NEEDS_REDIS",
            "jobs.engine is docket, which delivers through Redis: set stores.redis_url, or jobs.engine to inprocess.",
        )
    try:
        from toolhub_service.engines.docket_engine import DocketEngine
    except ModuleNotFoundError as missing:
        raise not_installed("jobs.engine docket", "docket") from missing
    name = f"{settings.stores.redis_prefix}docket"
    redelivery_s = 1.5 * settings.jobs.dead_after_s  # no sooner than a death is noticed
    return DocketEngine(settings.stores.redis_url, name, settings.jobs.max_running, redelivery_s)


def _terms(means: Means) -> JobTerms:
    jobs = means.settings.jobs
    return JobTerms(
        default_timeout_s=jobs.default_timeout_s,
        max_timeout_s=jobs.max_timeout_s,
        max_open=jobs.max_open,
        keep_s=jobs.keep_s,
        heartbeat_s=jobs.heartbeat_s,
        dead_after_s=jobs.dead_after_s,
    )
