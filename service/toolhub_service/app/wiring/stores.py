"""Wires the stores of jobs, keys, approvals and records of artifacts: in the hub's own file, in memory, or shared.

Rate and quota are counted by all hubs together in shared stores, otherwise by each in its own memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import msgspec

from toolhub_service.app.wiring.deps import Deps
from toolhub_service.domain.approval import ApprovalStore
from toolhub_service.domain.artifact import ArtifactRecords, Blobs
from toolhub_service.domain.credential import CredentialStore
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.inner_log import InnerLogStore
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.memory import MemoryStore
from toolhub_service.domain.ports import KeyStore, SharedKeys
from toolhub_service.domain.source import PinStore
from toolhub_service.domain.storage import Room, StorageDirectory
from toolhub_service.domain.tool import UsageStore
from toolhub_service.domain.verdict import SharedCounts
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.search.usage_index import KEEP
from toolhub_service.settings.document import Settings
from toolhub_service.stores.blobs.disk import DiskBlobs
from toolhub_service.stores.credential_records import CREDENTIALS, Credentials
from toolhub_service.stores.inner_log_records import INNER_CALLS, InnerLogs
from toolhub_service.stores.memory.items import InProcessItems
from toolhub_service.stores.memory.jobs import MemoryJobs
from toolhub_service.stores.memory.keys import MemoryKeys
from toolhub_service.stores.memory.records import MemoryApprovals, MemoryArtifacts, MemoryPins, MemoryRecords
from toolhub_service.stores.memory.usage import MemoryUsage
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.items import SqliteItems
from toolhub_service.stores.sqlite.jobs import SqliteJobs
from toolhub_service.stores.sqlite.keys import SqliteKeys
from toolhub_service.stores.sqlite.records import SqliteApprovals, SqliteArtifacts, SqlitePins, SqliteRecords
from toolhub_service.stores.sqlite.usage import SqliteUsage

if TYPE_CHECKING:
    from obstore.store import S3Store

    from toolhub_service.stores.redis.link import RedisLink


class Opened(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    jobs: JobStore
    keys: KeyStore
    approvals: ApprovalStore
    artifacts: ArtifactRecords
    pins: PinStore
    usage: UsageStore
    memory: MemoryStore
    inner_log: InnerLogStore
    credentials: CredentialStore
    beneath: Sequence[Opened] = ()
    """Files and links that the stores share."""
    counts: SharedCounts | None = None
    """None: each hub counts for itself."""
    shared_keys: SharedKeys | None = None
    """None: the hub seals with keys of its data folder, which is nobody else's store."""

    async def start(self) -> None:
        """Start all or none. Raises ToolFailure or HubFailure with a message for the operator."""
        async with AsyncExitStack() as on_refusal:
            for each in self._in_start_order():
                # Before it starts: one that fails half-way has something to close, too.
                on_refusal.push_async_callback(each.close)
                await each.start()
            on_refusal.pop_all()

    async def close(self) -> None:
        async with AsyncExitStack() as last_first:
            for each in self._in_start_order():
                last_first.push_async_callback(each.close)

    def _in_start_order(self) -> Sequence[Opened]:
        # Shared files and links are first, so that they are started first and closed last. Keys and counts have nothing
        # of their own to start or close.
        return (
            *self.beneath,
            self.jobs,
            self.approvals,
            self.artifacts,
            self.pins,
            self.usage,
            self.memory,
            self.inner_log,
            self.credentials,
        )


def make_stores(deps: Deps) -> Stores:
    """Return the stores. Raises HubFailure when the configured ones are not installed, or do not fit together."""
    settings = deps.settings.stores
    check_stores(deps.settings)
    if settings.kind == "postgres":
        return _in_postgres(deps)
    stores = _in_redis(deps) if settings.redis_url else _own(deps)
    return _with_postgres(deps, stores) if settings.postgres_url else stores


def check_stores(settings: Settings) -> None:
    """Raise HubFailure when the configured stores do not fit together, or to the number of workers."""
    stores = settings.stores
    if stores.kind == "postgres" and not stores.postgres_url:
        raise HubFailure(
            StartReason.STORES_NEED_POSTGRES,
            "stores.kind is postgres, and no PostgreSQL is named: set stores.postgres_url, or stores.kind to sqlite.",
        )
    if stores.kind == "memory" and not stores.redis_url and settings.server.workers > 1:
        raise HubFailure(
            StartReason.STORES_NOT_SHARED,
            "stores.kind is memory, which several workers cannot share: set server.workers to 1, or use sqlite.",
        )


def _own(deps: Deps) -> Stores:
    settings, terms = deps.settings, deps.settings.idempotency
    if settings.stores.kind == "memory":
        return Stores(
            jobs=MemoryJobs(),
            keys=MemoryKeys(deps.clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes),
            approvals=MemoryApprovals(),
            artifacts=MemoryArtifacts(),
            pins=MemoryPins(),
            usage=MemoryUsage(KEEP),
            memory=InProcessItems(),
            inner_log=InnerLogs(MemoryRecords(INNER_CALLS)),
            credentials=Credentials(MemoryRecords(CREDENTIALS)),
        )
    file = SqliteFile(deps.paths.stores)
    return Stores(
        jobs=SqliteJobs(file),
        keys=SqliteKeys(file, deps.clock, max_keys=terms.max_keys, max_bytes=terms.max_bytes),
        approvals=SqliteApprovals(file),
        artifacts=SqliteArtifacts(file),
        pins=SqlitePins(file),
        usage=SqliteUsage(file, KEEP),
        memory=SqliteItems(deps.paths.memory),
        inner_log=InnerLogs(SqliteRecords(file, INNER_CALLS)),
        credentials=Credentials(SqliteRecords(file, CREDENTIALS)),
        beneath=[file],
    )


def _in_redis(deps: Deps) -> Stores:
    # First: it reports in a sentence that Redis's library is not installed; the imports below would not.
    link, counts = _redis(deps)
    from toolhub_service.stores.redis.jobs import RedisJobs
    from toolhub_service.stores.redis.keys import RedisKeys
    from toolhub_service.stores.redis.record_layouts import INNER_CALL_LAYOUT
    from toolhub_service.stores.redis.records import RedisApprovals, RedisArtifacts, RedisPins, RedisRecords
    from toolhub_service.stores.redis.shared_keys import RedisSharedKeys
    from toolhub_service.stores.redis.usage import RedisUsage

    return Stores(
        jobs=RedisJobs(link),
        keys=RedisKeys(link, deps.clock, max_keys=deps.settings.idempotency.max_keys),
        approvals=RedisApprovals(link),
        artifacts=RedisArtifacts(link),
        pins=RedisPins(link),
        usage=RedisUsage(link, KEEP),
        # Also shared with stores.kind: postgres: Redis keeps all data in memory, and remembered items grow.
        memory=InProcessItems() if deps.settings.stores.kind == "memory" else SqliteItems(deps.paths.memory),
        inner_log=InnerLogs(RedisRecords(link, INNER_CALLS, INNER_CALL_LAYOUT)),
        credentials=Credentials(RedisRecords(link, CREDENTIALS)),
        beneath=[link],
        counts=counts,
        shared_keys=RedisSharedKeys(link),
    )


def _redis(deps: Deps) -> tuple[RedisLink, SharedCounts]:
    try:
        from toolhub_service.stores.redis.counts import RedisCounts
        from toolhub_service.stores.redis.link import RedisLink
    except ModuleNotFoundError as missing:
        raise not_installed("stores.redis_url", "redis") from missing
    settings = deps.settings.stores
    link = RedisLink(settings.redis_url, deps.randomness, prefix=settings.redis_prefix)
    return link, RedisCounts(link)


def _with_postgres(deps: Deps, stores: Stores) -> Stores:
    try:
        from toolhub_service.stores.postgres.jobs import PostgresJobs
        from toolhub_service.stores.postgres.link import PostgresLink
        from toolhub_service.stores.postgres.records import PostgresRecords
    except ModuleNotFoundError as missing:
        raise not_installed("stores.postgres_url", "postgres") from missing
    link = PostgresLink(deps.settings.stores.postgres_url)
    log = InnerLogs(PostgresRecords(link, INNER_CALLS))  # with the jobs: every process that may run them must know it
    return msgspec.structs.replace(stores, jobs=PostgresJobs(link), inner_log=log, beneath=[*stores.beneath, link])


def _in_postgres(deps: Deps) -> Stores:
    settings, terms = deps.settings.stores, deps.settings.idempotency
    try:
        from toolhub_service.stores.postgres.counts import PostgresCounts
        from toolhub_service.stores.postgres.items import PostgresItems
        from toolhub_service.stores.postgres.jobs import PostgresJobs
        from toolhub_service.stores.postgres.keys import PostgresKeys
        from toolhub_service.stores.postgres.link import PostgresLink
        from toolhub_service.stores.postgres.records import (
            PostgresApprovals,
            PostgresArtifacts,
            PostgresPins,
            PostgresRecords,
        )
        from toolhub_service.stores.postgres.shared_keys import PostgresSharedKeys
        from toolhub_service.stores.postgres.usage import PostgresUsage
    except ModuleNotFoundError as missing:
        raise not_installed("stores.postgres_url", "postgres") from missing
    link = PostgresLink(settings.postgres_url)
    beneath: list[Opened] = [link]
    counts: SharedCounts = PostgresCounts(link)
    if settings.redis_url:  # counts faster, and losing it loses no record
        redis, counts = _redis(deps)
        beneath.append(redis)
    return Stores(
        jobs=PostgresJobs(link),
        keys=PostgresKeys(link, max_keys=terms.max_keys, max_bytes=terms.max_bytes),
        approvals=PostgresApprovals(link),
        artifacts=PostgresArtifacts(link),
        pins=PostgresPins(link),
        usage=PostgresUsage(link, KEEP),
        memory=PostgresItems(link),
        inner_log=InnerLogs(PostgresRecords(link, INNER_CALLS)),
        credentials=Credentials(PostgresRecords(link, CREDENTIALS)),
        beneath=beneath,
        counts=counts,
        shared_keys=PostgresSharedKeys(link),
    )


def not_installed(setting: str, extra: str) -> HubFailure:
    return HubFailure(
        StartReason.EXTRA_MISSING,
        f"{setting} is set and its packages are not installed: toolhub extras install {extra}.",
    )


def make_blobs(deps: Deps) -> Blobs:
    """Return the blobs. Raises HubFailure when a bucket is configured and its packages are not installed."""
    url = deps.settings.artifacts.bucket_url
    if not url:
        return DiskBlobs(str(deps.paths.artifacts))
    store = bucket_named("artifacts.bucket_url", url)
    from toolhub_service.stores.blobs.bucket import BucketBlobs

    return BucketBlobs(store)


def bucket_named(setting: str, url: str) -> S3Store:
    """Return the bucket of a setting; nothing is sent. Raises HubFailure, which names the setting."""
    try:
        from toolhub_service.stores.blobs.bucket import bucket_of
    except ModuleNotFoundError as missing:
        raise not_installed(setting, "s3") from missing
    try:
        return bucket_of(url, os.environ)
    except OSError as unreadable:
        message = f"{setting}: a secret file cannot be read: {unreadable.strerror}."
        raise HubFailure(StartReason.BUCKET_SECRET_UNREADABLE, message) from unreadable
    except ValueError as wrong:
        raise HubFailure(StartReason.BUCKET_URL_INVALID, f"{setting}: {wrong}.") from wrong


def make_artifacts(
    deps: Deps, stores: Stores, blobs: Blobs, directory: StorageDirectory, room: Room | None
) -> Artifacts:
    """`room`: the disk of the blobs; None: they lie in a bucket."""
    settings = deps.settings.artifacts
    return Artifacts(
        stores.artifacts,
        blobs,
        deps.clock,
        deps.randomness,
        ttl_s=settings.ttl_s,
        max_bytes=settings.max_bytes,
        argument_max_bytes=settings.argument_max_bytes,
        directory=directory,
        room=room,
    )
