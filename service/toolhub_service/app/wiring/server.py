"""Wires what only a serving hub has: policy and sources that follow their files, and the gRPC server."""

from __future__ import annotations

from functools import partial

from toolhub.v1.tool_service_pb2 import ServerInfo
from toolhub_service import __version__
from toolhub_service.app.config_files.modes import problem_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.policy_files import PolicyFile
from toolhub_service.app.config_files.sources_file import SourcesFile
from toolhub_service.app.listening import listening_of
from toolhub_service.app.wiring.calls import LongWork
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.source_runtime import ConfiguredSources, SourceRuntime
from toolhub_service.app.wiring.stores import Stores
from toolhub_service.app.wiring.tools import Searching, Toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import AccessObserver, Adapter, AuditLog, Invoker
from toolhub_service.domain.tool import ToolKind
from toolhub_service.faces.countbot import NAME as COUNTBOT
from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import LOCAL_TOOLS
from toolhub_service.faces.table import Face, Faces
from toolhub_service.policy.live import LivePolicy
from toolhub_service.registry.discovery.sources import Sources
from toolhub_service.registry.export.definitions import Exporter
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.page_seal import PageSeal
from toolhub_service.runtime.storage_use import StorageReport
from toolhub_service.schema.strict_json import MAX_DEPTH
from toolhub_service.search.page_tokens import PAGE_SIZE_MAX
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.telemetry.sources import SourceTelemetry
from toolhub_service.transport.approval_servicer import ApprovalServicer
from toolhub_service.transport.artifact_servicer import ArtifactServicer
from toolhub_service.transport.audit_servicer import AuditServicer
from toolhub_service.transport.credential_servicer import CredentialServicer
from toolhub_service.transport.discovery import Discovery
from toolhub_service.transport.envelope import ValidationLayer
from toolhub_service.transport.interceptors.admission import AdmissionLayer, TenantShares, WatchSharesLayer
from toolhub_service.transport.interceptors.auth import AccessLayer, AuthLayer
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.interceptors.observing import MetricsLayer, TracingLayer
from toolhub_service.transport.interceptors.policy import PolicyLayer
from toolhub_service.transport.job_servicer import JobServicer
from toolhub_service.transport.registry_servicer import RegistryServicer
from toolhub_service.transport.rpc import Layer
from toolhub_service.transport.server import Listening, Server, server_info
from toolhub_service.transport.tool_servicer import ToolServicer


def make_sourcing(
    deps: Deps,
    *,
    toolbox: Toolbox,
    stores: Stores,
    audit: AuditLog,
    budgets: Budgets,
    adapters: dict[ToolKind, Adapter],
    running: RunningJobs,
    artifacts: ArtifactService,
    vault: Vault,
) -> SourceRuntime:

    def breaker_of(upstream: str) -> str:
        """Return the state of an upstream's breaker; empty when it was never called."""
        return next((state.name for key, state in budgets.breaker_states() if key == upstream), "")

    observer = SourceTelemetry(audit, deps.observing.metrics, deps.observing.log, deps.clock)
    sources = Sources(
        toolbox.catalog,
        stores.pins,
        deps.clock,
        deps.randomness,
        observer,
        builtins=toolbox.sources,
        breaker_of=breaker_of,
        is_disabled=toolbox.is_disabled,
    )
    file = make_sources_file(deps.settings)
    return SourceRuntime(
        deps=deps,
        sources=sources,
        adapters=adapters,
        file=file,
        running=running,
        artifacts=artifacts,
        observer=observer,
        budgets=budgets,
        inner_calls=toolbox.adapter.calls_of,
        programs=toolbox.interpreter,
        vault=vault,
    )


def make_policy_file(settings: Settings, policy: LivePolicy) -> PolicyFile:
    required, check = bool(settings.policy.file), partial(problem_of, settings=settings)
    return PolicyFile(Paths(settings).policy, policy, required=required, check=check)


def make_sources_file(settings: Settings) -> SourcesFile:
    required, check = bool(settings.sources.file), partial(problem_of, settings=settings)
    return SourcesFile(Paths(settings).sources, required=required, check=check)


def make_server(
    deps: Deps,
    *,
    toolbox: Toolbox,
    sources: ConfiguredSources,
    searching: Searching,
    policy: LivePolicy,
    auth: AuthLayer,
    audit: ChainedAuditLog,
    access: AccessObserver,
    invoker: Invoker,
    long_work: LongWork,
    artifacts: Artifacts,
    vault: Vault,
    storage: StorageReport,
    plan_key: bytes,
) -> Server:
    """Return the server with its port bound; nothing is accepted yet. Raises ListenRefused or OSError."""
    pages = PageSeal(plan_key)
    catalog, alone = toolbox.catalog, deps.settings.server.workers == 1
    admission = AdmissionLayer(deps.settings.server.max_in_flight, deps.settings.server.max_watches)
    discovery = Discovery(
        catalog, searching.search, Exporter(catalog), policy, sources.statuses, meanings=searching.meanings
    )
    listening = listening_of(deps.settings, deps.certificates)
    registry = RegistryServicer(catalog, audit, deps.clock, sources, alone=alone)
    # The tools that a watcher may see depend on the policy: after a reload each has to list anew.
    policy.subscribe(registry.news.reset)
    return Server(
        listening,
        _layers(deps, auth, access, admission),
        admission,
        tools=ToolServicer(
            invoker=invoker,
            discovery=discovery,
            clock=deps.clock,
            randomness=deps.randomness,
            session_max_in_flight=deps.settings.session.max_in_flight,
            session_max_of_all=deps.settings.server.max_in_flight,
            journal=audit,
            news=registry.news,
            server=_server_info(deps.settings, listening),
            turns=deps.turns,
            faces=Faces(invoker, _faces(deps.settings)),
            storage=storage,
        ),
        jobs=JobServicer(
            long_work.submission(invoker, catalog), long_work.job_service, long_work.watch, deps.clock, deps.randomness
        ),
        approvals=ApprovalServicer(long_work.approvals, long_work.approval_news),
        artifacts=ArtifactServicer(artifacts, audit, deps.clock),
        registry=registry,
        audit=AuditServicer(audit, access, policy, pages),
        credentials=CredentialServicer(vault, audit, deps.clock, sources.read_after_login),
        pages=pages,
    )


def _faces(settings: Settings) -> list[Face]:
    chosen = settings.faces
    more = dict(row.split("=", 1) for row in chosen.countbot_tools)
    faces = {LOCAL_TOOLS.name: LOCAL_TOOLS, COUNTBOT: countbot(more)}
    return [faces[name] for name in chosen.enabled]


def _server_info(settings: Settings, listening: Listening) -> ServerInfo:
    features = {
        "results.raw": settings.results.show_raw,
        "search.meaning": bool(settings.search.embedder),
        "stores.shared": settings.stores.kind == "postgres" or bool(settings.stores.redis_url),
    }
    return server_info(
        listening,
        version=__version__,
        features=[name for name, has in features.items() if has],
        credentials=settings.auth.modes,
        max_args_bytes=settings.artifacts.argument_max_bytes,
        max_args_depth=MAX_DEPTH,
        max_page_size=PAGE_SIZE_MAX,
        max_call_timeout_s=settings.budget.max_timeout_s,
        max_job_timeout_s=settings.jobs.max_timeout_s,
        default_job_timeout_s=settings.jobs.default_timeout_s,
        max_session_calls=settings.session.max_in_flight,
        max_artifact_bytes=settings.artifacts.max_bytes,
        artifact_quota_bytes=settings.artifacts.quota_bytes,
        idempotency_ttl_s=settings.idempotency.ttl_s,
        plan_ttl_s=settings.policy.plan_ttl_s,
    )


def _layers(deps: Deps, auth: AuthLayer, access: AccessObserver, admission: AdmissionLayer) -> list[Layer]:
    """Return the interceptors, outermost first."""
    # Tracing and metrics see the status that errors become. Admission comes before identity, so that a flood costs no
    # verification of credentials; access is outside of the layers whose refusals it records; policy needs the
    # principal; and the message is parsed and validated only for authorised callers (decision 0023).
    return [
        TracingLayer(deps.observing.tracing),
        MetricsLayer(deps.observing.metrics),
        ErrorsLayer(deps.observing.rpc_crashed, deps.redactor.text),
        admission,
        AccessLayer(access),
        auth,
        PolicyLayer(TenantShares(deps.settings.server.max_in_flight)),
        WatchSharesLayer(deps.settings.server.max_watches),
        ValidationLayer(),
    ]
