"""Wires budgets, approvals, idempotency, jobs and the pipeline of the nine steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from toolhub_service.app.config_files.runner_locks import RunnerLocks
from toolhub_service.app.wiring.audit import make_unended, make_upkeep
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.stores import Stores, not_installed
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.app.wiring.tools import Toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.job import JobNews
from toolhub_service.domain.job_ports import JobEngine
from toolhub_service.domain.ports import Adapter, AuditLog, Catalog, InnerCalls, Invoker, PolicySource
from toolhub_service.domain.storage import Room
from toolhub_service.domain.tool import ToolKind
from toolhub_service.job_engines.inprocess import InprocessEngine
from toolhub_service.policy.live import LivePolicy
from toolhub_service.runtime.approvals.gate import Approvals
from toolhub_service.runtime.approvals.watch import ApprovalNews
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.inner_calls.calls import InnerCallDeps
from toolhub_service.runtime.inner_calls.log import DurableCallDeps, JobLogs
from toolhub_service.runtime.jobs.accept import Acceptance, Submission
from toolhub_service.runtime.jobs.decisions import Decisions, OrphanedApprovals
from toolhub_service.runtime.jobs.heartbeat import Heartbeat
from toolhub_service.runtime.jobs.ledger import JobLedger, JobTerms
from toolhub_service.runtime.jobs.reconcile import Reconciler
from toolhub_service.runtime.jobs.run import JobRuns, all_read
from toolhub_service.runtime.jobs.watch import JobWatch, PrincipalJobs
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.route import Unread
from toolhub_service.runtime.steps import Executor
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.stores.audit.unended import UnendedCalls
from toolhub_service.stores.audit.upkeep import AuditUpkeep
from toolhub_service.telemetry.approvals import ApprovalTelemetry, ApprovalWebhook, check_webhook
from toolhub_service.telemetry.jobs import JobTelemetry
from toolhub_service.telemetry.trace_context import current_traceparent

Sweep = Callable[[int], Awaitable[int]]
"""Removes what has expired by that time, in Unix milliseconds; returns how many were removed."""


@dataclass(slots=True, kw_only=True)
class LongWork:
    """Made by `make_long_work`; call `begin` with the pipeline, `start`, then `leave` and `close`."""

    engine: JobEngine
    runs: JobRuns
    watch: JobWatch
    job_service: PrincipalJobs
    acceptance: Acceptance
    approvals: Approvals
    approval_news: ApprovalNews
    reconciler: Reconciler
    heartbeat: Heartbeat
    locks: RunnerLocks
    stores: Stores
    logs: JobLogs
    upkeep: AuditUpkeep
    unended: UnendedCalls
    await_reading_of: Callable[[str], Awaitable[None]] = all_read
    """As `Sources` has it, which are made later; set before `submission`."""
    _reconciling: asyncio.Task[None] | None = field(default=None)

    def submission(self, invoker: Invoker, catalog: Catalog) -> Submission:
        """Return the submission. The pipeline is made after this, because its adapters ask about their jobs."""
        self.runs.invoker = invoker
        return Submission(invoker, self.acceptance, self.stores.jobs, catalog, self.await_reading_of)

    async def start(self) -> None:
        """Start to run jobs, including those of processes that died."""
        self.locks.hold(self.heartbeat.runner)
        # Before jobs are delivered: a job of a runner that is not alive would be taken over at once.
        await self.heartbeat.beat()
        await self.engine.start(self.runs.run)
        self._reconciling = asyncio.create_task(self.reconciler.run())
        self.upkeep.start()
        self.unended.start()

    def leave(self) -> None:
        """Ask watchers to reconnect, here or to another process."""
        self.watch.drain()
        self.approval_news.close()

    async def close(self, grace_s: float) -> None:
        """Let running jobs finish within their grace period, and hand over the rest."""
        # First, because a job that ends now still writes its result and its event.
        await self.engine.close(grace_s)
        await self.unended.close()
        await self.upkeep.close()
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.wait({self._reconciling})
            # Only now: other processes take over its jobs once they see that the process has left.
            await self.heartbeat.leave()
            self.locks.release()


def make_long_work(
    deps: Deps,
    *,
    stores: Stores,
    audit: ChainedAuditLog,
    approvals: Approvals,
    policy: LivePolicy,
    sweep_artifacts: Sweep,
    sweep_workspaces: Sweep,
    room: Room | None,
) -> LongWork:
    """The sweeps remove what has expired. `room`: the disk of the jobs; None: another server has them.

    Raises HubFailure when an export place of the audit log cannot be opened.
    """
    ledger = _make_ledger(deps, stores, audit, approvals, policy)
    locks = RunnerLocks(deps.paths.data_dir / "runners")
    heartbeat = Heartbeat(ledger, f"runner_{deps.randomness.token_hex(8)}", locks.dead)
    runs = JobRuns(ledger, heartbeat, deps.redactor, deps.turns, policy.again)
    watch = JobWatch(stores.jobs, ledger.observer)
    _listen_to_jobs(stores, watch, runs)
    engine = _engine(deps)
    decisions = Decisions(ledger, engine, stores.approvals)
    approval_news = ApprovalNews(stores.approvals)
    approval_news.listen(decisions.on_event)
    approval_news.listen(approvals.on_event)
    acceptance = Acceptance(ledger, engine, deps.randomness, deps.redactor, trace_parent=current_traceparent, room=room)
    job_service = PrincipalJobs(ledger, engine)
    logs = JobLogs(stores.inner_log, stores.jobs, job_service)
    # Set afterwards for the same reason: the logs ask the job service, which writes the ledger.
    ledger.forget_log = logs.forget
    reconciler = Reconciler(
        ledger,
        engine,
        heartbeat,
        awaiting=decisions.check,
        give_up=runs.give_up,
        each_time=[approvals.sweep],
        tidy=_sweeps(deps, stores, ledger, logs, sweep_artifacts, sweep_workspaces),
        forgotten=partial(deps.observing.count_removed, "jobs"),
    )
    return LongWork(
        engine=engine,
        runs=runs,
        watch=watch,
        job_service=job_service,
        acceptance=acceptance,
        approvals=approvals,
        approval_news=approval_news,
        reconciler=reconciler,
        heartbeat=heartbeat,
        locks=locks,
        stores=stores,
        logs=logs,
        upkeep=make_upkeep(deps, audit, policy.tenant_of),
        unended=make_unended(deps, audit),
    )


def _listen_to_jobs(stores: Stores, watch: JobWatch, runs: JobRuns) -> None:
    def on_news(news: JobNews) -> None:
        watch.on_event(news)
        runs.on_event(news)

    stores.jobs.listen(on_news)


def _make_ledger(
    deps: Deps, stores: Stores, audit: ChainedAuditLog, approvals: Approvals, policy: LivePolicy
) -> JobLedger:
    observing, clock = deps.observing, deps.clock
    return JobLedger(
        stores.jobs,
        audit,
        JobTelemetry(observing.metrics, observing.tracing, observing.log, clock.unix_ms),
        clock,
        _job_terms(deps),
        withdraw=approvals.withdraw,
        tenant_of=policy.tenant_of,
    )


def _sweeps(
    deps: Deps, stores: Stores, ledger: JobLedger, logs: JobLogs, sweep_artifacts: Sweep, sweep_workspaces: Sweep
) -> list[Sweep]:
    """Return the sweeps for what expires besides jobs and approvals; each is counted, and bounded on its own."""
    observing = deps.observing
    return [
        _count_removals("artifacts", sweep_artifacts, observing),
        _count_removals("memory", stores.memory.sweep, observing),
        _count_removals("logs of calls", logs.sweep, observing),
        OrphanedApprovals(stores.approvals, ledger).withdraw,
        _count_removals("workspaces", sweep_workspaces, observing),
    ]


def _count_removals(what: str, sweep: Sweep, observing: Observing) -> Sweep:
    """Return the same sweep with its removals counted and logged under that name."""

    async def sweep_and_count(now_unix_ms: int) -> int:
        removed = await sweep(now_unix_ms)
        if removed:
            observing.count_removed(what, removed)
        return removed

    return sweep_and_count


def _engine(deps: Deps) -> JobEngine:
    settings = deps.settings
    if settings.jobs.engine == "inprocess":
        return InprocessEngine(settings.jobs.max_running)
    check_engine(settings)
    try:
        from toolhub_service.job_engines.docket_engine import DocketEngine
    except ModuleNotFoundError as missing:
        raise not_installed("jobs.engine docket", "docket") from missing
    name = f"{settings.stores.redis_prefix}docket"
    redelivery_s = 1.5 * settings.jobs.dead_after_s  # no sooner than a death is noticed
    return DocketEngine(settings.stores.redis_url, name, settings.jobs.max_running, redelivery_s)


def check_engine(settings: Settings) -> None:
    """Raise HubFailure when the engine of jobs and the stores do not fit together."""
    if settings.jobs.engine == "docket" and not settings.stores.redis_url:
        raise HubFailure(
            StartReason.ENGINE_NEEDS_REDIS,
            "jobs.engine is docket, which delivers through Redis: set stores.redis_url, or jobs.engine to inprocess.",
        )


def _job_terms(deps: Deps) -> JobTerms:
    jobs = deps.settings.jobs
    return JobTerms(
        default_timeout_s=jobs.default_timeout_s,
        max_timeout_s=jobs.max_timeout_s,
        max_open=jobs.max_open,
        keep_s=jobs.keep_s,
        heartbeat_s=jobs.heartbeat_s,
        dead_after_s=jobs.dead_after_s,
    )


def make_budgets(deps: Deps, stores: Stores) -> Budgets:
    budget = deps.settings.budget
    terms = BudgetTerms(
        max_timeout_s=budget.max_timeout_s,
        upstream_concurrency=budget.upstream_concurrency,
        breaker=BreakerTerms(
            window_s=budget.breaker_window_s,
            min_calls=budget.breaker_min_calls,
            failure_ratio=budget.breaker_failure_ratio,
            cooldown_s=budget.breaker_cooldown_s,
        ),
    )
    return Budgets(deps.clock, deps.randomness, terms, shared=stores.counts)


def make_pipeline(
    deps: Deps,
    *,
    toolbox: Toolbox,
    adapters: Mapping[ToolKind, Adapter],
    policy: PolicySource,
    audit: ChainedAuditLog,
    budgets: Budgets,
    stores: Stores,
    long_work: LongWork,
    artifacts: Artifacts,
    unread: Unread,
    plan_key: bytes,
) -> Pipeline:
    calls = deps.observing.calls
    recorder = Recorder(audit, calls, deps.clock, deps.redactor)
    keys = Idempotency(
        stores.keys,
        calls,
        deps.clock,
        deps.randomness,
        ttl_s=deps.settings.idempotency.ttl_s,
        max_timeout_s=deps.settings.budget.max_timeout_s,
    )
    pipeline = Pipeline(
        catalog=toolbox.catalog,
        adapters=adapters,
        policy=policy,
        plans=Plans(plan_key, deps.clock, deps.settings.policy.plan_ttl_s),
        keys=keys,
        budgets=budgets,
        executor=Executor(calls, recorder),
        recorder=recorder,
        observer=calls,
        clock=deps.clock,
        redactor=deps.redactor,
        approvals=long_work.approvals,
        jobs=long_work.acceptance,
        running=long_work.runs,
        artifacts=artifacts,
        call_ids=CallIds(deps.clock, deps.randomness),
        show_raw=deps.settings.results.show_raw,
        repairs_texts=deps.settings.arguments.repair_texts,
        unread=unread,
    )
    # Set afterwards, as the two need each other: tools call through the pipeline, which calls tools.
    toolbox.adapter.inner_calls = _inner_calls(deps, toolbox, policy, pipeline, long_work)
    toolbox.adapter.policy = policy
    return pipeline


def _inner_calls(
    deps: Deps, toolbox: Toolbox, policy: PolicySource, pipeline: Pipeline, long_work: LongWork
) -> Callable[[GrantedCall], InnerCalls]:
    """Return what a running call makes its inner calls with."""
    durable = DurableCallDeps(
        store=long_work.stores.inner_log,
        approvals=long_work.stores.approvals,
        running=long_work.runs,
        known=pipeline.keys.stored_answer,
        reused=pipeline.recorder.record_reuse,
        clock=deps.clock,
        observer=long_work.watch.observer,
    )
    inner = InnerCallDeps(
        invoker=pipeline,
        catalog=toolbox.catalog,
        policy=policy,
        jobs=long_work.job_service,
        follow=long_work.watch.watch,
        parked=long_work.engine.park,
        clock=deps.clock,
        randomness=deps.randomness,
        durable=durable.of,
    )
    return inner.of


def make_webhook(deps: Deps) -> ApprovalWebhook | None:
    """Return None when no webhook is configured. Raises HubFailure for an unreadable secret or an invalid URL."""
    url, secret = deps.settings.approvals.webhook_url, webhook_secret(deps.settings)
    if not url:
        return None
    return ApprovalWebhook(url, secret, clock=deps.clock, randomness=deps.randomness, log=deps.observing.log)


def webhook_secret(settings: Settings) -> bytes:
    """Return the secret with which approvals are announced; nothing without a webhook. Raises as `make_webhook`."""
    of = settings.approvals
    if not of.webhook_url:
        return b""
    try:
        # Stripped, because editors and `echo` end a file with a line feed that no receiver signs with.
        secret = Path(of.webhook_secret_file).expanduser().read_bytes().strip()
        check_webhook(of.webhook_url, secret)
        return secret
    except OSError as unreadable:
        reason = unreadable.strerror if of.webhook_secret_file else "it is not set"
        problem = f"approvals.webhook_secret_file: {reason}"
    except ValueError as wrong:
        problem = str(wrong)
    raise HubFailure(StartReason.WEBHOOK_INVALID, f"Approvals cannot be announced: {problem}.")


def make_approvals(deps: Deps, stores: Stores, audit: AuditLog, webhook: ApprovalWebhook | None) -> Approvals:
    settings = deps.settings.approvals
    return Approvals(
        stores.approvals,
        audit,
        deps.clock,
        deps.randomness,
        deps.redactor,
        default_expires_s=settings.default_expires_s,
        keep_s=settings.keep_s,
        max_pending=settings.max_pending,
        observer=ApprovalTelemetry(deps.observing.metrics),
        on_asked=(lambda _: None) if webhook is None else webhook.offer,
    )
