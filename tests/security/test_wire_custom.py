"""A custom tool that misbehaves in every way it can: each call is answered by a ToolResult, and the hub serves on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import grpc.aio
import pytest
from msgspec import Meta

from tests.hub import OPEN_POLICY, RunningHub, running_hub
from toolhub.v1 import error_pb2
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import EvidenceType
from toolhub_service.schema.repaired_json import HALVES, NO_NUMBER
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def endless() -> Any:
    return endless()


REPAIRED: dict[str, tuple[Callable[[], Any], JsonValue, str]] = {
    "a surrogate": (lambda: "a \ud800 b", "a \ufffd b", HALVES),
    "a surrogate in a name": (lambda: {"\udfff": 1}, {"\ufffd": 1}, HALVES),
    "not a number": (lambda: float("nan"), None, NO_NUMBER),
    "an infinity in a list": (lambda: [1, float("-inf")], [1, None], NO_NUMBER),
}
"""Answers that JSON cannot hold, what is delivered of them, and the remark in evidence."""
ANSWERS: dict[str, Callable[[], Any]] = {
    "an object": object,
    "too deep": lambda: nested(5_000),
    "a cycle": cyclic,
    "recursion": endless,
}
RAISED: dict[str, BaseException] = {
    "an exit": SystemExit(3),
    "a cancellation of its own": asyncio.CancelledError(),
    "a timeout of its own": TimeoutError("x"),
    "the end of a generator": GeneratorExit(),
    "the end of an iteration": StopAsyncIteration(),
    "no memory": MemoryError(),
    "something from grpc": grpc.aio.AbortError("x"),
    "something basic": BaseException("x"),
}


class Misbehaving(Tool["Misbehaving.In", "Misbehaving.Out"]):
    name = "acme/wild.run"
    description = "Misbehave."

    class In(ToolInput, frozen=True):
        how: str = ""
        id: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 0

    class Out(ToolOutput, frozen=True):
        value: Any

    async def run(self, args: In, context: ToolContext) -> Out:
        if args.how in RAISED:
            raise RAISED[args.how]
        if args.how in REPAIRED:
            return self.Out(value=REPAIRED[args.how][0]())
        if args.how in ANSWERS:
            return self.Out(value=ANSWERS[args.how]())
        if args.how == "odd error":
            raise refuse(ErrorKind.NOT_FOUND, "a \ud800 b", name="\ud800", size=10**400, rate=float("inf"))
        if args.how == "deep error":
            raise refuse(ErrorKind.NOT_FOUND, "deep", deep=nested(60), deeper=nested(200))
        if args.how == "deepest error":
            raise refuse(ErrorKind.NOT_FOUND, "deep", deep=nested(3_000))
        context.raw = {"odd": "\ud800"}
        context.proves(EvidenceType.FILE, "a\udcff.txt", "found a\udcff.txt", name="\udcff")
        return self.Out(value=nested(40))


@pytest.fixture
async def misbehaving_hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    settings = {"results": {"show_raw": True}}
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings, tools=[Misbehaving()]) as hub:
        yield hub


@pytest.mark.parametrize("how", [*ANSWERS, *RAISED])
async def test_any_answer_or_exception_of_a_tool_becomes_a_result(misbehaving_hub: RunningHub, how: str) -> None:
    result = await misbehaving_hub.invoke("acme/wild.run", {"how": how})
    assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
    assert result.attempts == 1
    asked, settled = (chained.event for chained in await misbehaving_hub.events())
    assert (asked.call_id, settled.call_id, settled.outcome) == (result.call_id, result.call_id, "OUTCOME_UNKNOWN")
    assert (await misbehaving_hub.invoke("core/util.time.now")).ok


@pytest.mark.parametrize("how", REPAIRED)
async def test_an_answer_that_json_cannot_hold_is_delivered_repaired_and_evidence_says_so(
    misbehaving_hub: RunningHub, how: str
) -> None:
    result = await misbehaving_hub.invoke("acme/wild.run", {"how": how})
    _, value, remark = REPAIRED[how]
    assert result.ok, result.error
    assert json.loads(result.result_json) == {"value": value}
    assert result.attempts == 1
    assert [shown.attributes["repaired"] for shown in result.evidence if "repaired" in shown.attributes] == [remark]
    asked, settled = (chained.event for chained in await misbehaving_hub.events())
    assert (asked.call_id, settled.call_id, settled.outcome) == (result.call_id, result.call_id, "ok")


@pytest.mark.parametrize("how", ["odd error", "deep error", "deepest error"])
async def test_an_error_with_odd_details_is_reported(misbehaving_hub: RunningHub, how: str) -> None:
    result = await misbehaving_hub.invoke("acme/wild.run", {"how": how})
    assert result.error.kind == error_pb2.ERROR_KIND_NOT_FOUND
    assert result.error.message in ("a ? b", "deep")
    assert result.error.details.fields


async def test_evidence_and_raw_answers_that_are_not_utf8_do_not_undo_the_answer(misbehaving_hub: RunningHub) -> None:
    encodings: list[dict[str, Any]] = [{"args_json": b"{}"}, {"args_struct": {}}]
    for args in encodings:
        result = await misbehaving_hub.invoke("acme/wild.run", **args)
        assert result.ok
        assert (result.evidence[0].ref, dict(result.evidence[0].attributes)) == ("a?.txt", {"name": "?"})
        assert b"not JSON" in result.raw_json
        assert result.result_json.count(b"[") == 41, "too deep for a Struct, so JSON whatever was asked for"


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**63), 10**300])
async def test_bounds_that_no_double_holds_are_reported(misbehaving_hub: RunningHub, number: int) -> None:
    result = await misbehaving_hub.invoke("acme/wild.run", {"id": number})
    assert result.error.kind == error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID
    assert result.error.violations[0].expected.string_value.lstrip("-") == str(2**62)


@pytest.mark.parametrize("depth", [10, 20, 23, 24, 26, 28, 30, 31])
async def test_a_deep_answer_arrives_in_any_encoding(open_hub: RunningHub, depth: int) -> None:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    result = await open_hub.invoke("core/util.json.select", args_struct={"json": value, "path": "{b:{c:{d:@}}}"})
    assert result.ok
    assert result.WhichOneof("result") in ("result_struct", "result_json")
