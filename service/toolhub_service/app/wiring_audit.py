"""Wires the upkeep of the audit log as the settings want it: retention, and export to a file, a collector, a bucket."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from toolhub_service import __version__
from toolhub_service.app.deps import Deps
from toolhub_service.app.wiring_stores import not_installed
from toolhub_service.app.wiring_telemetry import Observing
from toolhub_service.domain.error_spec import StartReason
from toolhub_service.domain.errors import HubFailure
from toolhub_service.settings.audit_section import AuditExport
from toolhub_service.stores.audit.export import BucketSink, Export, FileSink, Sink, least
from toolhub_service.stores.audit.log import ChainedAuditLog
from toolhub_service.stores.audit.retention import AuditRetention, EventArchive
from toolhub_service.stores.audit.upkeep import AuditUpkeep, UpkeepTask

_DAY_S = 86_400.0
_RETENTION_S = 60.0


def make_upkeep(deps: Deps, audit: ChainedAuditLog, tenant_of: Callable[[str], str]) -> AuditUpkeep:
    """`tenant_of`: of a principal's id, by the policy in force; empty: there are none.

    Raises HubFailure when a place cannot be opened: its package is missing, or its URL is none."""
    settings, observing = deps.settings.audit, deps.observing
    telemetry = observing.audit
    tasks: list[UpkeepTask] = []
    carried: list[Callable[[], int]] = []
    for sink, every_s in _sinks(deps, settings.export, tenant_of):
        export = Export(audit.events, sink, telemetry)
        carried.append(export.carried)
        tasks.append(UpkeepTask(sink.name, export.step, every_s))
    if settings.keep_days:
        folder = settings.archive_folder
        archive = EventArchive(Path(folder).expanduser()) if folder else None
        retention = AuditRetention(
            partial(audit.prune, archive=archive),
            deps.clock.unix_ms,
            settings.keep_days * _DAY_S,
            least(carried),
            observing.swept,
        )
        tasks.append(UpkeepTask("retention", retention.step, _RETENTION_S))
    return AuditUpkeep(audit.events, tasks, telemetry)


def _sinks(deps: Deps, export: AuditExport, tenant_of: Callable[[str], str]) -> list[tuple[Sink, float]]:
    sinks: list[tuple[Sink, float]] = []
    if export.file:
        sinks.append((FileSink(Path(export.file).expanduser(), export.file_max_bytes), export.interval_s))
    if export.otlp_endpoint:
        sinks.append((_otlp(deps, export.otlp_endpoint, tenant_of), export.interval_s))
    if export.bucket_url:
        sinks.append((_bucket(export.bucket_url), export.bucket_interval_s))
    return sinks


def _otlp(deps: Deps, endpoint: str, tenant_of: Callable[[str], str]) -> Sink:
    try:
        from toolhub_service.app.audit_otlp import OtlpSink
    except ModuleNotFoundError as missing:
        raise not_installed("audit.export.otlp_endpoint", "otlp") from missing
    service = {"service.name": deps.settings.tracing.service_name, "service.version": __version__}
    return OtlpSink(endpoint, service, os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), tenant_of)


def _bucket(url: str) -> Sink:
    try:
        import obstore

        from toolhub_service.stores.blobs_bucket import bucket_of
    except ModuleNotFoundError as missing:
        raise not_installed("audit.export.bucket_url", "s3") from missing
    try:
        store = bucket_of(url, os.environ)
    except OSError as unreadable:
        message = f"audit.export.bucket_url: a secret file cannot be read: {unreadable.strerror}."
        raise HubFailure(StartReason.BUCKET_SECRET_UNREADABLE, message) from unreadable
    except ValueError as wrong:
        raise HubFailure(StartReason.BUCKET_URL_INVALID, f"audit.export.bucket_url: {wrong}.") from wrong
    return BucketSink(partial(obstore.put, store))


Sweep = Callable[[int], Awaitable[int]]


def counted(what: str, sweep: Sweep, observing: Observing) -> Sweep:
    """The same sweep, whose removals are counted and logged under that name."""

    async def swept(now_unix_ms: int) -> int:
        removed = await sweep(now_unix_ms)
        if removed:
            observing.swept(what, removed)
        return removed

    return swept
