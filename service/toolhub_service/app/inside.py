"""The inside of a hub: audit log, budgets, idempotency and the pipeline that walks the nine steps."""

from __future__ import annotations

from toolhub_service.app.means import Means
from toolhub_service.app.secret_file import read_or_make_key
from toolhub_service.app.toolbox import Toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.ports import AuditLog, KeyStore, PolicySource
from toolhub_service.domain.tool import ToolKind
from toolhub_service.runtime.execute import Executor
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.settings.document import Settings
from toolhub_service.stores.memory_keys import MemoryKeys
from toolhub_service.stores.no_keys import NoKeys
from toolhub_service.telemetry.audit import SqliteAuditLog


async def open_audit(means: Means, worker: int) -> SqliteAuditLog:
    """Raises ToolFailure or HubFailure when the log cannot be written: a hub without one does not start."""
    paths, observing = means.paths, means.observing
    audit = SqliteAuditLog(
        paths.audit,
        paths.audit_checkpoints,
        paths.audit_key,
        clock=means.clock,
        redactor=means.redactor,
        name=f"worker{worker}",
        observer=observing.audit,
        witness=observing.audit.witness if observing.logs_leave else None,
    )
    await audit.start()
    return audit


def make_budgets(means: Means) -> Budgets:
    return Budgets(means.clock, means.randomness, _terms(means.settings))


def make_pipeline(means: Means, toolbox: Toolbox, policy: PolicySource, audit: AuditLog, budgets: Budgets) -> Pipeline:
    """Raises OSError or ValueError when the key of plans can be neither read nor made."""
    calls = means.observing.calls
    recorder = Recorder(audit, calls, means.clock, means.redactor)
    plan_key = read_or_make_key(means.paths.plan_key)
    return Pipeline(
        catalog=toolbox.catalog,
        adapters={ToolKind.CORE: toolbox.adapter},
        policy=policy,
        plans=Plans(plan_key, means.clock, means.settings.policy.plan_ttl_s),
        keys=_idempotency(means),
        budgets=budgets,
        executor=Executor(calls, recorder),
        recorder=recorder,
        observer=calls,
        clock=means.clock,
        redactor=means.redactor,
        show_raw=means.settings.results.show_raw,
    )


def _idempotency(means: Means) -> Idempotency:
    """Keys in memory where one process sees every call; several processes would need a store that they share."""
    settings, terms = means.settings, means.settings.idempotency
    alone = settings.server.workers == 1
    store: KeyStore = MemoryKeys(means.clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes) if alone else NoKeys()
    return Idempotency(
        store,
        means.observing.calls,
        means.clock,
        means.randomness,
        ttl_s=terms.ttl_s,
        max_timeout_s=settings.budget.max_timeout_s,
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
