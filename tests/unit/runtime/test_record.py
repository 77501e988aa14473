from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import replace

import pytest

from tests.unit.runtime.pipeline_harness import (
    HANG,
    POLICY,
    READ,
    WRITE,
    PipelineHarness,
    a_call,
    a_pipeline_harness,
    a_tool,
)
from toolhub_service.domain.call import BudgetRequest, GrantedCall, Mode
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.event import EventType
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import SILENT, Outcome, ToolResult

DENY_ALL = POLICY + "rules: [{id: never, effect: DENY}]\n"


class LogBreakingAdapter:
    """Has its effect, and then the disk is full."""

    def __init__(self, harness: PipelineHarness) -> None:
        self.harness = harness

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        self.harness.audit.broken = True
        return Outcome(value={"text": "written"})


@pytest.mark.promise("audit.before-the-effect")
async def test_side_effect_waits_until_its_record_is_on_disk() -> None:
    harness = a_pipeline_harness()
    harness.audit.gate = asyncio.Event()
    task = asyncio.create_task(harness.pipeline.invoke(a_call(WRITE), SILENT))
    await harness.audit.waiting.wait()
    assert harness.adapter.calls == []
    harness.audit.gate.set()
    answer = await task
    assert isinstance(answer, ToolResult)
    assert answer.ok
    assert harness.visited.index("audit.TOOL_CALLED") < harness.visited.index("adapter.execute")


async def test_read_does_not_wait_for_the_disk() -> None:
    harness = a_pipeline_harness()
    await harness.result(READ)
    assert "audit.durably" not in harness.visited


async def test_read_waits_for_the_disk_where_the_log_has_fallen_behind() -> None:
    harness = a_pipeline_harness()
    harness.audit.has_caught_up.clear()
    task = asyncio.create_task(harness.pipeline.invoke(a_call(READ), SILENT))
    await harness.audit.waiting.wait()
    assert harness.adapter.calls == []
    harness.audit.has_caught_up.set()
    answer = await task
    assert isinstance(answer, ToolResult)
    assert answer.ok


@pytest.mark.promise("audit.before-the-effect")
@pytest.mark.parametrize("spec", [READ, WRITE])
async def test_call_that_cannot_be_recorded_is_refused_before_its_effect(spec: object) -> None:
    harness = a_pipeline_harness()
    harness.audit.broken = True
    error = await harness.error(spec)  # type: ignore[arg-type]
    assert error.kind is ErrorKind.IO_ERROR
    assert error.details["component"] == "audit"
    assert harness.adapter.calls == []
    assert harness.budgets.in_flight(READ.upstream_key) == 0


@pytest.mark.promise("audit.broken-log-answers")
async def test_log_that_breaks_after_the_effect_costs_the_event_and_not_the_answer() -> None:
    harness = a_pipeline_harness()
    breaking = LogBreakingAdapter(harness)
    harness.adapter.execute = breaking.execute  # type: ignore[method-assign]
    result = await harness.result(WRITE)
    assert result.ok
    (recorded,) = harness.observer.crashes
    assert isinstance(recorded, ToolFailure)
    assert len(harness.observer.settled_calls) == 1


@pytest.mark.parametrize(("tool", "events"), [(READ, 1), (WRITE, 2), ("test/unknown", 2)])
async def test_refusal_is_answered_and_counted_while_the_log_is_broken(tool: object, events: int) -> None:
    harness = a_pipeline_harness(policy=DENY_ALL)
    harness.audit.broken = True
    result = await harness.result(tool)  # type: ignore[arg-type]
    assert not result.ok
    assert len(harness.observer.crashes) == events
    assert len(harness.observer.settled_calls) == 1


async def test_dry_run_is_answered_while_the_log_is_broken() -> None:
    harness = a_pipeline_harness()
    harness.audit.broken = True
    plan = await harness.plan(WRITE, {"text": "hi"})
    assert plan.plan_digest


async def test_cancelling_passes_while_the_log_is_broken() -> None:
    harness = a_pipeline_harness(HANG)
    task = asyncio.create_task(harness.pipeline.invoke(a_call(READ), SILENT))
    await harness.adapter.started.wait()
    harness.audit.broken = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.promise("audit.two-events")
async def test_call_cancelled_while_its_record_is_written_is_recorded_once_and_never_runs() -> None:
    harness = a_pipeline_harness()
    harness.audit.gate = asyncio.Event()
    task = asyncio.create_task(harness.pipeline.invoke(a_call(WRITE), SILENT))
    await harness.audit.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.event_types == [EventType.TOOL_CALLED, EventType.TOOL_RESULT]
    assert harness.events[-1].outcome == "CANCELLED"
    assert harness.adapter.calls == []


CALLS = {
    "success": ((), READ, {}, "ok", EventType.TOOL_RESULT),
    "side effect": ((), WRITE, {}, "ok", EventType.TOOL_RESULT),
    "failure": (
        (ToolError(ErrorKind.NOT_FOUND, "None."),),
        READ,
        {},
        "NOT_FOUND",
        EventType.TOOL_RESULT,
    ),
    "defect": ((RuntimeError("boom"),), READ, {}, "INTERNAL", EventType.TOOL_RESULT),
    "unknown tool": ((), "test/unknown", {}, "TOOL_NOT_FOUND", EventType.TOOL_RESULT),
    "bad arguments": ((), READ, {"no": 1}, "INPUT_SCHEMA_INVALID", EventType.TOOL_RESULT),
    "bad result": ((Outcome(value={}),), READ, {}, "OUTPUT_SCHEMA_INVALID", EventType.TOOL_RESULT),
}


@pytest.mark.promise("audit.two-events")
@pytest.mark.parametrize("name", CALLS)
async def test_call_leaves_two_events_asked_and_settled_and_a_read_one(name: str) -> None:
    answers, spec, args, outcome, settled = CALLS[name]
    harness = a_pipeline_harness(*answers)
    await harness.result(spec, args)  # type: ignore[arg-type]
    assert harness.event_types == ([settled] if spec is READ else [EventType.TOOL_CALLED, settled])
    assert harness.events[-1].outcome == outcome


@pytest.mark.promise("audit.two-events")
async def test_an_event_of_a_read_states_what_its_two_events_would_have() -> None:
    harness = a_pipeline_harness(Outcome(value={"text": "x"}))
    await harness.result(READ, {"text": "hi"}, purpose="to see", labels={"team": "blue"}, user_id="local")
    (event,) = harness.events
    assert (event.purpose, json.loads(event.args_summary)) == ("to see", {"text": "hi", "times": 1})
    assert (event.outcome, event.attributes, event.user_id) == ("ok", {"attempts": "1"}, "local")
    assert (event.labels, event.rule_id) == ({"team": "blue"}, "grant:*")
    assert all((event.args_digest, event.result_digest, event.policy_revision, event.tool_digest))


async def test_read_that_could_not_be_recorded_any_more_is_reported() -> None:
    harness = a_pipeline_harness()
    breaking = LogBreakingAdapter(harness)
    harness.adapter.execute = breaking.execute  # type: ignore[method-assign]
    assert (await harness.result(READ)).ok
    assert len(harness.observer.crashes) == 1


async def test_call_is_in_flight_until_it_is_answered() -> None:
    harness = a_pipeline_harness(HANG)
    task = asyncio.create_task(harness.pipeline.invoke(a_call(READ), SILENT))
    await harness.adapter.started.wait()
    assert list(harness.pipeline.in_flight) == ["call-1"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not harness.pipeline.in_flight


async def test_refusal_by_policy_is_an_event_of_its_own_type() -> None:
    harness = a_pipeline_harness(policy=DENY_ALL)
    await harness.result(WRITE)
    assert harness.event_types == [EventType.TOOL_CALLED, EventType.POLICY_DENIED]
    assert harness.events[1].rule_id == "never"


async def test_kind_of_refusal_that_came_from_running_is_a_result_and_no_denial() -> None:
    harness = a_pipeline_harness(ToolError(ErrorKind.HTTP_DISALLOWED_HOST, "Redirected elsewhere."))
    await harness.result(WRITE)
    assert harness.event_types[-1] is EventType.TOOL_RESULT


@pytest.mark.promise("purpose.required")
async def test_an_event_names_caller_tool_rule_and_reason() -> None:
    harness = a_pipeline_harness()
    began_ns = time.perf_counter_ns()
    await harness.result(WRITE, {"text": "hi"}, purpose="say hello", principal="agent-a")
    longest_us = (time.perf_counter_ns() - began_ns) // 1_000
    asked, settled = harness.events
    for event in (asked, settled):
        assert (event.principal, event.tool, event.tool_digest) == ("agent-a", WRITE.name, WRITE.digest)
        assert (event.call_id, event.request_id) == ("call-1", "request-1")
        assert event.policy_revision == harness.policy.revision
        assert event.rule_id == "grant:*"
        assert len(event.args_digest) == 64
    assert asked.purpose == "say hello"
    assert json.loads(asked.args_summary) == {"text": "hi", "times": 1}
    assert 0 < settled.duration_us <= longest_us
    assert settled.attributes == {"attempts": "1"}


async def test_only_the_answer_that_was_given_is_reported_by_digest_and_summary() -> None:
    harness = a_pipeline_harness(ToolError(ErrorKind.NOT_FOUND, "None."), Outcome(value={"text": "x"}))
    await harness.result(READ)
    await harness.result(READ)
    answer = b'{"text":"x"}'
    recorded = [(event.result_digest, event.result_summary) for event in harness.events]
    nothing = ("", "")
    assert recorded == [nothing, (hashlib.sha256(answer).hexdigest(), answer.decode())]


async def test_long_answer_is_reported_by_its_outline() -> None:
    spec = replace(a_tool("test/open", read_only=True), output_schema={"type": "object"})
    rows: list[JsonValue] = [1] * 300
    value: JsonObject = {"text": "x" * 65, "short": "y" * 64, "k" * 65: None, "rows": rows, "map": {"a": 1}, "n": 1.5}
    harness = a_pipeline_harness(Outcome(value=value), tools=(spec,))
    await harness.result(spec)
    assert json.loads(harness.events[-1].result_summary) == {
        "text": "(65 characters)",
        "short": "y" * 64,
        "(65 characters)": None,
        "rows": "(300 items)",
        "map": "(1 members)",
        "n": 1.5,
    }


@pytest.mark.promise("secrets.nowhere")
async def test_secrets_of_arguments_are_not_in_the_record() -> None:
    spec = a_tool("test/open", read_only=True)
    harness = a_pipeline_harness(tools=(spec,))
    await harness.result(spec, {"password": "hunter2-canary", "text": "x"})
    assert harness.events
    assert "hunter2" not in repr(harness.events)


async def test_retry_is_an_event_with_its_number() -> None:
    harness = a_pipeline_harness(ToolError(ErrorKind.NETWORK_ERROR, "Broken."), Outcome(value={"text": "x"}))
    await harness.result(READ, budget=BudgetRequest(max_retries=1))
    assert harness.event_types == [EventType.RETRY, EventType.TOOL_RESULT]
    retry = harness.events[0]
    assert (retry.outcome, retry.attributes) == ("NETWORK_ERROR", {"attempt": "1"})
    assert harness.events[1].attributes == {"attempts": "2"}


@pytest.mark.promise("audit.two-events")
@pytest.mark.parametrize(("args", "outcome"), [({"text": "hi"}, "planned"), ({"no": 1}, "INPUT_SCHEMA_INVALID")])
async def test_a_dry_run_leaves_two_events_that_are_marked(args: dict[str, object], outcome: str) -> None:
    harness = a_pipeline_harness()
    await harness.plan(WRITE, args)  # type: ignore[arg-type]
    assert harness.event_types == [EventType.TOOL_CALLED, EventType.TOOL_RESULT]
    assert harness.events[1].outcome == outcome
    assert all(event.attributes == {"mode": Mode.DRY_RUN.value} for event in harness.events)
