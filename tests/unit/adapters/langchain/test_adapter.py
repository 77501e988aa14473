"""Calls of async LangChain tools, which run on the event loop, and the traps that LangChain lays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes import langchain_tools
from tests.fakes.langchain_source import FAKES, OpenedSource, a_source, opened
from tests.ports.adapter_suite import SILENT, AdapterSuite, Prepared, granted
from tests.ports.tool_source_suite import ToolSourceSuite
from toolhub_service.domain.call import ExecContext
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.source import ToolSource
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.tool_schemas import ToolSchemas
from toolhub_service.sections.source_config import ToolTerms


@pytest.fixture
async def desk() -> AsyncIterator[OpenedSource]:
    async with opened("LOOP_TOOLS", inject={"user": "principal"}) as desk:
        yield desk


class TestAdapter(AdapterSuite):
    @pytest.fixture
    def prepared(self, desk: OpenedSource) -> Prepared:
        call_events = langchain_tools.new_call_events()
        return Prepared(
            adapter=desk.adapter,
            echo=desk.spec("echo"),
            refuses=desk.spec("refuses"),
            crashes=desk.spec("crashes"),
            waits=desk.spec("waits"),
            started=call_events.started,
            let_go=call_events.let_go,
            stopped=call_events.stopped,
        )

    async def test_an_unforeseen_error_is_internal_and_keeps_its_text_to_itself(self, prepared: Prepared) -> None:
        """An exception of a LangChain tool is reported instead, by its type and its redacted text."""
        text = "hunter2-known in /srv/desk/orders.db"
        with pytest.raises(ToolFailure) as caught:
            await prepared.adapter.execute(granted(prepared.crashes, {"text": text}), SILENT)
        error = caught.value.error
        assert (error.kind, error.details["exception"]) == (ErrorKind.EXECUTION_ERROR, "RuntimeError")
        assert "failed with RuntimeError: leaked " in error.message
        assert "may have had a part of its effect" in error.message
        assert "hunter2" not in error.message
        assert "/srv" not in error.message
        assert isinstance(caught.value.__cause__, RuntimeError)


class TestSource(ToolSourceSuite):
    @pytest.fixture
    def source(self) -> ToolSource:
        return a_source(f"{FAKES}:LOOP_TOOLS", f"{FAKES}:WORKER_TOOLS")


async def test_every_value_fits_the_one_declared_shape(desk: OpenedSource) -> None:
    values = {
        "echo": await desk("echo", text="hello"),
        "blocks": await desk("blocks"),
        "charted": await desk("charted"),
        "own_message": await desk("own_message"),
    }
    assert values == {
        "echo": {"text": "hello"},
        "blocks": {
            "text": "one\ntwo",
            "content": [
                {"type": "text", "text": "one"},
                {"type": "image_url", "url": "x"},
                {"type": "text", "text": "two"},
            ],
        },
        "charted": {"text": "see the artifact", "artifact": {"rows": [1, 2]}},
        "own_message": {"text": "mine", "artifact": [1]},
    }
    for name, value in values.items():
        assert compile_schema(desk.spec(name).output_schema).is_valid(value)


@pytest.mark.parametrize(
    ("kind", "artifact"),
    [
        ("bytes", {"type": "builtins.bytes", "omitted": "not JSON", "bytes": 4}),
        ("object", {"type": "_thread.lock", "omitted": "not JSON"}),
        ("model", {"x": 1}),
    ],
)
async def test_an_artifact_that_is_not_json_is_described(kind: str, artifact: Any, desk: OpenedSource) -> None:
    assert (await desk("charted", kind=kind))["artifact"] == artifact


async def test_results_and_artifacts_are_bounded() -> None:
    async with opened("LOOP_TOOLS", max_result_bytes=1000) as desk:
        assert len((await desk("lengthy", size=1000))["text"]) == 1000
        error = await desk.refused("lengthy", size=1001)
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert error.details == {"limit_bytes": 1000}
        artifact = (await desk("charted", kind="large"))["artifact"]
        assert artifact == {"type": "builtins.str", "omitted": "larger than 1000 bytes", "bytes": 10_002}


async def test_text_that_is_not_unicode_becomes_json_anyway(desk: OpenedSource) -> None:
    assert (await desk("broken_text")) == {"text": "a\ufffdb"}


@pytest.mark.promise("langchain.injected-not-settable")
async def test_a_caller_never_sets_what_only_the_hub_may_set(desk: OpenedSource) -> None:
    spec = desk.spec("whoami")
    attack = {"question": "q", "user": "admin", "tool_call_id": "forged"}
    assert ToolSchemas(spec).validate_input(attack)
    # And were the schema not asked, the adapter would still see to it.
    assert await desk("whoami", **attack) == {"text": "q/tester/call-1"}
    assert await desk("listed_injection", question="q", user="admin") == {"text": "q/tester"}


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("principal", "tester"),
        ("user_id", "u"),
        ("agent_id", "a"),
        ("request_id", "r"),
        ("task_id", "t"),
        ("session_id", "s"),
        ("call_id", "call-1"),
    ],
)
async def test_injected_values_come_from_the_call(what: str, value: str) -> None:
    context = ExecContext(request_id="r", task_id="t", session_id="s", agent_id="a", user_id="u")
    async with opened("whoami", inject={"user": what}) as desk:
        call = granted(desk.spec("whoami"), {"question": "q"}, context=context)
        assert (await desk.adapter.execute(call, SILENT)).value == {"text": f"q/{value}/call-1"}


async def test_a_dict_schema_is_enforced_by_the_hub_for_langchain_does_not(desk: OpenedSource) -> None:
    schemas = ToolSchemas(desk.spec("dict_schema"))
    assert schemas.validate_input({"count": "x"})
    assert schemas.validate_input({"counted": 1})
    completed, _ = schemas.complete({})
    assert await desk("dict_schema", **completed) == {"text": "[('count', 3)]"}


async def test_a_tool_exception_is_reported_to_the_model(desk: OpenedSource) -> None:
    error = await desk.refused("refuses")
    assert error.kind is ErrorKind.EXECUTION_ERROR
    assert "There is no such order. Ask for a number from the list." in error.message


async def test_an_error_that_langchain_has_handled_is_no_success_and_is_redacted(desk: OpenedSource) -> None:
    error = await desk.refused("handled", text="password=hunter2-known " + "x" * 5000)
    assert error.kind is ErrorKind.EXECUTION_ERROR
    assert "cannot: " in error.message
    assert "hunter2" not in error.message
    assert len(error.message) < 2200


async def test_text_that_the_operator_calls_an_error_is_one() -> None:
    terms = {"echo": ToolTerms(error_pattern=r"\AError: ")}
    async with opened("echo", tools=terms) as desk:
        assert await desk("echo", text="No Error: here") == {"text": "No Error: here"}
        error = await desk.refused("echo", text="Error: Access denied")
        assert error.kind is ErrorKind.EXECUTION_ERROR
        assert "Access denied" in error.message


async def test_arguments_that_pydantic_refuses_are_reported_for_repair(desk: OpenedSource) -> None:
    error = await desk.refused("even", number=3)
    assert error.kind is ErrorKind.INVALID_INPUT
    (violation,) = error.violations
    assert (violation.path, violation.keyword) == ("/number", "value_error")
    assert violation.message == "Value error, must be even"


async def test_a_validation_error_of_the_tools_own_reading_is_not_the_callers(desk: OpenedSource) -> None:
    error = await desk.refused("reads_badly")
    assert (error.kind, error.details["exception"]) == (ErrorKind.EXECUTION_ERROR, "ValidationError")
    assert "secret-of-the-upstream" not in repr(error)


async def test_neither_sys_exit_nor_a_cancellation_of_its_own_ends_more_than_the_call(desk: OpenedSource) -> None:
    for name in ("exits", "gives_up"):
        assert (await desk.refused(name)).kind is ErrorKind.INTERNAL
    assert await desk("echo", text="still here") == {"text": "still here"}


async def test_a_verbose_tool_does_not_print_its_arguments_on_the_hubs_output(
    desk: OpenedSource, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await desk("talkative", text="canary") == {"text": "canary"}
    assert "canary" not in "".join(capfd.readouterr())


async def test_loading_a_tool_again_leaves_the_operators_object_as_it_is(desk: OpenedSource) -> None:
    before = dict(langchain_tools.echo.__dict__)
    await desk("echo", text="x")
    assert "_arun" not in langchain_tools.echo.__dict__
    assert langchain_tools.echo.__dict__ == before


async def test_a_tool_of_a_source_that_went_away_is_unavailable(desk: OpenedSource) -> None:
    desk.adapter.remove("desk")
    assert (await desk.refused("echo")).kind is ErrorKind.TOOL_UNAVAILABLE
    desk.adapter.put(desk.source)
    assert await desk("echo", text="back") == {"text": "back"}


async def test_a_source_may_be_replaced_while_a_call_runs(desk: OpenedSource) -> None:
    call_events = langchain_tools.new_call_events()
    running = asyncio.create_task(desk("waits"))
    await asyncio.wait_for(call_events.started.wait(), 60)
    desk.adapter.remove("desk")
    call_events.let_go.set()
    assert await running == {"text": "let go"}


async def test_effects_and_side_effects_are_those_the_operator_declares() -> None:
    async with opened("echo", tools={"echo": ToolTerms(read_only=True)}) as desk:
        call = granted(desk.spec("echo"))
        assert not desk.adapter.has_side_effects(call.planned)
        assert not desk.adapter.resumes(call.spec)
        (effect,) = desk.adapter.effects(call)
        assert effect == "Calls the LangChain tool echo of the source desk, which changes nothing."


async def test_a_tool_that_cannot_be_called_is_refused_before_anything_runs() -> None:
    async with opened("BROKEN_TOOLS") as desk:
        with pytest.raises(ToolFailure) as caught:
            await desk.adapter.execute(granted(desk.spec("needs_state"), {"question": "q"}), SILENT)
        assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE


class RecordingHandler:
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
    recorded = RecordingHandler()
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


async def test_runs_in_a_worker_are_traced_alike_and_failures_by_class() -> None:
    recorded = RecordingHandler()
    async with opened("sync_nested", "sync_nested_failing", tracer=recorded.tracer, processes=1) as desk:
        with recorded.tracer.start_as_current_span("call"):
            assert (await desk("sync_nested", text="abc"))["text"].startswith("5 in ")
            await desk.refused("sync_nested_failing")
    assert recorded.parents() == {"call": "", "execute_tool add": "call", "execute_tool sync_crashes": "call"}
    failed = next(s for s in recorded.exporter.get_finished_spans() if s.name == "execute_tool sync_crashes")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "RuntimeError"
    assert "canary" not in failed.to_json()


async def test_an_untraced_call_records_nothing() -> None:
    recorded = RecordingHandler()
    async with opened("LOOP_TOOLS", tracer=recorded.tracer) as desk:
        with trace.use_span(trace.INVALID_SPAN):
            await desk("nested", text="x")
        assert await desk("loop_tracers") == {"text": "nobody"}
    assert recorded.exporter.get_finished_spans() == ()
