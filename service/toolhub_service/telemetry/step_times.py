"""The histogram of step durations, nine observations a call: a bisection and two additions each.

A Prometheus histogram child takes a lock and walks its buckets, which for nine steps is a tenth of what a governed
call may cost; this one is written by the loop's thread only, and added up when it is read. Worker processes that share
their metrics need the library's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from toolhub_service.domain.settled import StepTime
from toolhub_service.domain.step import StepName
from toolhub_service.telemetry.names import Metric

_NS_PER_MS: Final = 1e6


class StepTimes(Protocol):
    def observe(self, steps: Iterable[StepTime]) -> None:
        """Add the steps of one call."""
        ...


class _Tally:
    __slots__ = ("counts", "sum_ns")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.sum_ns = 0


class TalliedStepTimes(Collector):
    """For one process; its `observe` belongs to one thread."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self._metric = metric
        self._bounds_ns = [round(bound * _NS_PER_MS) for bound in metric.buckets]
        self._tallies = {step: _Tally(len(self._bounds_ns) + 1) for step in StepName}
        registry.register(self)

    def observe(self, steps: Iterable[StepTime]) -> None:
        tallies, bounds_ns = self._tallies, self._bounds_ns
        for step, start_ns, end_ns in steps:
            tally, duration_ns = tallies[step], end_ns - start_ns
            tally.counts[bisect_left(bounds_ns, duration_ns)] += 1
            tally.sum_ns += duration_ns

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
        bounds = [*map(floatToGoString, self._metric.buckets), "+Inf"]
        for step, tally in self._tallies.items():
            buckets = list(zip(bounds, accumulate(tally.counts), strict=True))
            family.add_metric([step.value], buckets, tally.sum_ns / _NS_PER_MS)
        yield family


class SharedStepTimes:
    """For worker processes whose metrics are one."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        histogram = Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
        self._children = {step: histogram.labels(step.value) for step in StepName}

    def observe(self, steps: Iterable[StepTime]) -> None:
        for step, start_ns, end_ns in steps:
            self._children[step].observe((end_ns - start_ns) / _NS_PER_MS)
