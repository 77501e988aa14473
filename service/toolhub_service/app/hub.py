"""One hub in one process: everything made, joined, started and, at the end, closed in the right order."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from toolhub_service.app.door import describe, make_keys, make_server
from toolhub_service.app.file_modes import check_files, problem_of, repairs
from toolhub_service.app.inside import (
    make_access,
    make_approvals,
    make_budgets,
    make_pipeline,
    make_webhook,
    open_audit,
)
from toolhub_service.app.keeping import make_artifacts, make_blobs
from toolhub_service.app.known_secrets import known_secrets
from toolhub_service.app.listening import listening_of
from toolhub_service.app.long_work import LongWork, make_long_work
from toolhub_service.app.means import Means
from toolhub_service.app.observing import Observing, open_observing
from toolhub_service.app.paths import Paths
from toolhub_service.app.policy_file import PolicyFile
from toolhub_service.app.searching import Searching, make_searching
from toolhub_service.app.source_desk import FollowingDesk
from toolhub_service.app.sourcing import Sourcing, make_sourcing
from toolhub_service.app.storing import Stores, make_stores
from toolhub_service.app.system import SystemClock, SystemRandomness
from toolhub_service.app.toolbox import Toolbox, open_toolbox
from toolhub_service.budget.ledger import Budgets
from toolhub_service.domain.artifact_ports import Blobs
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import Adapter, Clock
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.live import LivePolicy
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry.access_trace import AccessTrace
from toolhub_service.telemetry.approval_webhook import ApprovalWebhook
from toolhub_service.telemetry.audit import ChainedAuditLog
from toolhub_service.transport.authenticators import ApiKeys
from toolhub_service.transport.server import Server


@dataclass(slots=True)
class Hub:
    """Built by `open_hub`; `start`, then `close`."""

    settings: Settings
    server: Server
    toolbox: Toolbox
    audit: ChainedAuditLog
    access: AccessTrace
    policy: LivePolicy
    policy_file: PolicyFile
    keys: ApiKeys
    observing: Observing
    budgets: Budgets
    clock: Clock
    stores: Stores
    blobs: Blobs
    long_work: LongWork
    webhook: ApprovalWebhook | None
    sourcing: Sourcing
    searching: Searching
    is_serving: bool = False
    """Whether `start` has let calls in."""

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
        """Raises OSError when the port of the metrics is taken."""
        if self.webhook is not None:
            self.webhook.start()
        await self.sourcing.start()  # before jobs run that need a tool of theirs
        await self.searching.start()
        await self.long_work.start()  # before there are calls, for they enqueue jobs
        await self.server.start()
        self.is_serving = True
        await self.observing.start()

    async def close(self) -> None:
        """Drain, then close what calls have used, each whatever the others raise; audit log late: calls are in it."""
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.observing.close)
            last_first.push_async_callback(self.audit.close)
            last_first.callback(self.access.close)
            last_first.push_async_callback(self.stores.close)
            last_first.push_async_callback(self.blobs.close)
            last_first.push_async_callback(self.toolbox.close)
            last_first.push_async_callback(self.searching.close)
            last_first.push_async_callback(self.sourcing.close)
            if self.webhook is not None:
                last_first.push_async_callback(self.webhook.close)
            notice_s = self.settings.server.drain_notice_s if self.is_serving else 0.0
            await self.server.drain(notice_s, self.settings.server.drain_s, self._leave)

    async def _leave(self) -> None:
        self.long_work.leave()
        await self.long_work.close(self.settings.server.drain_s)


async def open_hub(settings: Settings, *, worker: int | None = None) -> Hub:
    """Everything made and joined, nothing listening yet but the port bound.

    Raises OSError, ListenRefused, FilesLoose, KeyFileInvalid, HubFailure or ToolFailure; each speaks to the operator.
    """
    means = _means(settings, is_worker=worker is not None)
    observing = means.observing
    policy = LivePolicy(on_difference=observing.shadow_differs)
    policy_file = _policy_file(means, policy)
    async with AsyncExitStack() as on_refusal:
        on_refusal.push_async_callback(observing.close)
        audit = await open_audit(means, worker or 0)
        on_refusal.push_async_callback(audit.close)
        stores, blobs = make_stores(means), make_blobs(means)
        artifacts = make_artifacts(means, stores, blobs)
        webhook, access = make_webhook(means), make_access(means, audit)
        approvals = make_approvals(means, stores, audit, webhook)
        long_work = make_long_work(means, stores, audit, approvals, describe(policy), [artifacts.sweep])
        toolbox = open_toolbox(settings, means.clock, means.redactor, long_work.desk, artifacts)
        on_refusal.push_async_callback(toolbox.close)
        budgets, keys = make_budgets(means, stores), make_keys(means, policy)
        adapters: dict[ToolKind, Adapter] = {ToolKind.CORE: toolbox.adapter}
        sourcing = make_sourcing(means, toolbox, stores, audit, budgets, adapters, long_work.runs, artifacts)
        searching = make_searching(means, toolbox.catalog, stores)
        desk, unread = FollowingDesk(sourcing), sourcing.sources.unread
        pipeline = make_pipeline(means, toolbox, adapters, policy, audit, budgets, stores, long_work, artifacts, unread)
        server = make_server(
            means, toolbox, desk, searching, policy, keys, audit, access, pipeline, long_work, artifacts
        )
        await stores.start()
        on_refusal.pop_all()
    return Hub(
        settings,
        server,
        toolbox,
        audit,
        access,
        policy,
        policy_file,
        keys,
        observing,
        budgets,
        means.clock,
        stores,
        blobs,
        long_work,
        webhook,
        sourcing,
        searching,
    )


def _policy_file(means: Means, policy: LivePolicy) -> PolicyFile:
    settings = means.settings
    judge = partial(problem_of, settings=settings)
    return PolicyFile(means.paths.policy, policy, required=bool(settings.policy.file), judge=judge)


def _means(settings: Settings, *, is_worker: bool) -> Means:
    """Raises OSError when the data folder cannot be made, and before anything is made ListenRefused and FilesLoose."""
    listening_of(settings)
    check_files(settings)
    paths = Paths(settings)
    paths.make()
    redactor = Redactor(known_secrets(settings, os.environ))
    observing = open_observing(settings, redactor, is_worker=is_worker)
    if settings.loose_files == "warn":
        observing.files_loose(repairs(settings))
    return Means(settings, paths, SystemClock(), SystemRandomness(), redactor, observing)
