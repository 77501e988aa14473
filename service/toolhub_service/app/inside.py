"""The inside of a hub: audit log, budgets, idempotency and the pipeline that walks the nine steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolhub_service.app.long_work import LongWork
from toolhub_service.app.means import Means
from toolhub_service.app.paths import Paths
from toolhub_service.app.secret_file import read_or_make_key
from toolhub_service.app.storing import Stores, not_installed
from toolhub_service.app.toolbox import Toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.approval import Approval
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.ports import Adapter, AuditLog, KeyStore, PolicySource
from toolhub_service.domain.tool import ToolKind
from toolhub_service.runtime.approvals import Approvals
from toolhub_service.runtime.artifacts import Artifacts
from toolhub_service.runtime.execute import Executor
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.runtime.resolve import Unread
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry.access_trace import AccessTrace
from toolhub_service.telemetry.approval_telemetry import ApprovalTelemetry
from toolhub_service.telemetry.approval_webhook import ApprovalWebhook
from toolhub_service.telemetry.audit import ChainedAuditLog, SqliteAuditLog


async def open_audit(means: Means, worker: int) -> ChainedAuditLog:
    """Raises ToolFailure or HubFailure when the log cannot be written: a hub without one does not start."""
    observing = means.observing
    audit = audit_log_of(
        means.settings,
        clock=means.clock,
        redactor=means.redactor,
        name=f"worker{worker}",
        observer=observing.audit,
        witness=observing.audit.witness if observing.logs_leave else None,
    )
    await audit.start()
    return audit


def audit_log_of(settings: Settings, **options: Any) -> ChainedAuditLog:
    """The log, not started, where the settings put it; `options` are those of `ChainedAuditLog`. Raises HubFailure."""
    paths, url = Paths(settings), settings.stores.postgres_url
    if not url:
        return SqliteAuditLog(paths.audit, paths.audit_checkpoints, paths.audit_key, **options)
    try:
        from toolhub_service.telemetry.postgres_audit import PostgresAuditLog
    except ModuleNotFoundError as missing:
        raise not_installed("stores.postgres_url", "postgres") from missing
    return PostgresAuditLog(url, paths.audit_checkpoints, paths.audit_key, **options)


def make_access(means: Means, audit: ChainedAuditLog) -> AccessTrace:
    """What is kept of refused identity and of reads of the audit log."""
    return AccessTrace(audit, means.observing.metrics, means.observing.log, means.clock)


def make_budgets(means: Means, stores: Stores) -> Budgets:
    return Budgets(means.clock, means.randomness, _terms(means.settings), shared=stores.counts)


def make_pipeline(
    means: Means,
    toolbox: Toolbox,
    adapters: Mapping[ToolKind, Adapter],
    policy: PolicySource,
    audit: ChainedAuditLog,
    budgets: Budgets,
    stores: Stores,
    long_work: LongWork,
    artifacts: Artifacts,
    unread: Unread,
) -> Pipeline:
    """Raises OSError or ValueError when the key of plans can be neither read nor made."""
    calls = means.observing.calls
    recorder = Recorder(audit, calls, means.clock, means.redactor, is_behind=audit.is_almost_full)
    plan_key = read_or_make_key(means.paths.plan_key)
    return Pipeline(
        catalog=toolbox.catalog,
        adapters=adapters,
        policy=policy,
        plans=Plans(plan_key, means.clock, means.settings.policy.plan_ttl_s),
        keys=_idempotency(means, stores.keys),
        budgets=budgets,
        executor=Executor(calls, recorder),
        recorder=recorder,
        observer=calls,
        clock=means.clock,
        redactor=means.redactor,
        approvals=long_work.approvals,
        jobs=long_work.acceptance,
        running=long_work.runs,
        artifacts=artifacts,
        show_raw=means.settings.results.show_raw,
        unread=unread,
    )


def make_webhook(means: Means) -> ApprovalWebhook | None:
    """None when nobody is to be told. Raises HubFailure when its secret cannot be read or its URL is none."""
    settings = means.settings.approvals
    if not settings.webhook_url:
        return None
    try:
        secret = Path(settings.webhook_secret_file).expanduser().read_bytes().strip()
        return ApprovalWebhook(
            settings.webhook_url, secret, clock=means.clock, randomness=means.randomness, log=means.observing.log
        )
    except OSError as unreadable:
        reason = unreadable.strerror if settings.webhook_secret_file else "it is not set"
        problem = f"approvals.webhook_secret_file: {reason}"
    except ValueError as wrong:
        problem = str(wrong)
    raise HubFailure(HubStatus.FAILED_PRECONDITION, "WEBHOOK_INVALID", f"Approvals cannot be told: {problem}.")


def make_approvals(means: Means, stores: Stores, audit: AuditLog, webhook: ApprovalWebhook | None) -> Approvals:
    settings = means.settings.approvals
    return Approvals(
        stores.approvals,
        audit,
        means.clock,
        means.randomness,
        means.redactor,
        default_expires_s=settings.default_expires_s,
        keep_s=settings.keep_s,
        max_pending=settings.max_pending,
        observer=ApprovalTelemetry(means.observing.metrics),
        on_asked=_nobody if webhook is None else webhook.offer,
    )


def _nobody(_: Approval) -> None:
    """No webhook is configured."""


def _idempotency(means: Means, store: KeyStore) -> Idempotency:
    return Idempotency(
        store,
        means.observing.calls,
        means.clock,
        means.randomness,
        ttl_s=means.settings.idempotency.ttl_s,
        max_timeout_s=means.settings.budget.max_timeout_s,
    )


def _terms(settings: Settings) -> BudgetTerms:
    budget = settings.budget
    return BudgetTerms(
        max_timeout_s=budget.max_timeout_s,
        upstream_concurrency=budget.upstream_concurrency,
        breaker=BreakerTerms(
            window_s=budget.breaker_window_s,
            min_calls=budget.breaker_min_calls,
            failure_ratio=budget.breaker_failure_ratio,
            cooldown_s=budget.breaker_cooldown_s,
        ),
    )
