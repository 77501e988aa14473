"""Where jobs, keys, approvals and the records of artifacts lie: in the hub's own file, in memory, or shared.

Rate and quota are counted by all hubs together where they share a Redis, else by each in its own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from toolhub_service.app.means import Means
from toolhub_service.domain.approval_ports import ApprovalStore
from toolhub_service.domain.artifact_ports import ArtifactRecords
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.ports import KeyStore
from toolhub_service.domain.shared_counts import SharedCounts
from toolhub_service.domain.source_ports import PinStore
from toolhub_service.domain.usage import UsageStore
from toolhub_service.registry.usage_index import KEEP
from toolhub_service.stores.memory_approvals import MemoryApprovals
from toolhub_service.stores.memory_artifacts import MemoryArtifacts
from toolhub_service.stores.memory_jobs import MemoryJobs
from toolhub_service.stores.memory_keys import MemoryKeys
from toolhub_service.stores.memory_pins import MemoryPins
from toolhub_service.stores.memory_usage import MemoryUsage
from toolhub_service.stores.sqlite_approvals import SqliteApprovals
from toolhub_service.stores.sqlite_artifacts import SqliteArtifacts
from toolhub_service.stores.sqlite_file import SqliteFile
from toolhub_service.stores.sqlite_jobs import SqliteJobs
from toolhub_service.stores.sqlite_keys import SqliteKeys
from toolhub_service.stores.sqlite_pins import SqlitePins
from toolhub_service.stores.sqlite_usage import SqliteUsage


class Opened(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stores:
    jobs: JobStore
    keys: KeyStore
    approvals: ApprovalStore
    artifacts: ArtifactRecords
    pins: PinStore
    usage: UsageStore
    beneath: Sequence[Opened] = ()
    """Files and links that they share."""
    counts: SharedCounts | None = None
    """None: each hub counts for itself."""

    async def start(self) -> None:
        """All or none. Raises ToolFailure or HubFailure with a message for the operator."""
        async with AsyncExitStack() as on_refusal:
            for each in self._all():
                on_refusal.push_async_callback(each.close)
                await each.start()
            on_refusal.pop_all()

    async def close(self) -> None:
        async with AsyncExitStack() as last_first:
            for each in self._all():
                last_first.push_async_callback(each.close)

    def _all(self) -> Sequence[Opened]:
        return (*self.beneath, self.jobs, self.approvals, self.artifacts, self.pins, self.usage)


def make_stores(means: Means) -> Stores:
    """Raises HubFailure when what the configuration names is not installed, or does not go together."""
    settings = means.settings.stores
    stores = _shared(means) if settings.redis_url else _own(means)
    return _with_postgres(means, stores) if settings.postgres_url else stores


def _own(means: Means) -> Stores:
    settings, terms = means.settings, means.settings.idempotency
    if settings.stores.kind == "memory":
        if settings.server.workers > 1:
            raise HubFailure(
                HubStatus.FAILED_PRECONDITION,
                "STORES_NOT_SHARED",
                "stores.kind is memory, which several workers cannot share: set server.workers to 1, or use sqlite.",
            )
        keys = MemoryKeys(means.clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes)
        return Stores(MemoryJobs(), keys, MemoryApprovals(), MemoryArtifacts(), MemoryPins(), MemoryUsage(KEEP))
    file = SqliteFile(means.paths.stores)
    return Stores(
        SqliteJobs(file),
        SqliteKeys(file, means.clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes),
        SqliteApprovals(file),
        SqliteArtifacts(file),
        SqlitePins(file),
        SqliteUsage(file, KEEP),
        beneath=[file],
    )


def _shared(means: Means) -> Stores:
    try:
        from toolhub_service.stores.redis_approvals import RedisApprovals
        from toolhub_service.stores.redis_artifacts import RedisArtifacts
        from toolhub_service.stores.redis_counts import RedisCounts
        from toolhub_service.stores.redis_jobs import RedisJobs
        from toolhub_service.stores.redis_keys import RedisKeys
        from toolhub_service.stores.redis_link import RedisLink
        from toolhub_service.stores.redis_pins import RedisPins
        from toolhub_service.stores.redis_usage import RedisUsage
    except ModuleNotFoundError as missing:
        raise not_installed("stores.redis_url", "redis") from missing
    settings = means.settings
    link = RedisLink(settings.stores.redis_url, means.randomness, prefix=settings.stores.redis_prefix)
    keys = RedisKeys(link, means.clock, max_keys=settings.idempotency.max_keys)
    return Stores(
        RedisJobs(link),
        keys,
        RedisApprovals(link),
        RedisArtifacts(link),
        RedisPins(link),
        RedisUsage(link, KEEP),
        beneath=[link],
        counts=RedisCounts(link),
    )


def _with_postgres(means: Means, stores: Stores) -> Stores:
    try:
        from toolhub_service.stores.postgres_jobs import PostgresJobs
        from toolhub_service.stores.postgres_link import PostgresLink
    except ModuleNotFoundError as missing:
        raise not_installed("stores.postgres_url", "postgres") from missing
    link = PostgresLink(means.settings.stores.postgres_url)
    return replace(stores, jobs=PostgresJobs(link), beneath=[*stores.beneath, link])


def not_installed(setting: str, extra: str) -> HubFailure:
    return HubFailure(
        HubStatus.FAILED_PRECONDITION,
        "EXTRA_MISSING",
        f"{setting} is set and its packages are not installed: pip install 'tool-hub[{extra}]'.",
    )
