"""The door of a hub: servicers behind interceptors, on the address of the configuration."""

from __future__ import annotations

from collections.abc import Callable

from toolhub_service.app.listening import listening_of
from toolhub_service.app.long_work import LongWork
from toolhub_service.app.means import Means
from toolhub_service.app.searching import Searching
from toolhub_service.app.toolbox import Toolbox
from toolhub_service.domain.ports import AccessObserver, Invoker
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.source_ports import SourceDesk
from toolhub_service.domain.tool import ToolKind
from toolhub_service.policy.live import LivePolicy
from toolhub_service.registry.export import Exporter
from toolhub_service.runtime.artifacts import Artifacts
from toolhub_service.telemetry.audit import ChainedAuditLog
from toolhub_service.transport.approval_servicer import ApprovalServicer
from toolhub_service.transport.artifact_servicer import ArtifactServicer
from toolhub_service.transport.audit_servicer import AuditServicer
from toolhub_service.transport.authenticators import ApiKeys, InsecureLocal
from toolhub_service.transport.discovery import Discovery
from toolhub_service.transport.interceptors.access import AccessLayer
from toolhub_service.transport.interceptors.admission import AdmissionLayer
from toolhub_service.transport.interceptors.auth import Authenticator, AuthLayer
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.interceptors.metrics import MetricsLayer
from toolhub_service.transport.interceptors.policy import PolicyLayer
from toolhub_service.transport.interceptors.tracing import TracingLayer
from toolhub_service.transport.interceptors.validation import ValidationLayer
from toolhub_service.transport.interceptors.watch_shares import WatchSharesLayer
from toolhub_service.transport.job_servicer import JobServicer
from toolhub_service.transport.registry_servicer import RegistryServicer
from toolhub_service.transport.server import Server
from toolhub_service.transport.tool_servicer import ToolServicer


def make_keys(means: Means, policy: LivePolicy) -> ApiKeys:
    """Raises KeyFileInvalid."""
    return ApiKeys(means.paths.key_file().read(), describe(policy))


def make_server(
    means: Means,
    toolbox: Toolbox,
    sources: SourceDesk,
    searching: Searching,
    policy: LivePolicy,
    keys: ApiKeys,
    audit: ChainedAuditLog,
    access: AccessObserver,
    invoker: Invoker,
    long_work: LongWork,
    artifacts: Artifacts,
) -> Server:
    """The port is bound when it returns; nothing is accepted yet. Raises ListenRefused or OSError."""
    catalog, alone = toolbox.catalog, means.settings.server.workers == 1
    admission = AdmissionLayer(means.settings.server.max_in_flight, means.settings.server.max_watches)
    discovery = Discovery(
        catalog, searching.search, Exporter(catalog), policy, sources.statuses, meanings=searching.meanings
    )
    return Server(
        listening_of(means.settings),
        _layers(means, policy, keys, access, admission),
        admission,
        tools=ToolServicer(
            invoker=invoker,
            discovery=discovery,
            clock=means.clock,
            randomness=means.randomness,
            session_max_in_flight=means.settings.session.max_in_flight,
            session_max_of_all=means.settings.server.max_in_flight,
            journal=audit,
        ),
        jobs=JobServicer(
            long_work.submission(invoker, catalog), long_work.desk, long_work.watch, means.clock, means.randomness
        ),
        approvals=ApprovalServicer(long_work.approvals, long_work.approval_news),
        artifacts=ArtifactServicer(artifacts),
        registry=RegistryServicer(catalog, audit, means.clock, sources, {ToolKind.CORE}, alone=alone),
        audit=AuditServicer(audit, access),
    )


def _layers(
    means: Means, policy: LivePolicy, keys: ApiKeys, access: AccessObserver, admission: AdmissionLayer
) -> list[Layer]:
    """Outermost first."""
    kinds: dict[str, Authenticator] = {"insecure-local": InsecureLocal(describe(policy)), "api-key": keys}
    return [
        TracingLayer(means.observing.tracing),
        MetricsLayer(means.observing.metrics),
        ErrorsLayer(means.observing.rpc_crashed, means.redactor.text),
        admission,
        AccessLayer(access),
        AuthLayer([kinds[mode] for mode in means.settings.auth.modes]),
        PolicyLayer(),
        WatchSharesLayer(means.settings.server.max_watches),
        ValidationLayer(),
    ]


def describe(policy: LivePolicy) -> Callable[[str], Principal]:
    """Roles and rights under the policy in force at the time of the call."""
    return policy.principal
