"""What the telemetry of sources and pins measures, logs and audits."""

from __future__ import annotations

import structlog
from msgspec import structs
from structlog.testing import LogCapture

from tests.fakes.audit_log import MemoryAuditLog
from tests.fakes.clock import ManualClock
from toolhub_service.domain.event import EventType
from toolhub_service.domain.pin import Pin, PinChange, PinState
from toolhub_service.domain.source import SourceState, SourceStatus
from toolhub_service.domain.tool import ToolKind
from toolhub_service.telemetry.metrics import Metrics
from toolhub_service.telemetry.sources import SourceTelemetry

READY = SourceStatus("files", ToolKind.MCP, tool_count=14, quarantined_count=2, latency_ms=40.0)
DOWN = structs.replace(READY, state=SourceState.DOWN, reason="it does not answer")
PIN = Pin("files", "files/read", "ab" * 32, {"name": "read"}, PinState.PENDING, PinChange.CHANGED, findings=("odd",))


class RecordedSources:
    def __init__(self) -> None:
        self.metrics = Metrics(version="1")
        self.audit = MemoryAuditLog()
        self.logged = LogCapture()
        log = structlog.wrap_logger(None, [self.logged], structlog.make_filtering_bound_logger(0))
        self.telemetry = SourceTelemetry(self.audit, self.metrics, log, ManualClock())

    def value(self, sample: str) -> float:
        lines = self.metrics.exposition().decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} "))


def test_a_source_is_measured_at_every_reading_and_logged_when_it_changes() -> None:
    recorded = RecordedSources()
    for status in (READY, READY, DOWN, DOWN, READY):
        recorded.telemetry.on_reading(status)
    assert [entry["event"] for entry in recorded.logged.entries] == ["source_read", "source_down", "source_read"]
    assert recorded.value('toolhub_source_up{source="files"}') == 1
    assert recorded.value('toolhub_source_tools{source="files"}') == 14
    assert recorded.value('toolhub_source_quarantined{source="files"}') == 2
    assert recorded.value('toolhub_source_refresh_seconds_count{source="files"}') == 3


def test_a_source_of_which_something_cannot_be_used_is_a_warning_and_up() -> None:
    recorded = RecordedSources()
    recorded.telemetry.on_reading(
        structs.replace(READY, state=SourceState.PARTIAL, reason="the api_key is not accepted")
    )
    (entry,) = recorded.logged.entries
    logged = (entry["event"], entry["log_level"], entry["reason"])
    assert logged == ("source_partial", "warning", "the api_key is not accepted")
    assert recorded.value('toolhub_source_up{source="files"}') == 1
    assert recorded.value('toolhub_source_whole{source="files"}') == 0
    recorded.telemetry.on_reading(READY)
    assert recorded.value('toolhub_source_whole{source="files"}') == 1


def test_a_judgement_changes_what_is_measured_and_is_no_reading() -> None:
    recorded = RecordedSources()
    recorded.telemetry.on_reading(READY)
    recorded.telemetry.on_judgement(structs.replace(READY, quarantined_count=0))
    assert recorded.value('toolhub_source_quarantined{source="files"}') == 0
    assert recorded.value('toolhub_source_up{source="files"}') == 1
    assert recorded.value('toolhub_source_refresh_seconds_count{source="files"}') == 1
    recorded.telemetry.on_judgement(structs.replace(READY, state=SourceState.DOWN))
    assert recorded.value('toolhub_source_up{source="files"}') == 0


def test_a_source_that_is_switched_off_is_not_measured() -> None:
    recorded = RecordedSources()
    recorded.telemetry.on_reading(structs.replace(READY, state=SourceState.DISABLED, latency_ms=0.0))
    assert 'source="files"' not in recorded.metrics.exposition().decode()


def test_pins_are_audited_with_who_decided_and_what_was_found() -> None:
    recorded = RecordedSources()
    recorded.telemetry.on_pin(structs.replace(PIN, change=PinChange.ADDED))
    recorded.telemetry.on_drift(PIN)
    recorded.telemetry.on_decision(structs.replace(PIN, state=PinState.APPROVED, decided_by="ops"))
    events = [chained.event for chained in recorded.audit.events]
    assert [event.type for event in events] == [EventType.PIN_CREATED, EventType.PIN_DRIFTED, EventType.PIN_DECIDED]
    assert {event.attributes["findings"] for event in events} == {"odd"}
    assert [(event.principal, event.outcome) for event in events][-1] == ("ops", "APPROVED")
    assert recorded.value('toolhub_pins_total{event="drifted",source="files"}') == 1


def test_a_source_that_flaps_fills_no_log() -> None:
    recorded, clock = RecordedSources(), ManualClock()
    recorded.telemetry = SourceTelemetry(
        recorded.audit, recorded.metrics, structlog.wrap_logger(None, [recorded.logged]), clock
    )
    gone = structs.replace(PIN, change=PinChange.REMOVED)
    for hour in range(2):
        for again in range(500):
            recorded.telemetry.on_drift(structs.replace(gone, version=2 + 1_000 * hour + 2 * again))
        clock.advance(3_600.0)
    recorded.telemetry.on_drift(structs.replace(PIN, digest="cd" * 32))
    assert len(recorded.audit.events) == 3
    assert recorded.value('toolhub_pins_total{event="drifted",source="files"}') == 1_001


def test_a_broken_audit_log_is_reported_and_delays_nothing() -> None:
    recorded = RecordedSources()
    recorded.audit.broken = True
    recorded.telemetry.on_decision(PIN)
    assert [entry["event"] for entry in recorded.logged.entries] == ["source_trouble"]
    assert recorded.value('toolhub_source_troubles_total{source="files"}') == 1


def test_a_source_that_was_removed_is_measured_no_more_and_reported_anew_when_it_comes_back() -> None:
    recorded = RecordedSources()
    recorded.telemetry.on_reading(DOWN)
    recorded.telemetry.forget_source("files")
    recorded.telemetry.forget_source("never-seen")
    recorded.telemetry.on_reading(structs.replace(DOWN, name="other"))
    text = recorded.metrics.exposition().decode()
    gauges = [line for line in text.splitlines() if line.startswith(("toolhub_source_up{", "toolhub_source_tools{"))]
    assert {line.partition("{")[2].partition("}")[0] for line in gauges} == {'source="other"'}
    recorded.telemetry.on_reading(DOWN)
    assert [entry["source"] for entry in recorded.logged.entries] == ["files", "other", "files"]
