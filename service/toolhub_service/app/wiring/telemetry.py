"""Metrics, traces and logs of one process, made together."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from toolhub_service import __version__
from toolhub_service.app.certificates import Change as CertificateChange
from toolhub_service.app.certificates import Validity
from toolhub_service.app.listening import host_and_port
from toolhub_service.guards.secrets import Redactor
from toolhub_service.identity.api_keys import moment
from toolhub_service.policy.live import Change, Difference
from toolhub_service.settings.document import Settings
from toolhub_service.telemetry import names
from toolhub_service.telemetry.audit import AuditTelemetry
from toolhub_service.telemetry.calls import CallTelemetry
from toolhub_service.telemetry.logs import configure_logging, logger
from toolhub_service.telemetry.metrics import Metrics, MetricsEndpoint
from toolhub_service.telemetry.tracing import Tracing

_NAMES_MAX = 20
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(slots=True)
class Observing:
    metrics: Metrics
    tracing: Tracing
    calls: CallTelemetry
    audit: AuditTelemetry
    log: FilteringBoundLogger
    endpoint: MetricsEndpoint
    listen: str
    """host:port of the Prometheus endpoint; empty: none, as for a worker, whose supervisor serves the metrics of
    all."""
    logs_leave: bool
    """Whether logs go to a collector, which also carries the audit's checkpoints to another machine."""
    metrics_port: int = 0
    """0 until started, and when there is none."""

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        self.metrics_port = await start_endpoint(self.endpoint, self.listen)

    async def close(self) -> None:
        """Send what traces are left, stop the endpoint."""
        await self.endpoint.stop()
        await asyncio.to_thread(self.tracing.close)

    def rpc_crashed(self, method: str, error: Exception) -> None:
        """A defect outside of any call."""
        self.log.error(names.LOG_CRASH, rpc=method, exc_info=error)

    def shadow_differs(self, difference: Difference) -> None:
        """Record that the candidate policy would have decided otherwise."""
        call = difference.planned.call
        self.log.info(
            names.LOG_SHADOW_DIFFERS,
            call_id=call.call_id,
            principal=call.principal.id,
            tool=call.tool,
            live=difference.live.effect.value,
            live_rule=difference.live.rule_id,
            shadow=difference.shadow.effect.value,
            shadow_rule=difference.shadow.rule_id,
        )

    def policy_reloaded(self, change: Change) -> None:
        if change.applied:
            self.metrics.policy_loaded(change.revision)
            self.log.info(names.LOG_POLICY_LOADED, revision=change.revision)
        else:
            self.metrics.policy_rejected()
            self.log.error(names.LOG_POLICY_REJECTED, problem=change.problem, kept_revision=change.revision)

    def policy_unmatched(self, warnings: Sequence[str], *, are_all: bool) -> None:
        """Log names in the policy that match nothing known."""
        self.log.warning(names.LOG_POLICY_UNMATCHED, warnings=list(warnings), are_all=are_all)

    def mcp_names_clash(self, tools: Sequence[str]) -> None:
        """Log the tools that MCP clients see with the source's name, though the settings omit it."""
        self.log.warning(names.LOG_MCP_NAMES_CLASH, tools=list(tools[:_NAMES_MAX]), count=len(tools))

    def shadow_loaded(self, change: Change) -> None:
        """Log that a candidate policy is compared from now on, or was refused."""
        if change.applied:
            self.log.info(names.LOG_SHADOW_LOADED, revision=change.revision)
        else:
            self.log.error(names.LOG_SHADOW_REJECTED, problem=change.problem)

    def shadow_failed(self, calls: int) -> None:
        """Log how many calls the candidate could not be compared on since the last report."""
        self.log.error(names.LOG_SHADOW_FAILED, calls=calls)

    def reload_failed(self, error: Exception) -> None:
        """Log a defect in following files and gauges; the next reload is tried anyway."""
        self.log.error(names.LOG_CRASH, task="following", exc_info=error)

    def files_loose(self, commands: Sequence[str]) -> None:
        """Log that others may write what the hub trusts, and the configuration lets it start anyway."""
        for command in commands:
            self.log.warning(names.LOG_FILES_LOOSE, repair=command)

    def plan_key_differs(self, file: Path) -> None:
        """Log that the hub seals with the key of the shared store, not with the one in its folder."""
        self.log.warning(names.LOG_PLAN_KEY_DIFFERS, file=str(file), advice="remove the file, or the store's key")

    def scripts_cannot_start(self, reason: str) -> None:
        """Log that no script of a skill can start on this machine."""
        self.log.warning(names.LOG_SCRIPTS_LACKING, reason=reason)

    def certificates_in_force(self, validities: Mapping[str, Validity]) -> None:
        for file, validity in validities.items():
            self.metrics.family(names.CERTIFICATE_END).labels(file).set(validity.end_s)

    def certificate_changed(self, change: CertificateChange) -> None:
        """Log that TLS files were replaced: by what is in force now, or by unusable ones."""
        is_used = not change.problem
        self.metrics.family(names.CERTIFICATE_RELOADS).labels(change.name, str(is_used).lower()).inc()
        if is_used:
            self.certificates_in_force({change.name: change.validity})
            end = datetime.fromtimestamp(change.validity.end_s, UTC).isoformat()
            self.log.info(names.LOG_TLS_LOADED, file=change.name, expires=end)
        else:
            self.log.error(names.LOG_TLS_REJECTED, file=change.name, problem=change.problem)

    def certificate_expires(self, file: str, end_s: float, *, has_expired: bool) -> None:
        """Log that what is in force expires soon, or has expired."""
        write = self.log.error if has_expired else self.log.warning
        write(names.LOG_TLS_EXPIRES, file=file, expires=datetime.fromtimestamp(end_s, UTC).isoformat())

    def clock_compared(self, behind_s: float, newest_unix_ms: int, *, is_new: bool) -> None:
        """Set how far the clock is behind the newest audit event; log it when it was not so before."""
        self.metrics.family(names.CLOCK_BEHIND).set(behind_s)
        if is_new:
            newest = datetime.fromtimestamp(newest_unix_ms / 1_000, UTC).isoformat()
            self.log.error(names.LOG_CLOCK_BEHIND, behind_s=round(behind_s, 1), newest_event=newest)

    def workload_api_is(self, id: str, problem: str, end_s: float) -> None:
        """Log whether the SPIFFE agent keeps the hub's SVID, `id`, fresh; otherwise why not, and until when it is
        valid."""
        self.metrics.family(names.WORKLOAD_API).labels(id).set(not problem)
        if not problem:
            self.log.info(names.LOG_SVID_BACK, spiffe_id=id)
        else:
            end = datetime.fromtimestamp(end_s, UTC).isoformat()
            self.log.warning(names.LOG_SVID_AWAY, spiffe_id=id, problem=problem, expires=end)

    def svid_expired(self, id: str, problem: str) -> None:
        self.log.error(names.LOG_SVID_ENDED, spiffe_id=id, problem=problem)

    def count_removed(self, what: str, removed: int) -> None:
        """Count and log expired items that were removed. Callable from any thread."""
        self.metrics.family(names.REMOVED).labels(what).inc(removed)
        self.log.info(names.LOG_SWEPT, what=what, removed=removed)

    def key_expires(self, key_id: str, principal: str, expires_s: int) -> None:
        advice = f"toolhub keys rotate {key_id}"
        self.log.warning(
            names.LOG_KEY_EXPIRES, key=key_id, principal=principal, expires=moment(expires_s), advice=advice
        )

    def key_uses_lost(self, error: Exception) -> None:
        self.log.warning(names.LOG_KEY_USES_LOST, problem=str(error))

    def keys_unreadable(self, error: Exception) -> None:
        self.log.error(names.LOG_KEYS_UNREADABLE, problem=str(error))


def metrics_hosts(settings: Settings) -> frozenset[str]:
    """Return the host names by which the metrics may be requested, besides addresses."""
    own = settings.metrics.listen.rpartition(":")[0].strip("[]")
    return frozenset(name.lower() for name in (*settings.metrics.hosts, own, "localhost") if name)


async def start_endpoint(endpoint: MetricsEndpoint, listen: str) -> int:
    """Serve metrics on `listen` (host:port); return the port, 0 when none is wanted.

    Raises ListenRefused for an invalid address, OSError when the port is taken.
    """
    if not listen:
        return 0
    host, port = host_and_port("metrics.listen", listen)
    try:
        return await endpoint.start(host, port)
    except OSError as taken:
        raise cannot_serve_metrics(listen) from taken


def cannot_serve_metrics(listen: str) -> OSError:
    """Return the error of a metrics address that cannot be bound."""
    return OSError(
        f"cannot serve metrics on {listen}: the address is in use or not ours. Stop what listens there, or set "
        "metrics.listen (TOOLHUB_METRICS_LISTEN) to another address, or to nothing for no metrics."
    )


def open_observing(settings: Settings, redactor: Redactor, *, is_worker: bool) -> Observing:
    """Return the telemetry. Raises HubFailure when OTLP is wanted and its exporter is not installed."""
    form = settings.logs.format
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    configure_logging(level=settings.logs.level, form=form, redactor=redactor)
    log = logger("toolhub")
    folder = os.environ.get(MULTIPROCESS_VARIABLE)
    metrics = Metrics(
        version=__version__,
        max_principals=settings.metrics.max_principals,
        multiprocess_dir=Path(folder) if folder else None,
    )
    tracing = Tracing(
        service_name=settings.tracing.service_name,
        service_version=__version__,
        otlp_endpoint=settings.tracing.otlp_endpoint or None,
        sample_ratio=settings.tracing.sample_ratio,
        redactor=redactor,
    )
    return Observing(
        metrics=metrics,
        tracing=tracing,
        calls=CallTelemetry(metrics, tracing, log, access_log=settings.logs.calls),
        audit=AuditTelemetry(metrics, log),
        log=log,
        endpoint=MetricsEndpoint(metrics.scraped, metrics_hosts(settings)),
        listen="" if is_worker else settings.metrics.listen,
        logs_leave=form == "json",
    )
