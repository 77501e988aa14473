from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.unit.telemetry.calls import DENIED, SPEC, asked, granted, settled
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, refuse
from toolhub_service.domain.result import StepName
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.trace_context import current_trace_id, current_traceparent
from toolhub_service.telemetry.tracing import Tracing

METHOD = "toolhub.v1.ToolService/Invoke"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = [
    ("user-agent", "x"),
    ("traceparent", f"00-{TRACE}-{SPAN}-01"),
    ("tracestate", "vendor=1"),
    ("baggage", "k=v"),
]
UNSAMPLED = [("traceparent", f"00-{TRACE}-{SPAN}-00")]


class RecordedTracing:
    """Tracing into memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        options.setdefault("redactor", Redactor(["trace-canary-77"]))
        self.tracing = Tracing(service_name="test", exporter=self.exporter, **options)

    def spans(self) -> Sequence[ReadableSpan]:
        self.tracing.flush()
        return self.exporter.get_finished_spans()

    def tree(self) -> dict[str, Any]:
        """Names under names, in the order of their start."""
        spans = sorted(self.spans(), key=lambda span: span.start_time or 0)

        def below(parent: int | None) -> dict[str, Any]:
            found = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
            return {span.name: below(span.context.span_id) for span in found}

        return below(int(SPAN, 16))

    def close(self) -> None:
        self.tracing.close()


@pytest.fixture
def recorded() -> Any:
    recorded = RecordedTracing()
    yield recorded
    recorded.close()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


async def run_call(tracing: Tracing, metadata: list[tuple[str, str]], *, error: ErrorKind | None = None) -> list[str]:
    """One RPC with one call; the traceparents that its adapter saw."""
    seen: list[str] = []
    rpc = tracing.rpc(METHOD, metadata)
    call = asked()
    start_ns = time.perf_counter_ns()
    with tracing.executing(granted(call)):
        seen.append(current_traceparent())
        await asyncio.create_task(asyncio.sleep(0))
    tracing.record_steps(settled(call, error=error, start_ns=start_ns))
    rpc.end("OK", principal=Principal("agent-a"))
    seen.append(rpc.context.traceparent)
    return seen


async def test_the_tree_of_a_call_is_the_rpc_its_steps_and_the_execution(recorded: RecordedTracing) -> None:
    await run_call(recorded.tracing, SAMPLED)
    steps: dict[str, Any] = {f"toolhub.step.{step.value}": {} for step in StepName}
    steps["toolhub.step.execute"] = {f"execute_tool {SPEC.name}": {}}
    assert recorded.tree() == {METHOD: steps}
    assert {span.context.trace_id for span in recorded.spans()} == {int(TRACE, 16)}


async def test_a_span_of_an_rpc_names_issuer_actor_and_user(recorded: RecordedTracing) -> None:
    who = Principal("corp:ann", issuer="corp", tenant="acme", actors=("corp:bot", "corp:relay"))
    rpc, call = recorded.tracing.rpc(METHOD, SAMPLED), asked()
    call = call._replace(principal=who, context=call.context._replace(user_id="bob"))
    recorded.tracing.record_steps(settled(call, start_ns=time.perf_counter_ns()))
    rpc.end("OK", principal=who)
    (span,) = (span for span in recorded.spans() if span.name == METHOD)
    named = {name: value for name, value in attributes(span).items() if name.startswith("toolhub.")}
    assert named == {
        "toolhub.principal": "corp:ann",
        "toolhub.issuer": "corp",
        "toolhub.tenant": "acme",
        "toolhub.actors": "corp:bot corp:relay",
        "toolhub.subject": "bob",
        "toolhub.outcome": "ok",
    }


async def test_spans_carry_what_the_conventions_ask_for(recorded: RecordedTracing) -> None:
    await run_call(recorded.tracing, SAMPLED)
    by_name = {span.name: span for span in recorded.spans()}
    rpc, execution = by_name[METHOD], by_name[f"execute_tool {SPEC.name}"]
    assert rpc.kind is SpanKind.SERVER
    assert attributes(rpc) == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "gen_ai.tool.name": SPEC.name,
        "toolhub.outcome": "ok",
        "toolhub.principal": "agent-a",
    }
    assert attributes(execution) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": SPEC.name,
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.tool.type": "function",
        "toolhub.tool.kind": "core",
        "toolhub.attempt": 1,
    }
    assert attributes(by_name["toolhub.step.check_policy"])["toolhub.policy.rule_id"] == "grant:local"
    took = {step: by_name[f"toolhub.step.{step.value}"] for step in StepName if step is not StepName.EXECUTE}
    for step, span in took.items():
        assert (span.end_time or 0) - (span.start_time or 0) == (list(StepName).index(step) + 1) * 1_000_000


async def test_while_the_adapter_runs_its_own_span_is_what_goes_out(recorded: RecordedTracing) -> None:
    inside, rpc = await run_call(recorded.tracing, SAMPLED)
    execution = next(span for span in recorded.spans() if span.name.startswith("execute_tool"))
    assert inside == f"00-{TRACE}-{execution.context.span_id:016x}-01"
    assert inside != rpc


async def test_a_failed_call_marks_the_step_that_failed(recorded: RecordedTracing) -> None:
    steps = (
        StepName.RESOLVE,
        StepName.VALIDATE_INPUT,
        StepName.CHECK_POLICY,
        StepName.ATTACH_EVIDENCE,
        StepName.RECORD,
    )
    rpc = recorded.tracing.rpc(METHOD, SAMPLED)
    recorded.tracing.record_steps(settled(asked(), error=ErrorKind.POLICY_DENIED, steps=steps, verdict=DENIED))
    rpc.end("OK")
    failed = {span.name: span for span in recorded.spans() if span.status.status_code is StatusCode.ERROR}
    assert list(failed) == ["toolhub.step.check_policy"]
    assert attributes(failed["toolhub.step.check_policy"])["error.type"] == "POLICY_DENIED"
    assert attributes(failed["toolhub.step.check_policy"])["toolhub.policy.rule_id"] == "rule-7"


async def test_each_attempt_has_its_own_span_under_the_one_execute_step(recorded: RecordedTracing) -> None:
    tracing, call = recorded.tracing, asked()
    rpc = tracing.rpc(METHOD, SAMPLED)
    with pytest.raises(Exception, match="UPSTREAM_ERROR"), tracing.executing(granted(call)):
        raise refuse(ErrorKind.UPSTREAM_ERROR, "password=hunter2")
    with pytest.raises(KeyError), tracing.executing(granted(call)):
        raise KeyError("password=hunter2")
    tracing.record_steps(settled(call, error=ErrorKind.INTERNAL, start_ns=time.perf_counter_ns()))
    rpc.end("OK")
    attempts = [span for span in recorded.spans() if span.name.startswith("execute_tool")]
    assert [attributes(span)["toolhub.attempt"] for span in attempts] == [1, 2]
    assert [attributes(span)["error.type"] for span in attempts] == ["UPSTREAM_ERROR", "INTERNAL"]
    assert len({span.parent.span_id for span in attempts if span.parent}) == 1
    assert "hunter2" not in "".join(span.to_json() for span in recorded.spans())


async def test_calls_of_one_session_do_not_mix_their_executions(recorded: RecordedTracing) -> None:
    tracing = recorded.tracing
    rpc = tracing.rpc(METHOD, SAMPLED)
    calls = [asked(f"call-{number}") for number in range(5)]
    gate = asyncio.Barrier(len(calls))

    async def one(number: int) -> None:
        with tracing.executing(granted(calls[number])):
            await gate.wait()
        tracing.record_steps(settled(calls[number], start_ns=time.perf_counter_ns()))

    await asyncio.gather(*(one(number) for number in range(5)))
    rpc.end("OK")
    spans = {span.context.span_id: span for span in recorded.spans()}
    executions = [span for span in spans.values() if span.name.startswith("execute_tool")]
    assert len(executions) == 5
    for span in executions:
        assert span.parent is not None
        parent = spans[span.parent.span_id]
        assert attributes(parent)["gen_ai.tool.call.id"] == attributes(span)["gen_ai.tool.call.id"]


async def test_a_call_cut_off_with_its_rpc_leaves_no_open_span(recorded: RecordedTracing) -> None:
    rpc = recorded.tracing.rpc(METHOD, SAMPLED)
    with recorded.tracing.executing(granted(asked())):
        pass
    rpc.end("UNAVAILABLE", "token=hunter2")
    by_name = {span.name: span for span in recorded.spans()}
    assert len(by_name) == 3
    assert by_name[METHOD].status.status_code is StatusCode.ERROR
    assert by_name[METHOD].status.description == "token=***"
    assert attributes(by_name[METHOD])["error.type"] == "UNAVAILABLE"


async def test_a_callers_no_is_kept_and_its_context_passed_on(recorded: RecordedTracing) -> None:
    inside, rpc = await run_call(recorded.tracing, UNSAMPLED)
    assert inside == rpc == UNSAMPLED[0][1]
    assert recorded.spans() == ()
    assert current_trace_id() == TRACE


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 40)])
async def test_the_share_decides_for_traces_that_start_here(ratio: float, expected: int) -> None:
    recorded = RecordedTracing(sample_ratio=ratio)
    trace_ids = set()
    for _ in range(40):
        rpc = recorded.tracing.rpc(METHOD, [])
        trace_ids.add(rpc.trace_id)
        rpc.end("OK")
    spans = recorded.spans()
    assert len(spans) == expected
    assert len(trace_ids) == 40
    assert {f"{span.context.trace_id:032x}" for span in spans} <= trace_ids
    recorded.close()


async def test_without_an_exporter_the_callers_context_passes_through_untouched() -> None:
    tracing = Tracing(service_name="test", redactor=Redactor())
    inside, rpc = await run_call(tracing, SAMPLED)
    assert inside == rpc == SAMPLED[1][1]
    tracing.close()


async def test_a_secret_in_an_attribute_is_hidden(recorded: RecordedTracing) -> None:
    rpc = recorded.tracing.rpc(METHOD, SAMPLED)
    call = asked(call_id="id-trace-canary-77")
    with recorded.tracing.executing(granted(call)):
        pass
    recorded.tracing.record_steps(settled(call, start_ns=time.perf_counter_ns()))
    rpc.end("OK")
    assert "trace-canary-77" not in "".join(span.to_json() for span in recorded.spans())


def test_a_missing_exporter_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HubFailure) as caught:
        Tracing(service_name="test", otlp_endpoint="http://127.0.0.1:4317", redactor=Redactor())
    assert caught.value.reason.name == "OTLP_EXPORTER_MISSING"
    assert "toolhub extras install otlp" in caught.value.message
