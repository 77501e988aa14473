"""W3C trace context: the caller's trace goes on in the hub's spans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.hub import RunningHub, running_hub
from toolhub_service.telemetry.tracing import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TOOL = "core/util.time.now"


@dataclass
class TracedHub:
    running: RunningHub
    exporter: InMemorySpanExporter

    def spans(self) -> list[ReadableSpan]:
        self.running.hub.observing.tracing.flush()
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


@pytest.fixture
async def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TracedHub]:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr("toolhub_service.app.wiring.telemetry.Tracing", partial(Tracing, exporter=exporter))
    async with running_hub(tmp_path) as running:
        yield TracedHub(running, exporter)


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent else ""


@pytest.mark.promise("telemetry.trace-goes-on")
async def test_trace_of_the_caller_goes_on_in_one_tree(traced: TracedHub) -> None:
    await traced.running.invoke(TOOL, metadata=(("traceparent", f"00-{TRACE}-{SPAN}-01"),))
    spans = traced.spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    root = spans[0]
    assert root.name == "toolhub.v1.ToolService/Invoke"
    assert parent_of(root) == SPAN
    ids = {f"{span.context.span_id:016x}" for span in spans}
    assert all(parent_of(span) in ids for span in spans[1:])
    assert any(TOOL in span.name for span in spans[1:])
    attributes = root.attributes or {}
    assert (attributes["toolhub.principal"], attributes["gen_ai.tool.name"], attributes["toolhub.outcome"]) == (
        "local",
        TOOL,
        "ok",
    )


async def test_caller_that_does_not_record_is_not_recorded(traced: TracedHub) -> None:
    await traced.running.invoke(TOOL, metadata=(("traceparent", f"00-{TRACE}-{SPAN}-00"),))
    assert traced.spans() == []


@pytest.mark.parametrize("broken", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01"])
async def test_broken_trace_context_starts_a_trace_of_its_own(traced: TracedHub, broken: str) -> None:
    await traced.running.invoke(TOOL, metadata=(("traceparent", broken),))
    roots = [span for span in traced.spans() if span.parent is None]
    assert len(roots) == 1
    assert f"{roots[0].context.trace_id:032x}" not in (TRACE, "0" * 32)


async def test_refused_call_marks_its_spans_with_the_kind(traced: TracedHub) -> None:
    await traced.running.invoke("core/fs.readText", {"path": "missing"})
    values = [value for span in traced.spans() for value in (span.attributes or {}).values()]
    assert "NOT_FOUND" in values
    assert (traced.spans()[0].attributes or {})["toolhub.outcome"] == "NOT_FOUND"
