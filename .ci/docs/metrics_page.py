"""docs/metrics.md, from the names of metrics, spans and log events."""

from __future__ import annotations

from toolhub_service.domain.result import StepName
from toolhub_service.telemetry.names import LOG_EVENTS, METRICS, SPANS


def page() -> str:
    lines = [
        "# Metrics, spans and log events",
        "",
        "Generated from `service/toolhub_service/telemetry/names.py`; do not edit.",
        "",
        "## Metrics",
        "",
        "Served on `/metrics` as Prometheus text or OpenMetrics, as asked. A `tool` that the catalog does not hold is",
        "`unknown`; beyond a bound on distinct values every label is `other`. `principal` is there where",
        "`metrics.max_principals` is set. RPCs are named as gRPC servers in Go and Java name theirs.",
        "",
        "| metric | kind | unit | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {_code(metric.labels)} | {metric.help} |"
        for metric in METRICS
    ]
    steps = _code(tuple(step.value for step in StepName))
    lines += ["", f"`step` is one of {steps}.", "", "## Spans", "", "| span | name | meaning |", "|---|---|---|"]
    lines += [f"| {what} | `{name}` | {meaning} |" for what, name, meaning in SPANS]
    lines += ["", "## Log events", "", "| event | level | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {level} | {meaning} |" for name, level, meaning in LOG_EVENTS]
    return "\n".join(lines) + "\n"


def _code(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
