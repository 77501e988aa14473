"""Wires the audit log: its place by the settings, its retention, and its export to a file, a collector or a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolhub_service import __version__
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.stores import bucket_named, not_installed
from toolhub_service.settings.audit_section import AuditExport
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.export import BucketSink, Export, FileSink, Sink, least
from toolhub_service.stores.audit.log import ChainedAuditLog, SqliteAuditLog
from toolhub_service.stores.audit.retention import AuditRetention, EventArchive
from toolhub_service.stores.audit.unended import UnendedCalls
from toolhub_service.stores.audit.upkeep import AuditUpkeep, UpkeepTask
from toolhub_service.telemetry.access_trace import AccessTrace

if TYPE_CHECKING:
    from toolhub_service.app.audit_otlp import OtlpSink

_DAY_S = 86_400.0
_RETENTION_S = 60.0
# From the deadline of a call to its last event, at most.
_LATE_S = 5.0


async def open_audit(deps: Deps, worker: int) -> ChainedAuditLog:
    """Open the log. Raises ToolFailure or HubFailure when it cannot be written: a hub without one does not start."""
    observing = deps.observing
    audit = audit_log_of(
        deps.settings,
        clock=deps.clock,
        redactor=deps.redactor,
        name=f"worker{worker}",
        observer=observing.audit,
        witness=observing.audit.witness if observing.logs_leave else None,
    )
    await audit.start()
    return audit


def audit_log_of(settings: Settings, **options: Any) -> ChainedAuditLog:
    """Return the unstarted log by the settings; `options` are those of `ChainedAuditLog`. Raises HubFailure."""
    paths, url = Paths(settings), settings.stores.postgres_url
    if not url:
        return SqliteAuditLog(paths.audit, paths.audit_checkpoints, paths.audit_key, **options)
    try:
        from toolhub_service.stores.audit.postgres import PostgresAuditLog
    except ModuleNotFoundError as missing:
        raise not_installed("stores.postgres_url", "postgres") from missing
    return PostgresAuditLog(url, paths.audit_checkpoints, paths.audit_key, **options)


def make_access(deps: Deps, audit: ChainedAuditLog) -> AccessTrace:
    """Return the recorder of refused identities and of reads of the audit log."""
    return AccessTrace(audit, deps.observing.metrics, deps.observing.log, deps.clock)


def make_upkeep(deps: Deps, audit: ChainedAuditLog, tenant_of: Callable[[str], str]) -> AuditUpkeep:
    """Return the upkeep. `tenant_of` returns a principal's tenant by the policy in force, or an empty text.

    Raises HubFailure when a place cannot be opened: its package is missing, or its URL is invalid.
    """
    settings, observing = deps.settings.audit, deps.observing
    telemetry = observing.audit
    tasks: list[UpkeepTask] = []
    carried: list[Callable[[], int]] = []
    for sink, every_s in _sinks(deps, settings.export, tenant_of):
        export = Export(audit.events, sink, telemetry)
        carried.append(export.last_sent_row)
        tasks.append(UpkeepTask(sink.name, export.step, every_s))
    if settings.keep_days:
        folder = settings.archive_folder
        archive = EventArchive(Path(folder).expanduser()) if folder else None
        retention = AuditRetention(
            partial(audit.prune, archive=archive),
            deps.clock.unix_ms,
            settings.keep_days * _DAY_S,
            least(carried),
            observing.count_removed,
        )
        tasks.append(UpkeepTask("retention", retention.step, _RETENTION_S))
    return AuditUpkeep(audit.events, tasks, telemetry)


def make_unended(deps: Deps, audit: ChainedAuditLog) -> UnendedCalls:
    """Return what ends, in the log, calls of a hub that was killed."""
    wait_s = deps.settings.budget.max_timeout_s + _LATE_S
    return UnendedCalls(audit, deps.clock.unix_ms, wait_s, deps.observing.audit.upkeep_failed)


def _sinks(deps: Deps, export: AuditExport, tenant_of: Callable[[str], str]) -> list[tuple[Sink, float]]:
    sinks: list[tuple[Sink, float]] = []
    if export.file:
        sinks.append((FileSink(Path(export.file).expanduser(), export.file_max_bytes), export.interval_s))
    if export.otlp_endpoint:
        sinks.append((_otlp(deps, export.otlp_endpoint, tenant_of), export.interval_s))
    if export.bucket_url:
        sinks.append((_bucket(export.bucket_url), export.bucket_interval_s))
    return sinks


def check_exports(export: AuditExport) -> None:
    """Raise HubFailure as `make_upkeep` does. Sends nothing, and opens no file."""
    if export.otlp_endpoint:
        _otlp_sink()
    if export.bucket_url:
        bucket_named("audit.export.bucket_url", export.bucket_url)


def _otlp_sink() -> type[OtlpSink]:
    try:
        from toolhub_service.app.audit_otlp import OtlpSink
    except ModuleNotFoundError as missing:
        raise not_installed("audit.export.otlp_endpoint", "otlp") from missing
    return OtlpSink


def _otlp(deps: Deps, endpoint: str, tenant_of: Callable[[str], str]) -> Sink:
    service = {"service.name": deps.settings.tracing.service_name, "service.version": __version__}
    return _otlp_sink()(endpoint, service, os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), tenant_of)


def _bucket(url: str) -> Sink:
    store = bucket_named("audit.export.bucket_url", url)
    import obstore

    return BucketSink(partial(obstore.put, store))
