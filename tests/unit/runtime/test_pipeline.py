from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap

import pytest

from tests.unit.runtime.pipeline_harness import HANG, POLICY, READ, WRITE, a_call, a_pipeline_harness, a_tool
from toolhub_service.domain.errors.failure import NOTHING_HAPPENED, ErrorKind, ToolError
from toolhub_service.domain.event import EventType
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome, StepName, ToolResult
from toolhub_service.domain.tool import ToolState
from toolhub_service.runtime.pipeline import Pipeline

DENY_ALL = POLICY + "rules: [{id: never, effect: DENY, reason: Not today.}]\n"


@pytest.mark.promise("pipeline.single-path")
async def test_a_call_walks_the_nine_steps_in_their_one_order() -> None:
    harness = a_pipeline_harness()
    result = await harness.result(WRITE, {"text": "hi"})
    (settled,) = harness.observer.settled_calls
    assert [step for step, _, _ in settled.steps] == list(StepName)
    assert list(result.durations_us) == list(StepName)[:-1]  # the answer is made before it is recorded


async def test_each_part_is_asked_in_the_order_of_the_steps() -> None:
    harness = a_pipeline_harness()
    await harness.result(WRITE, {"text": "hi"})
    assert harness.visited == [
        "catalog.get",
        "policy.settled",
        "adapter.upstream",
        "audit.durably",
        "audit.TOOL_CALLED",
        "observer.executing",
        "adapter.execute",
        "audit.TOOL_RESULT",
        "observer.settled",
    ]


@pytest.mark.promise("pipeline.denied-never-runs", "policy.explained")
async def test_denied_call_never_reaches_budget_or_adapter() -> None:
    harness = a_pipeline_harness(policy=DENY_ALL)
    error = await harness.error(WRITE, {"text": "hi"})
    assert error.kind is ErrorKind.POLICY_DENIED
    assert error.details["rule_id"] == "never"
    assert error.details["policy_revision"] == harness.policy.revision
    assert harness.adapter.calls == []
    assert "adapter.upstream" not in harness.visited


async def test_invalid_arguments_never_reach_policy() -> None:
    harness = a_pipeline_harness()
    error = await harness.error(READ, {"txt": "hi"})
    assert error.kind is ErrorKind.INPUT_SCHEMA_INVALID
    assert "policy.decide" not in harness.visited


async def test_unknown_tool_reaches_nothing_but_the_record() -> None:
    harness = a_pipeline_harness()
    error = await harness.error("test/text.reed")
    assert error.kind is ErrorKind.TOOL_NOT_FOUND
    assert [word for word in harness.visited if not word.startswith("catalog.")] == [
        "audit.TOOL_CALLED",
        "audit.TOOL_RESULT",
        "observer.settled",
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "reached"),
    [
        (ToolError(ErrorKind.NOT_FOUND, "There is none."), ErrorKind.NOT_FOUND, StepName.EXECUTE),
        (Outcome(value={"txt": "hi"}), ErrorKind.OUTPUT_SCHEMA_INVALID, StepName.VALIDATE_OUTPUT),
    ],
)
async def test_a_failure_ends_the_walk_at_its_step(answer: object, kind: ErrorKind, reached: StepName) -> None:
    harness = a_pipeline_harness(answer)
    error = await harness.error(READ)
    assert error.kind is kind
    walked = [step for step, _, _ in harness.observer.settled_calls[0].steps]
    assert walked == [*list(StepName)[: list(StepName).index(reached) + 1], StepName.RECORD]


@pytest.mark.promise("pipeline.no-exception-text")
async def test_a_defect_is_reported_as_internal_without_its_text_and_logged_whole() -> None:
    defect = RuntimeError("password=hunter2")
    harness = a_pipeline_harness(defect)
    result = await harness.result(READ)
    assert result.error is not None
    assert result.error.kind is ErrorKind.INTERNAL
    assert result.error.details == {"call_id": "call-1"}
    assert "hunter2" not in repr(result)
    assert harness.observer.crashes == [defect]


async def test_defect_in_a_side_effect_is_an_unknown_outcome_and_logged_whole() -> None:
    defect = RuntimeError("password=hunter2")
    harness = a_pipeline_harness(defect)
    result = await harness.result(WRITE)
    assert result.error is not None
    assert (result.error.kind, result.error.is_retryable) == (ErrorKind.OUTCOME_UNKNOWN, False)
    assert result.error.details == {"call_id": "call-1", "cause": "INTERNAL"}
    assert "hunter2" not in repr(result)
    assert harness.observer.crashes == [defect]


async def test_defect_of_an_adapter_that_knows_of_no_effect_is_internal() -> None:
    harness = a_pipeline_harness(ToolError(ErrorKind.INTERNAL, "Nothing was sent.", details={NOTHING_HAPPENED: True}))
    assert (await harness.error(WRITE)).kind is ErrorKind.INTERNAL
    assert len(harness.observer.crashes) == 1


async def test_a_defect_returns_the_budget() -> None:
    harness = a_pipeline_harness(RuntimeError("boom"))
    await harness.result(READ)
    assert harness.budgets.in_flight(READ.upstream_key) == 0


@pytest.mark.promise("cancel.stops-and-is-recorded")
async def test_cancelling_stops_the_adapter_records_the_call_and_raises() -> None:
    harness = a_pipeline_harness(HANG)
    task = asyncio.create_task(harness.pipeline.invoke(a_call(WRITE)))
    await harness.adapter.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.adapter.stopped == 1
    assert harness.event_types == [EventType.TOOL_CALLED, EventType.TOOL_RESULT]
    assert harness.events[-1].outcome == "CANCELLED"
    assert harness.budgets.in_flight(WRITE.upstream_key) == 0


@pytest.mark.promise("evidence.always")
@pytest.mark.parametrize(
    ("spec", "args"),
    [(READ, {}), (READ, {"no": 1}), ("test/unknown", {}), (a_tool("test/off", state=ToolState.DISABLED), {})],
)
async def test_every_answer_carries_evidence(spec: object, args: dict[str, int]) -> None:
    harness = a_pipeline_harness(tools=(READ, a_tool("test/off", state=ToolState.DISABLED)))
    result = await harness.result(spec, args)  # type: ignore[arg-type]
    assert result.evidence
    assert all(evidence.created_at_unix_ms == harness.clock.unix_ms() for evidence in result.evidence)
    assert result.evidence[0].type is EvidenceType.TOOL
    assert result.evidence[0].ref == "call-1"


async def test_evidence_of_a_tool_is_kept_and_dated() -> None:
    harness = a_pipeline_harness(
        Outcome(value={"text": "x"}, evidence=(Evidence(EvidenceType.FILE, "a.txt", "read", sha256="00"),))
    )
    (evidence,) = (await harness.result(READ)).evidence
    assert (evidence.ref, evidence.sha256, evidence.created_at_unix_ms) == ("a.txt", "00", harness.clock.unix_ms())


async def test_a_result_names_the_tool_that_made_it() -> None:
    result = await a_pipeline_harness().result(READ)
    assert (result.tool_version, result.tool_digest, result.attempts) == (READ.version, READ.digest, 1)
    assert result.defaults_applied == ("/times",)


@pytest.mark.parametrize("show_raw", [True, False])
async def test_the_upstreams_own_answer_is_shown_only_when_configured(show_raw: bool) -> None:
    harness = a_pipeline_harness(Outcome(value={"text": "x"}, raw={"status": 200}), show_raw=show_raw)
    assert (await harness.result(READ)).raw == ({"status": 200} if show_raw else None)


async def test_a_refused_call_is_reported_as_never_attempted() -> None:
    assert (await a_pipeline_harness(policy=DENY_ALL).result(READ)).attempts == 0


@pytest.mark.promise("pipeline.single-path")
def test_the_whole_walk_is_read_on_one_page() -> None:
    source = textwrap.dedent(inspect.getsource(Pipeline.run))
    (function,) = ast.parse(source).body
    assert len(source.splitlines()) <= 60
    assert isinstance(function, ast.AsyncFunctionDef)
    begun = [
        target.slice.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name)
    ]
    in_order = list(dict.fromkeys(begun))
    # the first begins with the call, and the ninth, record, is walked whatever happened
    assert in_order == [step.name for step in list(StepName)[1:-1]]


@pytest.mark.promise("pipeline.always-a-result")
async def test_an_answer_is_a_tool_result_for_any_failure() -> None:
    harness = a_pipeline_harness(RuntimeError("one"), KeyError("two"), ToolError(ErrorKind.IO_ERROR, "three"))
    for _ in range(3):
        answer = await harness.ask(READ)
        assert isinstance(answer, ToolResult)
        assert not answer.ok
