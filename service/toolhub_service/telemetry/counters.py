"""Counters, gauges and histograms for each call: an update is one addition, by the loop's thread only.

A child of prometheus_client takes a lock and checks itself at each use, four Python calls an addition; an RPC and its
call make a dozen of them. These have the library's methods, because worker processes that share their metrics need the
library's own children; they are converted to samples when they are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from toolhub_service.domain.result import StepName, StepTime
from toolhub_service.telemetry import names
from toolhub_service.telemetry.names import Metric, MetricKind


class Count:
    """The value of a counter or, by `with`, of a gauge of the blocks entered."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *_: object) -> None:
        self.value -= 1


class SharedCount:
    """The same, stored in a child of prometheus_client, for worker processes that share their metrics."""

    __slots__ = ("_child", "_value")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self._value = 0

    @property
    def value(self) -> int:
        """Return the count of this process."""
        return self._value

    @value.setter
    def value(self, value: int) -> None:
        # A child can only be increased by a difference, and `value += 1` must work as on `Count`.
        self._child.inc(value - self._value)
        self._value = value


class Distribution:
    """The value of a histogram: a count for each bucket, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: inclusive upper ends of the buckets, ascending; one more bucket takes larger values."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counts(Collector):
    """A counter or a gauge, with a value for each set of labels."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self._metric = metric
        self._counts: dict[tuple[str, ...], Count] = {}
        if not metric.labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """Return the value of these labels, the same object each time."""
        return self._counts.setdefault(values, Count())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        metric = self._metric
        make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        # A copy: scrapes are written in a thread while calls add children.
        for values, count in list(self._counts.items()):
            family.add_metric(values, count.value)
        yield family


class Distributions(Collector):
    """A histogram, with a distribution for each set of labels."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self._metric = metric
        self._distributions: dict[tuple[str, ...], Distribution] = {}
        registry.register(self)

    def labels(self, *values: str) -> Distribution:
        """Return the distribution of these labels, the same object each time."""
        return self._distributions.setdefault(values, Distribution(self._metric.buckets))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        metric = self._metric
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
        # A copy, as of counts.
        for values, of in list(self._distributions.items()):
            family.add_metric(values, list(zip(bounds, accumulate(of.counts), strict=True)), of.sum)
        yield family


# Step durations are nine observations a call: a bisection and two additions each; the library's histogram takes a lock
# and searches its buckets linearly, which would cost a tenth of what a governed call may cost.

_NS_PER_S: Final = 1e9


class StepTimes(Protocol):
    def observe(self, steps: Iterable[StepTime]) -> None:
        """Add the steps of one call."""


class CountedStepTimes(Distributions):
    """For a single process; `observe` is called by one thread."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        super().__init__(metric, registry)
        self._of_step = {step: self.labels(step.value) for step in StepName}

    def observe(self, steps: Iterable[StepTime]) -> None:
        of_step, bounds = self._of_step, self._metric.buckets
        for step, start_ns, end_ns in steps:
            distribution, duration_s = of_step[step], (end_ns - start_ns) / _NS_PER_S
            distribution.counts[bisect_left(bounds, duration_s)] += 1  # not `observe`: that would be nine calls a call
            distribution.sum += duration_s


class SharedStepTimes:
    """For worker processes that share their metrics."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        histogram = Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
        self._children = {step: histogram.labels(step.value) for step in StepName}

    def observe(self, steps: Iterable[StepTime]) -> None:
        for step, start_ns, end_ns in steps:
            self._children[step].observe((end_ns - start_ns) / _NS_PER_S)


# The view of scrapers


class _Scraped(Collector):
    """The metrics of one process, or of all workers that share a folder."""

    def __init__(self, source: CollectorRegistry | Path) -> None:
        self._source = source

    def describe(self) -> Iterator[Family]:
        """Yield the families, by whose names a scraper requests some of them (`name[]`)."""
        for metric in names.METRICS:
            yield Family(metric.name.removesuffix("_total"), metric.help, metric.kind.value)

    def collect(self) -> Iterator[Family]:
        registry = self._source
        if isinstance(registry, Path):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=str(self._source))  # type: ignore[no-untyped-call]
        yield from registry.collect()


def make_scrape_registry(source: CollectorRegistry | Path) -> CollectorRegistry:
    """Return a registry that reads `source` at each scrape: this process's, or the folder of several."""
    registry = CollectorRegistry()
    registry.register(_Scraped(source))
    return registry
