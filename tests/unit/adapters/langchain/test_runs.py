"""What happens inside a call becomes spans beneath the one that is current, without values."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes.langchain_source import opened


class Recorded:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    def parents(self) -> dict[str, str]:
        """Name of each span to its parent's."""
        spans = self.exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context}
        return {span.name: names[span.parent.span_id] if span.parent else "" for span in spans}


async def test_nested_runs_are_spans_beneath_the_call_and_carry_no_values() -> None:
    recorded = Recorded()
    async with opened("LOOP_TOOLS", tracer=recorded.tracer) as desk:
        with recorded.tracer.start_as_current_span("execute_tool desk/nested"):
            assert await desk("nested", text="canary") == {"text": "CANARY"}
    assert recorded.parents() == {
        "execute_tool desk/nested": "",
        "execute_tool echo": "execute_tool desk/nested",
        "invoke_chain _shout": "execute_tool desk/nested",
    }
    spans = recorded.exporter.get_finished_spans()
    assert "canary" not in str([span.to_json() for span in spans]).lower()
    inner = next(span for span in spans if span.name == "execute_tool echo")
    assert inner.attributes == {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "echo"}
    assert inner.start_time is not None
    assert inner.end_time is not None
    assert inner.start_time <= inner.end_time


async def test_runs_in_a_worker_are_told_the_same_way_and_failures_by_class() -> None:
    recorded = Recorded()
    async with opened("sync_nested", "sync_nested_failing", tracer=recorded.tracer, processes=1) as desk:
        with recorded.tracer.start_as_current_span("call"):
            assert (await desk("sync_nested", text="abc"))["text"].startswith("5 in ")
            await desk.refused("sync_nested_failing")
    assert recorded.parents() == {"call": "", "execute_tool add": "call", "execute_tool sync_crashes": "call"}
    failed = next(s for s in recorded.exporter.get_finished_spans() if s.name == "execute_tool sync_crashes")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "RuntimeError"
    assert "canary" not in failed.to_json()


async def test_nothing_is_recorded_for_a_call_that_is_not_traced() -> None:
    recorded = Recorded()
    async with opened("LOOP_TOOLS", tracer=recorded.tracer) as desk:
        with trace.use_span(trace.INVALID_SPAN):
            await desk("nested", text="x")
        assert await desk("loop_tracers") == {"text": "nobody"}
    assert recorded.exporter.get_finished_spans() == ()
