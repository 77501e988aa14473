"""Passes reports of sources and pins on to metrics, logs and the audit log."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.telemetry import names
from toolhub_service.telemetry.logs import log_trouble
from toolhub_service.telemetry.metrics import Metrics

_READ: Final = frozenset({SourceState.READY, SourceState.PARTIAL})
_WORRYING: Final = {
    SourceState.DOWN: names.LOG_SOURCE_DOWN,
    SourceState.NEEDS_LOGIN: names.LOG_SOURCE_DOWN,
    SourceState.PARTIAL: names.LOG_SOURCE_PARTIAL,
}
_SAME_DRIFT_MS: Final = 3600 * 1000
# Most changes remembered, over all sources; about 0.3 kB each.
_DRIFTS_MAX: Final = 50_000


class SourceTelemetry:
    """Implements `SourceObserver`."""

    def __init__(self, audit: AuditLog, metrics: Metrics, log: FilteringBoundLogger, clock: Clock) -> None:
        self._audit = audit
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._up = metrics.family(names.SOURCE_UP)
        self._whole = metrics.family(names.SOURCE_WHOLE)
        self._tools = metrics.family(names.SOURCE_TOOLS)
        self._quarantined = metrics.family(names.SOURCE_QUARANTINED)
        self._seconds = metrics.family(names.SOURCE_SECONDS)
        self._troubles = metrics.family(names.SOURCE_TROUBLES)
        self._pins = metrics.family(names.PINS)
        # What was last logged of a source, so that an unchanged state is not logged again.
        self._logged: dict[str, tuple[SourceState, str, int, int]] = {}
        # When a change of a known record was last logged, by record and kind of change.
        self._drifts: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def on_reading(self, status: SourceStatus) -> None:
        name = status.name
        self.on_judgement(status)
        if status.state in _READ:
            self._seconds.labels(name).observe(status.latency_ms / 1_000)
        logged = (status.state, status.reason, status.tool_count, status.quarantined_count)
        if self._logged.get(name) == logged:
            return
        self._logged[name] = logged
        event = _WORRYING.get(status.state)
        write = self._log.info if event is None else self._log.warning
        write(
            event or names.LOG_SOURCE_READ,
            source=name,
            state=status.state.value,
            reason=status.reason,
            tools=status.tool_count,
            quarantined=status.quarantined_count,
        )

    def on_judgement(self, status: SourceStatus) -> None:
        """A source that is switched off, and so not read, is not measured."""
        if status.state is SourceState.DISABLED:
            self.forget_source(status.name)
            return
        self._up.labels(status.name).set(status.state in _READ)
        self._whole.labels(status.name).set(status.state in _READ and not status.partial)
        self._tools.labels(status.name).set(status.tool_count)
        self._quarantined.labels(status.name).set(status.quarantined_count)

    def forget_source(self, source: str) -> None:
        """Remove the metrics of a source that is no longer configured or read, so that no alert fires for it."""
        self._logged.pop(source, None)
        for gauge, unremarkable in ((self._up, 1), (self._whole, 1), (self._tools, 0), (self._quarantined, 0)):
            gauge.labels(source).set(unremarkable)
        for metric in (names.SOURCE_UP, names.SOURCE_WHOLE, names.SOURCE_TOOLS, names.SOURCE_QUARANTINED):
            self._metrics.drop(metric, source)

    def on_pin(self, pin: Pin) -> None:
        self._remember(EventType.PIN_CREATED, pin)

    def on_drift(self, pin: Pin) -> None:
        """Log a change of pins, of each record only the first in an hour; the others are counted.

        A source that removes and restores tools all day changes the same records again and again.
        """
        if pin.version > 1 and not self._is_first(pin):
            self._count(EventType.PIN_DRIFTED, pin)
            return
        self._log.warning(names.LOG_DRIFT, source=pin.source, tool=pin.tool, change=pin.change.value, digest=pin.digest)
        self._remember(EventType.PIN_DRIFTED, pin)

    def on_decision(self, pin: Pin) -> None:
        self._remember(EventType.PIN_DECIDED, pin)

    def on_problem(self, source: str, problem: BaseException) -> None:
        self._troubles.labels(source).inc()
        log_trouble(self._log, names.LOG_SOURCE_TROUBLE, problem, source=source)

    def _is_first(self, pin: Pin) -> bool:
        key, now = (*pin.key, pin.change.value), self._clock.unix_ms()
        last = self._drifts.get(key)
        if last is not None and now - last < _SAME_DRIFT_MS:
            return False
        self._drifts[key] = now
        self._drifts.move_to_end(key)
        if len(self._drifts) > _DRIFTS_MAX:
            self._drifts.popitem(last=False)
        return True

    def _count(self, type: EventType, pin: Pin) -> None:
        self._pins.labels(pin.source, type.value.removeprefix("PIN_").lower()).inc()

    def _remember(self, type: EventType, pin: Pin) -> None:
        self._count(type, pin)
        attributes = {
            "source": pin.source,
            "digest": pin.digest,
            "previous_digest": pin.previous_digest,
            "change": pin.change.value,
            "state": pin.state.value,
            "findings": "; ".join(pin.findings)[:1_000],
            "comment": pin.comment,
            "renamed_from": pin.renamed_from,
        }
        event = Event(
            type=type,
            at_unix_ms=self._clock.unix_ms(),
            principal=pin.decided_by,
            tool=pin.tool,
            outcome=pin.state.value,
            attributes={name: value for name, value in attributes.items() if value},
        )
        try:
            self._audit.append(event)
        except ToolFailure as failure:  # the audit log reports its own failure; a pin is stored anyway
            self.on_problem(pin.source, failure)
