"""Spans of the runs inside a call, below the current span, named by OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

OPERATION: Final = "gen_ai.operation.name"
TOOL: Final = "gen_ai.tool.name"
ERROR: Final = "error.type"


def is_recording() -> bool:
    """Return whether the running call is traced."""
    return trace.get_current_span().is_recording()


def make_spans(tracer: Tracer, runs: Sequence[Sequence[Any]], redact: Callable[[str], str]) -> None:
    """Make one span for each record of `RunRecorder.records`, parents first, with names only and no values."""
    root = trace.get_current_span()
    made: list[Span] = []
    for kind, name, start_ns, end_ns, parent, error in runs:
        shown = redact(name)
        above = made[parent] if 0 <= parent < len(made) else root
        attributes = {OPERATION: kind} | ({TOOL: shown} if kind == "execute_tool" else {})
        span = tracer.start_span(
            f"{kind} {shown}".rstrip(),
            trace.set_span_in_context(above),
            SpanKind.INTERNAL,
            attributes,
            start_time=start_ns,
        )
        if error:
            span.set_attribute(ERROR, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)
        made.append(span)
