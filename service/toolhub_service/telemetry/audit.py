"""Passes reports of the audit log (commits, upkeep, export) on to metrics and logs."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.excerpts import excerpt
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics


class AuditTelemetry:
    """Implements the audit log's `CommitObserver`, `UpkeepObserver` and `ExportObserver`; it logs checkpoints as
    witnesses."""

    def __init__(self, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self._metrics = metrics
        self._log = log
        self._exported = metrics.family(names.AUDIT_EXPORTED)
        self._refused = metrics.family(names.AUDIT_EXPORT_REFUSED)
        self._backlog = metrics.family(names.AUDIT_BACKLOG)
        self._failures = metrics.family(names.UPKEEP_FAILURES)

    def upkeep_failed(self, task: str, problem: Exception) -> None:
        self._failures.labels(task).inc()
        self._log.warning(
            names.LOG_UPKEEP_FAILED, task=task, problem=excerpt(f"{type(problem).__name__}: {problem}", 500)
        )

    def on_export(self, sink: str, events: int, refused: int) -> None:
        self._exported.labels(sink).inc(events)
        if refused:
            self._refused.labels(sink).inc(refused)
            self._log.error(names.LOG_EXPORT_REFUSED, sink=sink, events=refused)

    def backlog(self, sink: str, events: int) -> None:
        self._backlog.labels(sink).set(events)

    def begins_anew(self, sink: str) -> None:
        self._log.warning(names.LOG_EXPORT_ANEW, sink=sink)

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        self._metrics.audit_committed(events, seconds, depth)

    def audit_failed(self, reason: str) -> None:
        self._metrics.audit_failed(reason)
        self._log.error(names.LOG_AUDIT_FAILED, reason=reason)

    def witness(self, line: str) -> None:
        """Log a checkpoint line, so that it leaves the machine with the other logs."""
        self._log.info(names.LOG_CHECKPOINT, checkpoint=line)
