"""One hub in one process: all parts built, joined, started and, at the end, closed in the right order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from toolhub_service.app.files.policy_files import PolicyFile
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


@dataclass(slots=True)
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


async def open_hub(settings: Settings, *, worker: int | None = None) -> Hub:
    """Build all and bind ports. Raises OSError, ListenRefused, FilesLoose, KeyFileInvalid, HubFailure, ToolFailure."""
    deps = make_deps(settings, is_worker=worker is not None)
    policy = LivePolicy(on_difference=deps.observing.shadow_differs, storage=storage_terms(settings))
    policy_file = make_policy_file(settings, policy)
    async with AsyncExitStack() as on_refusal:
        on_refusal.push_async_callback(deps.observing.close)
        audit = await open_audit(deps, worker or 0)
        on_refusal.push_async_callback(audit.close)
        stores = make_stores(deps)
        storage = make_storage(deps, stores, policy)
        artifacts = make_artifacts(deps, stores, make_blobs(deps), policy, storage.rooms.artifacts)
        vault = make_vault(deps, stores, policy)
        webhook, access = make_webhook(deps), make_access(deps, audit)
        approvals = make_approvals(deps, stores, audit, webhook)
        sweeps = artifacts.sweep, make_workspaces(settings, storage.usage).sweep
        long_work = make_long_work(deps, stores, audit, approvals, policy, *sweeps, storage.rooms.jobs)
        toolbox, runs = make_toolbox(deps, stores, storage, long_work.job_service, artifacts, vault), long_work.runs
        on_refusal.push_async_callback(toolbox.close)
        budgets, credentials = make_budgets(deps, stores), make_credentials(deps, policy, access)
        adapters: dict[ToolKind, Adapter] = {ToolKind.CORE: toolbox.adapter}
        sourcing = make_sourcing(deps, toolbox, stores, audit, budgets, adapters, runs, artifacts, vault)
        runs.await_readings_for = sourcing.sources.await_readings_for
        searching = make_searching(deps, toolbox.catalog, stores)
        sources, unread, auth = ConfiguredSources(sourcing), sourcing.unread, credentials.grpc
        await stores.start()  # once all listen to them, and before what needs the key that they may hold
        on_refusal.push_async_callback(stores.close)
        key = await read_plan_key(deps, stores)
        works = stores, long_work, artifacts, unread, key
        pipeline = make_pipeline(deps, toolbox, adapters, policy, audit, budgets, *works)
        kept = artifacts, vault, storage.report, key
        server = make_server(deps, toolbox, sources, searching, policy, auth, audit, access, pipeline, long_work, *kept)
        logins = make_login_pages(deps, vault, audit, sources)
        engine = make_engine(deps, toolbox, sources, searching, policy, pipeline, long_work, artifacts, logins, key)
        mcp = make_mcp(deps, engine, McpAccess(credentials.mcp, access))
        on_refusal.push_async_callback(mcp.listener.close, 0.0)
        on_refusal.pop_all()  # from here on nothing raises, and the caller closes the hub
    return Hub(
        deps,
        server,
        toolbox,
        audit,
        access,
        policy,
        policy_file,
        credentials,
        budgets,
        stores,
        artifacts,
        storage,
        long_work,
        webhook,
        sourcing,
        searching,
        pipeline,
        mcp,
    )
