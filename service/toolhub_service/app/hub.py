"""One hub in one process: all parts built, joined, started and, at the end, closed in the right order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from toolhub_service.app.config_files.policy_files import PolicyFile
from toolhub_service.app.wiring.audit import make_access, open_audit
from toolhub_service.app.wiring.calls import (
    LongWork,
    make_approvals,
    make_budgets,
    make_long_work,
    make_pipeline,
    make_webhook,
)
from toolhub_service.app.wiring.credentials import make_vault
from toolhub_service.app.wiring.deps import Deps, make_deps
from toolhub_service.app.wiring.identity import Credentials, make_credentials
from toolhub_service.app.wiring.mcp import Mcp, McpAccess, make_engine, make_login_pages, make_mcp
from toolhub_service.app.wiring.plan_key import read_plan_key
from toolhub_service.app.wiring.server import (
    make_policy_file,
    make_server,
    make_sourcing,
)
from toolhub_service.app.wiring.source_runtime import ConfiguredSources, SourceRuntime
from toolhub_service.app.wiring.storage import Storage, make_storage, storage_terms
from toolhub_service.app.wiring.stores import Stores, make_artifacts, make_blobs, make_stores
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.app.wiring.tools import Searching, Toolbox, make_searching, make_toolbox, make_workspaces
from toolhub_service.budget.ledger import Budgets
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import Adapter, Clock
from toolhub_service.domain.tool import ToolKind
from toolhub_service.identity.api_keys import KnownKeys
from toolhub_service.policy.live import LivePolicy
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.pipeline import Pipeline
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.telemetry.access_trace import AccessTrace
from toolhub_service.telemetry.approvals import ApprovalWebhook
from toolhub_service.transport.server import ANSWERS_S, Server


@dataclass(slots=True, kw_only=True)
class Hub:
    """Built by `open_hub`; `start`, then `close`."""

    deps: Deps
    server: Server
    toolbox: Toolbox
    audit: ChainedAuditLog
    access: AccessTrace
    policy: LivePolicy
    policy_file: PolicyFile
    credentials: Credentials
    budgets: Budgets
    stores: Stores
    artifacts: Artifacts
    storage: Storage
    long_work: LongWork
    webhook: ApprovalWebhook | None
    sourcing: SourceRuntime
    searching: Searching
    pipeline: Pipeline
    mcp: Mcp
    is_serving: bool = False
    """Whether `start` has admitted calls."""

    @property
    def keys(self) -> KnownKeys:
        return self.credentials.keys

    @property
    def settings(self) -> Settings:
        return self.deps.settings

    @property
    def observing(self) -> Observing:
        return self.deps.observing

    @property
    def clock(self) -> Clock:
        return self.deps.clock

    async def audit_event(self, type: EventType, *, policy_revision: str, problem: str = "") -> None:
        """Append an event of the hub's own life to the audit log, durably."""
        event = Event(
            type=type,
            at_unix_ms=self.clock.unix_ms(),
            policy_revision=policy_revision,
            outcome="refused" if problem else "ok",
            attributes={"problem": problem} if problem else {},
        )
        await self.audit.append_durably(event)

    async def start(self) -> None:
        """Start. Raises OSError when the metrics port is taken."""
        if self.deps.svids is not None:
            self.deps.svids.start()
        if self.webhook is not None:
            self.webhook.start()
        await self.toolbox.start()
        await self.sourcing.start()  # before jobs run that need a tool of theirs
        await self.searching.start()
        self.storage.watch.start()
        await self.long_work.start()  # before there are calls, because they enqueue jobs
        await self.server.start()
        self.mcp.listener.start()
        self.is_serving = True
        self.observing.endpoint.is_ready = self.server.is_serving
        await self.observing.start()

    async def close(self) -> None:
        """Drain, then close all parts, whatever errors others raise; the audit log late, because it records calls."""
        async with AsyncExitStack() as last_first:
            # Pushed first, closed last: reports of the others while they close are still counted and logged.
            last_first.push_async_callback(self.observing.close)
            if self.deps.svids is not None:
                last_first.push_async_callback(self.deps.svids.close)
            last_first.push_async_callback(self.audit.close)
            last_first.callback(self.access.close)
            last_first.push_async_callback(self.stores.close)
            last_first.push_async_callback(self.artifacts.close)
            last_first.push_async_callback(self.toolbox.close)
            last_first.push_async_callback(self.storage.watch.close)
            last_first.push_async_callback(self.searching.close)
            last_first.push_async_callback(self.sourcing.close)
            last_first.push_async_callback(self.credentials.tokens.close)
            if self.webhook is not None:
                last_first.push_async_callback(self.webhook.close)
            # A hub that never served is in no load balancer that would have to notice.
            notice_s = self.settings.server.drain_notice_s if self.is_serving else 0.0
            drain_s = self.settings.server.drain_s
            last_first.push_async_callback(self.mcp.listener.close, drain_s)
            await self.server.drain(notice_s, drain_s, self._leave, cut_off=self.pipeline.cut_off)

    async def _leave(self) -> None:
        """Within the grace of the RPCs, too: MCP's requests, and jobs."""
        drain_s = self.settings.server.drain_s
        self.long_work.leave()
        await asyncio.gather(self.mcp.listener.close(drain_s + ANSWERS_S), self.long_work.close(drain_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """The parts of a hub that are made before its stores are started."""

    deps: Deps
    policy: LivePolicy
    audit: ChainedAuditLog
    access: AccessTrace
    stores: Stores
    storage: Storage
    artifacts: Artifacts
    vault: Vault
    webhook: ApprovalWebhook | None
    long_work: LongWork
    toolbox: Toolbox
    budgets: Budgets
    credentials: Credentials
    adapters: dict[ToolKind, Adapter]
    sourcing: SourceRuntime
    searching: Searching


async def open_hub(settings: Settings, *, worker: int | None = None) -> Hub:
    """Build all and bind ports. Raises OSError, ListenRefused, FilesLoose, KeyFileInvalid, HubFailure, ToolFailure."""
    deps = make_deps(settings, is_worker=worker is not None)
    policy = LivePolicy(on_difference=deps.observing.shadow_differs, storage=storage_terms(settings))
    policy_file = make_policy_file(settings, policy)
    async with AsyncExitStack() as on_refusal:
        on_refusal.push_async_callback(deps.observing.close)
        audit = await open_audit(deps, worker or 0)
        on_refusal.push_async_callback(audit.close)
        core = _make_core(deps, policy, audit, on_refusal)
        await core.stores.start()  # once all listen to them, and before what needs the key that they may hold
        on_refusal.push_async_callback(core.stores.close)
        hub = _make_hub(core, policy_file, await read_plan_key(deps, core.stores))
        on_refusal.pop_all()  # from here on nothing raises, and the caller closes the hub
    return hub


def _make_core(deps: Deps, policy: LivePolicy, audit: ChainedAuditLog, on_refusal: AsyncExitStack) -> _Core:
    """Make the parts; `on_refusal` closes what was opened if a later one cannot be made."""
    stores = make_stores(deps)
    storage = make_storage(deps, stores, policy)
    artifacts = make_artifacts(deps, stores, make_blobs(deps), policy, storage.rooms.artifacts)
    vault = make_vault(deps, stores, policy)
    webhook, access = make_webhook(deps), make_access(deps, audit)
    long_work = make_long_work(
        deps,
        stores=stores,
        audit=audit,
        approvals=make_approvals(deps, stores, audit, webhook),
        policy=policy,
        sweep_artifacts=artifacts.sweep,
        sweep_workspaces=make_workspaces(deps.settings, storage.usage).sweep,
        room=storage.rooms.jobs,
    )
    toolbox = make_toolbox(deps, stores, storage, long_work.job_service, artifacts, vault)
    on_refusal.push_async_callback(toolbox.close)
    budgets, credentials = make_budgets(deps, stores), make_credentials(deps, policy, access)
    adapters: dict[ToolKind, Adapter] = {ToolKind.CORE: toolbox.adapter}
    sourcing = make_sourcing(
        deps,
        toolbox=toolbox,
        stores=stores,
        audit=audit,
        budgets=budgets,
        adapters=adapters,
        running=long_work.runs,
        artifacts=artifacts,
        vault=vault,
    )
    long_work.await_reading_of = sourcing.sources.await_reading_of
    long_work.runs.await_readings_for = sourcing.sources.await_readings_for
    return _Core(
        deps=deps,
        policy=policy,
        audit=audit,
        access=access,
        stores=stores,
        storage=storage,
        artifacts=artifacts,
        vault=vault,
        webhook=webhook,
        long_work=long_work,
        toolbox=toolbox,
        budgets=budgets,
        credentials=credentials,
        adapters=adapters,
        sourcing=sourcing,
        searching=make_searching(deps, toolbox.catalog, stores),
    )


def _make_hub(core: _Core, policy_file: PolicyFile, plan_key: bytes) -> Hub:
    """Make the pipeline and the servers in front of it, and bind their ports."""
    pipeline = make_pipeline(
        core.deps,
        toolbox=core.toolbox,
        adapters=core.adapters,
        policy=core.policy,
        audit=core.audit,
        budgets=core.budgets,
        stores=core.stores,
        long_work=core.long_work,
        artifacts=core.artifacts,
        unread=core.sourcing.unread,
        plan_key=plan_key,
    )
    sources = ConfiguredSources(core.sourcing)
    return Hub(
        deps=core.deps,
        server=_make_server(core, sources, pipeline, plan_key),
        toolbox=core.toolbox,
        audit=core.audit,
        access=core.access,
        policy=core.policy,
        policy_file=policy_file,
        credentials=core.credentials,
        budgets=core.budgets,
        stores=core.stores,
        artifacts=core.artifacts,
        storage=core.storage,
        long_work=core.long_work,
        webhook=core.webhook,
        sourcing=core.sourcing,
        searching=core.searching,
        pipeline=pipeline,
        mcp=_make_mcp(core, sources, pipeline, plan_key),
    )


def _make_server(core: _Core, sources: ConfiguredSources, pipeline: Pipeline, plan_key: bytes) -> Server:
    return make_server(
        core.deps,
        toolbox=core.toolbox,
        sources=sources,
        searching=core.searching,
        policy=core.policy,
        auth=core.credentials.grpc,
        audit=core.audit,
        access=core.access,
        invoker=pipeline,
        long_work=core.long_work,
        artifacts=core.artifacts,
        vault=core.vault,
        storage=core.storage.report,
        plan_key=plan_key,
    )


def _make_mcp(core: _Core, sources: ConfiguredSources, pipeline: Pipeline, plan_key: bytes) -> Mcp:
    engine = make_engine(
        core.deps,
        toolbox=core.toolbox,
        sources=sources,
        searching=core.searching,
        policy=core.policy,
        invoker=pipeline,
        long_work=core.long_work,
        artifacts=core.artifacts,
        logins=make_login_pages(core.deps, core.vault, core.audit, sources),
        plan_key=plan_key,
    )
    return make_mcp(core.deps, engine, McpAccess(core.credentials.mcp, core.access))
