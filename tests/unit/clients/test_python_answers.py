"""What the Python client makes of answers: values as types, failures as exceptions, and short texts of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import grpc
import pydantic
import pytest
from google.protobuf.struct_pb2 import Struct

from tests.hub import running_hub
from tests.rpc.sample_tools import Echo
from toolhub.v1 import error_pb2, plan_pb2, result_pb2, step_pb2, tool_service_pb2
from toolhub_client import (
    Answer,
    ApprovalRequired,
    CallFailed,
    DryRun,
    HubError,
    InvalidArguments,
    NotFound,
    OutcomeUnknown,
    PlanRequired,
    PolicyDenied,
    RateLimited,
    ToolChanged,
    ToolNotFound,
    connect,
)
from toolhub_client.failures import call_failed, hub_error
from toolhub_client.tool_calls import to_json
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer


def failure(kind: error_pb2.ErrorKind.ValueType, **details: Any) -> CallFailed:
    facts = Struct()
    facts.update(details)
    return call_failed(error_pb2.ToolError(kind=kind, message="It is so.", details=facts), "call_1")


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (error_pb2.ERROR_KIND_TOOL_NOT_FOUND, ToolNotFound),
        (error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID, InvalidArguments),
        (error_pb2.ERROR_KIND_POLICY_DENIED, PolicyDenied),
        (error_pb2.ERROR_KIND_APPROVAL_REQUIRED, ApprovalRequired),
        (error_pb2.ERROR_KIND_PLAN_REQUIRED, PlanRequired),
        (error_pb2.ERROR_KIND_RATE_LIMITED, RateLimited),
        (error_pb2.ERROR_KIND_OUTCOME_UNKNOWN, OutcomeUnknown),
        (error_pb2.ERROR_KIND_TOOL_CHANGED, ToolChanged),
        (error_pb2.ERROR_KIND_INTERNAL, CallFailed),
    ],
)
@pytest.mark.promise("clients.typed-errors")
def test_failed_call_is_the_exception_of_its_kind(
    kind: error_pb2.ErrorKind.ValueType, raised: type[CallFailed]
) -> None:
    assert type(failure(kind)) is raised


@pytest.mark.promise("clients.typed-errors")
def test_exceptions_name_what_the_caller_needs_next() -> None:
    denied = failure(error_pb2.ERROR_KIND_POLICY_DENIED, rule_id="r1", remedy="Add a grant.")
    assert isinstance(denied, PolicyDenied)
    assert (denied.rule_id, denied.remedy) == ("r1", "Add a grant.")
    asked = failure(error_pb2.ERROR_KIND_APPROVAL_REQUIRED, approval_id="apr_1")
    assert isinstance(asked, ApprovalRequired)
    assert asked.approval_id == "apr_1"
    missing = failure(error_pb2.ERROR_KIND_TOOL_NOT_FOUND, did_you_mean=["core/fs.readText"])
    assert isinstance(missing, ToolNotFound)
    assert missing.did_you_mean == ["core/fs.readText"]
    assert repr(asked) == "ApprovalRequired(APPROVAL_REQUIRED, 'It is so.', call_id='call_1')"


@pytest.mark.promise("contract.newer-hub")
def test_kind_of_a_newer_hub_survives() -> None:
    newer = call_failed(error_pb2.ToolError(kind=4_711, message="New."), "call_1")  # type: ignore[arg-type]  # on purpose
    assert type(newer) is CallFailed
    assert (newer.kind, newer.advice, str(newer)) == ("UNKNOWN_4711", "", "New.")


def test_failed_rpc_is_the_exception_of_its_status_with_reason_and_facts() -> None:
    refused = RpcFailure(Reason.TOOL_NOT_FOUND, "There is no such tool.", {"tool": "x"})
    trailers = grpc.aio.Metadata(details_trailer(refused))
    raw = grpc.aio.AioRpcError(refused.code, grpc.aio.Metadata(), trailers, refused.message)
    error = hub_error(raw, "hub:1")
    assert type(error) is NotFound
    assert isinstance(error, grpc.aio.AioRpcError), "what caught the raw error goes on catching"
    assert (error.reason, error.info) == ("TOOL_NOT_FOUND", {"tool": "x"})
    assert str(error) == "hub:1: There is no such tool. (TOOL_NOT_FOUND)"
    assert repr(error) == "NotFound('hub:1: There is no such tool. (TOOL_NOT_FOUND)')"
    assert hub_error(error) is error


def test_a_failed_rpc_that_no_hub_answered_is_reported_by_its_status() -> None:
    nothing = grpc.aio.Metadata()
    error = hub_error(grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, nothing, nothing, "gone"), "hub:1")
    assert type(error) is HubError
    assert str(error) == "hub:1: gone (ABORTED)"


@dataclass
class Point:
    x: int
    y: int


class Place(pydantic.BaseModel):
    x: int
    y: int


def answer(json: bytes) -> Answer:
    return Answer(result_pb2.ToolResult(ok=True, tool="t/a", call_id="c1", result_json=json))


def test_value_comes_as_the_type_that_is_asked_for() -> None:
    assert answer(b'{"x":1,"y":2}').unwrap(Point) == Point(1, 2)
    assert answer(b'{"x":1,"y":2}').unwrap(Place) == Place(x=1, y=2)
    assert answer(b'{"x":1,"y":2}').unwrap(dict[str, int]) == {"x": 1, "y": 2}
    with pytest.raises(Exception, match="x"):
        answer(b'{"x":"no","y":2}').unwrap(Point)
    with pytest.raises(pydantic.ValidationError):
        answer(b'{"x":"no","y":2}').unwrap(Place)


def test_answer_is_shown_in_a_line() -> None:
    assert repr(answer(b'{"x":1}')) == "Answer(t/a: {'x': 1}, call_id='c1')"
    assert len(repr(answer(b'"' + b"a" * 10_000 + b'"'))) < 300
    error = error_pb2.ToolError(kind=error_pb2.ERROR_KIND_TIMEOUT, message="Late.")
    assert repr(Answer(result_pb2.ToolResult(error=error, call_id="c1"))) == (
        "Answer(CallFailed(TIMEOUT, 'Late.', call_id='c1'))"
    )


def test_arguments_may_hold_models_and_never_what_is_no_json() -> None:
    assert to_json({"at": Point(1, 2), "place": Place(x=1, y=2), "n": 2**70, "s": "ü"}) == (
        '{"at":{"x":1,"y":2},"place":{"x":1,"y":2},"n":1180591620717411303424,"s":"ü"}'.encode()
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"n": float("nan")})
    with pytest.raises(TypeError, match="set cannot be an argument"):
        to_json({"n": {1}})


def test_a_dry_run_states_what_would_stop_the_call() -> None:
    refusal = error_pb2.ToolError(kind=error_pb2.ERROR_KIND_POLICY_DENIED, message="No.")
    steps = [plan_pb2.StepVerdict(step=step_pb2.STEP_NAME_CHECK_POLICY, ok=False, error=refusal)]
    stopped = DryRun(tool_service_pb2.InvokeRequest(), plan_pb2.Plan(tool="t/a", steps=steps))
    assert not stopped.ok
    assert isinstance(stopped.error, PolicyDenied)
    assert repr(stopped) == "DryRun(t/a: PolicyDenied(POLICY_DENIED, 'No.', call_id=''))"
    shown = DryRun(tool_service_pb2.InvokeRequest(), plan_pb2.Plan(tool="t/a", effects=["Deletes a."], plan_digest="d"))
    assert shown.ok
    assert repr(shown) == "DryRun(t/a: effects=['Deletes a.'])"


async def test_plan_of_a_dry_run_is_committed_and_of_another_state_is_not(tmp_path: Any) -> None:
    async with running_hub(tmp_path, policy=POLICY) as running, connect(running.address) as hub:
        await hub.invoke("core/fs.writeText", {"path": "a.txt", "text": "hi"}, purpose="a test")
        with pytest.raises(PlanRequired):
            (await hub.invoke("core/fs.deletePath", {"path": "a.txt", "confirm": True}, purpose="a test")).unwrap()
        shown = await hub.dry_run("core/fs.deletePath", {"path": "a.txt", "confirm": True}, purpose="a test")
        assert shown.ok
        assert any("a.txt" in effect for effect in shown.effects), shown.plan
        assert (await hub.commit(shown)).ok
        assert (await hub.commit(shown)).error is not None, "it is gone"


ECHO = "test/text.echo"
POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [read:fs, write:fs, "danger:destructive"]}
"""


@pytest.mark.promise("contract.expected-digest")
async def test_a_call_of_a_tool_that_changed_since_it_was_shown_is_refused_with_the_current_digest(
    tmp_path: Any,
) -> None:
    async with running_hub(tmp_path, policy=POLICY, tools=[Echo()]) as running, connect(running.address) as hub:
        shown = (await hub.get_tool(ECHO)).digest
        catalog = running.hub.toolbox.catalog
        known = catalog.get(ECHO)
        assert known is not None
        assert (await hub.invoke(ECHO, {"text": "hi"}, expected_tool_digest=shown)).ok
        catalog.unregister(ECHO)
        catalog.register(replace(known, description="Say something else.", digest=""))
        stale = await hub.invoke(ECHO, {"text": "hi"}, expected_tool_digest=shown)
        with pytest.raises(ToolChanged, match="has changed") as changed:
            stale.unwrap()
        assert changed.value.tool_digest == (await hub.get_tool(ECHO)).digest != shown
        job = await hub.submit_job(ECHO, {"text": "hi"}, expected_tool_digest=shown)
        assert job.status.error.kind == error_pb2.ERROR_KIND_TOOL_CHANGED
        assert (await hub.invoke(ECHO, {"text": "hi"}, expected_tool_digest=changed.value.tool_digest)).ok
