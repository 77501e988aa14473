"""A count equals the library's own child."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from toolhub_service.telemetry.counters import Counts, Distributions
from toolhub_service.telemetry.names import Metric, MetricKind

CALLS = Metric("calls_total", MetricKind.COUNTER, "calls", "Calls.", ("tool", "ok"))
TIME = Metric("time_seconds", MetricKind.HISTOGRAM, "s", "Time.", ("tool",), (0.5, 1.0, 2.5))
RUNNING = Metric("running", MetricKind.GAUGE, "calls", "Running.")


def shown(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    """All samples, without the times at which the library's children were made."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]
    return [one for one in samples if not one[0].endswith("_created")]


def test_a_counter_equals_the_librarys() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    for counter in (Counts(CALLS, ours), Counter(CALLS.name, CALLS.help, CALLS.labels, registry=theirs)):
        counter.labels("a/b", "true").inc()
        counter.labels("a/b", "true").inc(3)
        counter.labels('c"\n', "false").inc(0)
    assert shown(ours) == shown(theirs)


def test_histogram_puts_each_value_into_the_librarys_bucket() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    library = Histogram(TIME.name, TIME.help, TIME.labels, registry=theirs, buckets=TIME.buckets)
    for histogram in (Distributions(TIME, ours), library):
        for value in (0.0, 0.5, 0.50001, 1.0, 2.5, 99.0):
            histogram.labels("a/b").observe(value)
    assert shown(ours) == shown(theirs)


def test_a_gauge_counts_what_is_inside_from_the_start() -> None:
    registry = CollectorRegistry()
    running = Counts(RUNNING, registry).labels()
    assert shown(registry) == [("running", {}, 0.0)]
    with running, running:
        assert shown(registry) == [("running", {}, 2.0)]
    assert shown(registry) == [("running", {}, 0.0)]
