"""Between domain and wire nothing is lost: enums by name, values both ways, tools with their digest."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub.v1 import error_pb2, event_pb2, job_state_pb2, result_pb2, source_pb2, step_pb2, tool_pb2, tool_service_pb2
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.errors.spec import Code, StartReason
from toolhub_service.domain.result import StepName, ToolResult
from toolhub_service.domain.tool import (
    DANGER_DESTRUCTIVE,
    READ_FS,
    Annotations,
    ArgumentRole,
    CostHints,
    Example,
    GuardedArgument,
    IdempotencyMode,
    ToolKind,
    ToolLimits,
    ToolSpec,
)
from toolhub_service.transport.convert import payload
from toolhub_service.transport.convert.call import write_answer
from toolhub_service.transport.convert.tool import from_spec, to_spec
from toolhub_service.transport.status import RpcFailure

TABLES: list[tuple[payload.WireEnum, Any]] = [
    (payload.KINDS, tool_pb2.ToolKind),
    (payload.STATES, tool_pb2.ToolState),
    (payload.IDEMPOTENCY, tool_pb2.IdempotencyMode),
    (payload.ROLES, tool_pb2.ArgumentRole),
    (payload.ERRORS, error_pb2.ErrorKind),
    (payload.EVENTS, event_pb2.EventType),
    (payload.EVIDENCE, result_pb2.EvidenceType),
    (payload.SOURCE_STATES, source_pb2.SourceState),
    (payload.JOB_STATES, job_state_pb2.JobState),
    (payload.STEPS, step_pb2.StepName),
]


@pytest.mark.promise("contract.same-words")
@pytest.mark.parametrize(("table", "wire"), TABLES, ids=lambda value: getattr(value, "DESCRIPTOR", value) and "")
def test_every_word_has_its_member_on_both_sides(table: payload.WireEnum, wire: Any) -> None:
    assert set(table.to_domain) == set(wire.values()) - {0}
    assert all(table.to_domain[table.to_wire[member]] is member for member in table.to_wire)
    assert all(isinstance(member, Enum) for member in table.to_wire)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_values_that_a_struct_can_hold_survive_the_round_trip(value: dict[str, Any]) -> None:
    assert payload.from_struct(payload.to_struct(value)) == value


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**30, math.inf, -math.inf, math.nan])
def test_values_that_a_struct_would_change_are_not_put_into_one(number: float) -> None:
    with pytest.raises(payload.NotInStruct):
        payload.to_struct({"deep": [{"number": number}]})


def test_details_that_a_struct_would_change_are_sent_as_text() -> None:
    assert payload.from_struct(payload.lossy_struct({"size": 2**60, "plain": 1})) == {"size": str(2**60), "plain": 1.0}


@given(milliseconds=st.integers(1, 2**45))
def test_time_stamps_keep_their_milliseconds(milliseconds: int) -> None:
    stamp = payload.timestamp(milliseconds)
    assert stamp is not None
    assert payload.unix_ms(stamp) == milliseconds


def test_a_missing_time_is_no_time_stamp() -> None:
    assert payload.timestamp(0) is None


@given(span_s=st.floats(0, 86_400))
def test_spans_keep_their_microseconds(span_s: float) -> None:
    assert payload.seconds(payload.duration(span_s)) == pytest.approx(span_s, abs=1e-6)


SPEC = ToolSpec(
    name="acme/text.shout",
    kind=ToolKind.MCP,
    description="Shout.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
    output_schema={"type": "object"},
    version="2.1.0",
    tags=("text", "loud"),
    capabilities=frozenset({READ_FS, DANGER_DESTRUCTIVE}),
    annotations=Annotations(destructive=True, open_world=True, supports_progress=True),
    cost=CostHints(latency_ms_p50=12.0, latency_ms_p95=250.0, is_async=True),
    limits=ToolLimits(timeout_s=7.5, max_retries=2, max_result_bytes=1_000, max_concurrency=3),
    idempotency=IdempotencyMode.DERIVED,
    guarded=(GuardedArgument("text", ArgumentRole.URL),),
    source="acme",
    endpoint="https://acme.example/mcp",
    resource_id="r-1",
    upstream="acme",
    examples=(Example("Loud", {"text": "hi"}),),
)


def test_tool_comes_back_whole_and_with_its_digest() -> None:
    back = to_spec(from_spec(SPEC, full=True))
    for field in SPEC.__dataclass_fields__:
        assert getattr(back, field) == getattr(SPEC, field), field


def test_basic_view_leaves_schemas_and_examples_behind() -> None:
    basic = from_spec(SPEC, full=False)
    assert not basic.input_schema_json
    assert not basic.output_schema_json
    assert not basic.examples
    assert basic.digest == SPEC.digest


def test_tool_whose_digest_is_not_its_own_is_refused() -> None:
    message = from_spec(SPEC, full=True)
    message.description = "Shout, and delete everything."
    with pytest.raises(HubFailure) as refused:
        to_spec(message)
    assert (refused.value.reason.code, refused.value.reason.name) == (Code.INVALID_ARGUMENT, "DIGEST_MISMATCH")


@pytest.mark.parametrize("broken", [b"{", b"[]", b'{"a":1,"a":2}', b"NaN"])
def test_schema_that_is_no_json_object_is_refused(broken: bytes) -> None:
    message = from_spec(replace(SPEC, digest=""), full=True)
    message.digest = ""
    message.input_schema_json = broken
    with pytest.raises(HubFailure) as refused:
        to_spec(message)
    assert refused.value.reason.name == "NOT_JSON"


@given(st.dictionaries(st.sampled_from(StepName), st.integers(0, 2**63 - 1)))
def test_durations_arrive_as_they_were(durations_us: dict[StepName, int]) -> None:
    answer = tool_service_pb2.InvokeResponse()
    write_answer(answer, ToolResult(ok=True, call_id="c", tool="t", durations_us=durations_us), as_struct=False)
    read = tool_service_pb2.InvokeResponse.FromString(answer.SerializeToString())
    assert {payload.STEPS.to_domain[each.step]: each.duration_us for each in read.result.durations} == durations_us


@pytest.mark.parametrize("value", ["text", 5, None, [1, 2], True])
def test_result_that_is_no_object_travels_as_json_even_to_a_struct_reader(value: Any) -> None:
    answer = tool_service_pb2.InvokeResponse()
    write_answer(answer, ToolResult(ok=True, call_id="c", tool="t", value=value), as_struct=True)
    message = answer.result
    assert message.result_json
    assert not message.HasField("result_struct")


def test_every_kind_and_reason_has_a_status_of_grpc() -> None:
    failures = [RpcFailure(reason, "") for reason in (*ErrorKind, *Reason, *StartReason)]
    assert {failure.code.value[0] for failure in failures} <= {code.value for code in Code}
    assert all(failure.code.value[0] == grpc.StatusCode[failure.code.name].value[0] for failure in failures)
