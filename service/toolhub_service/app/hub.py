"""One hub in one process: everything made, joined, started and, at the end, closed in the right order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolhub_service.app.known_secrets import known_secrets
from toolhub_service.app.listening import listening_of
from toolhub_service.app.observing import Observing, open_observing
from toolhub_service.app.paths import Paths
from toolhub_service.app.policy_file import PolicyFile
from toolhub_service.app.secret_file import read_or_make_key
from toolhub_service.app.system import SystemClock, SystemRandomness
from toolhub_service.app.toolbox import Toolbox, open_toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.budget.terms import BreakerTerms, BudgetTerms
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import Clock, KeyStore, Randomness
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.tool import ToolKind, ToolState
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.live import LivePolicy
from toolhub_service.registry.export import Exporter
from toolhub_service.registry.search import ToolSearch
from toolhub_service.registry.source_status import SourceState, SourceStatus
from toolhub_service.runtime.execute import Executor
from toolhub_service.runtime.idempotency import Idempotency
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.runtime.plans import Plans
from toolhub_service.runtime.record import Recorder
from toolhub_service.settings.document import Settings
from toolhub_service.stores.memory_keys import MemoryKeys
from toolhub_service.stores.no_keys import NoKeys
from toolhub_service.telemetry.audit import SqliteAuditLog
from toolhub_service.transport.audit_servicer import AuditServicer
from toolhub_service.transport.authenticators import ApiKeys, InsecureLocal
from toolhub_service.transport.discovery import Discovery
from toolhub_service.transport.interceptors.admission import AdmissionLayer
from toolhub_service.transport.interceptors.auth import Authenticator, AuthLayer
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.interceptors.metrics import MetricsLayer
from toolhub_service.transport.interceptors.policy import PolicyLayer
from toolhub_service.transport.interceptors.tracing import TracingLayer
from toolhub_service.transport.interceptors.validation import ValidationLayer
from toolhub_service.transport.registry_servicer import RegistryServicer
from toolhub_service.transport.server import Server
from toolhub_service.transport.tool_servicer import ToolServicer


@dataclass(slots=True)
class Hub:
    """Built by `open_hub`; `start`, then `close`."""

    settings: Settings
    server: Server
    toolbox: Toolbox
    audit: SqliteAuditLog
    policy: LivePolicy
    policy_file: PolicyFile
    keys: ApiKeys
    observing: Observing
    budgets: Budgets
    clock: Clock

    async def remember(self, type: EventType, *, policy_revision: str, problem: str = "") -> None:
        """Put an event of the hub's own life into the audit log, durably."""
        event = Event(
            type=type,
            at_unix_ms=self.clock.unix_ms(),
            policy_revision=policy_revision,
            outcome="refused" if problem else "ok",
            attributes={"problem": problem} if problem else {},
        )
        await self.audit.append_durably(event)

    async def start(self) -> None:
        await self.server.start()
        await self.observing.start()

    async def close(self) -> None:
        """Drain, then close what calls have used. The audit log goes last, so that every call is in it."""
        await self.server.drain(self.settings.server.drain_notice_s, self.settings.server.drain_s)
        await self.toolbox.close()
        await self.audit.close()
        await self.observing.close()


async def open_hub(settings: Settings, *, worker: int | None = None) -> Hub:
    """Everything made and joined, nothing listening yet but the port bound.

    Raises OSError, ListenRefused, InvalidPolicy or ToolFailure with a message for the operator.
    """
    listening = listening_of(settings)
    paths = Paths(settings)
    paths.make()
    clock, randomness = SystemClock(), SystemRandomness()
    redactor = Redactor(known_secrets(settings, os.environ))
    observing = open_observing(settings, redactor, is_worker=worker is not None)
    policy = LivePolicy(on_difference=observing.shadow_differs)
    policy_file = PolicyFile(paths.policy, policy, required=bool(settings.policy.file))
    toolbox = open_toolbox(settings, clock, redactor)
    audit = SqliteAuditLog(
        paths.audit,
        paths.audit_checkpoints,
        paths.audit_key,
        clock=clock,
        redactor=redactor,
        name=f"worker{worker or 0}",
        observer=observing.audit,
        witness=observing.audit.witness if observing.logs_leave else None,
    )
    await audit.start()
    recorder = Recorder(audit, observing.calls, clock, redactor)
    budgets = Budgets(clock, randomness, _terms(settings))
    pipeline = Pipeline(
        catalog=toolbox.catalog,
        adapters={ToolKind.CORE: toolbox.adapter},
        policy=policy,
        plans=Plans(read_or_make_key(paths.plan_key), clock, settings.policy.plan_ttl_s),
        keys=_idempotency(settings, observing, clock, randomness),
        budgets=budgets,
        executor=Executor(observing.calls, recorder),
        recorder=recorder,
        observer=observing.calls,
        clock=clock,
        redactor=redactor,
        show_raw=settings.results.show_raw,
    )
    keys = ApiKeys(paths.key_file().read(), _describe(policy))
    admission = AdmissionLayer(settings.server.max_in_flight)
    sources = _sources(toolbox)
    server = Server(
        listening,
        _layers(settings, policy, keys, admission, observing, redactor),
        admission,
        tools=ToolServicer(
            invoker=pipeline,
            discovery=Discovery(
                toolbox.catalog, ToolSearch(toolbox.catalog), Exporter(toolbox.catalog), policy, sources
            ),
            clock=clock,
            randomness=randomness,
        ),
        registry=RegistryServicer(
            toolbox.catalog, audit, clock, sources, {ToolKind.CORE}, alone=settings.server.workers == 1
        ),
        audit=AuditServicer(audit),
    )
    return Hub(settings, server, toolbox, audit, policy, policy_file, keys, observing, budgets, clock)


def _layers(
    settings: Settings,
    policy: LivePolicy,
    keys: ApiKeys,
    admission: AdmissionLayer,
    observing: Observing,
    redactor: Redactor,
) -> list[Layer]:
    """Outermost first."""
    kinds: dict[str, Authenticator] = {"insecure-local": InsecureLocal(_describe(policy)), "api-key": keys}
    return [
        TracingLayer(observing.tracing),
        MetricsLayer(observing.metrics),
        ErrorsLayer(observing.rpc_crashed, redactor.text),
        admission,
        AuthLayer([kinds[mode] for mode in settings.auth.modes]),
        PolicyLayer(),
        ValidationLayer(),
    ]


def _describe(policy: LivePolicy) -> Callable[[str], Principal]:
    """Roles and rights under the policy in force at the time of the call."""

    def describe(principal_id: str) -> Principal:
        return policy.snapshot.principal(principal_id)

    return describe


def _idempotency(settings: Settings, observing: Observing, clock: Clock, randomness: Randomness) -> Idempotency:
    """Keys in memory where one process sees every call; several processes would need a store that they share."""
    terms = settings.idempotency
    alone = settings.server.workers == 1
    store: KeyStore = MemoryKeys(clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes) if alone else NoKeys()
    return Idempotency(
        store,
        observing.calls,
        clock,
        randomness,
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


def _sources(toolbox: Toolbox) -> Callable[[], Sequence[SourceStatus]]:
    """The built-in and the custom source; remote ones arrive with their adapters."""

    def sources() -> Sequence[SourceStatus]:
        specs = toolbox.catalog.all()
        broken = len(toolbox.custom.unavailable)
        custom = [spec for spec in specs if spec.source == "custom"]
        core = [spec for spec in specs if spec.source == "core"]
        unmet = sum(spec.state is ToolState.UNAVAILABLE for spec in core)
        statuses = [
            SourceStatus("core", ToolKind.CORE, tool_count=len(core), reason=f"{unmet} unavailable" if unmet else "")
        ]
        if custom:
            state = SourceState.PARTIAL if broken else SourceState.READY
            reason = f"{broken} custom tools could not be loaded" if broken else ""
            statuses.append(SourceStatus("custom", ToolKind.CORE, state, reason, tool_count=len(custom)))
        return statuses

    return sources
