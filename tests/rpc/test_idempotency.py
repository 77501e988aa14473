"""Idempotency keys over the wire: what a client sees that sends a call twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from tests.hub import OPEN_POLICY, RunningHub, request, running_hub
from tests.rpc.sample_tools import TextIn, TextOut, WaitsToWrite
from toolhub.v1 import error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.event import EventType
from toolhub_service.tools.context import ToolContext

WRITE = "core/fs.writeText"
NOTE = {"path": "note.txt", "text": "once"}
KEYED: dict[str, Any] = {"idempotency_key": "note:1", "request_id": "work"}


WAIT: dict[str, Any] = {"idempotency_key": "wait:1", "request_id": "work"}


class CountedWaits(WaitsToWrite):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(self, args: TextIn, context: ToolContext) -> TextOut:
        self.runs += 1
        return await super().run(args, context)


@pytest.fixture
def waits() -> CountedWaits:
    return CountedWaits()


@pytest.fixture
async def running(tmp_path: Path, waits: CountedWaits) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[waits]) as hub:
        yield hub


def kind(result: result_pb2.ToolResult) -> str:
    return error_pb2.ErrorKind.Name(result.error.kind)


async def test_write_sent_twice_is_replayed_and_not_already_there(running: RunningHub) -> None:
    first = await running.invoke(WRITE, NOTE, **KEYED)
    second = await running.invoke(WRITE, NOTE, **KEYED)
    assert first.ok, first.error.message
    assert (first.replayed, second.replayed) == (False, True)
    assert second.ok
    assert second.result_json == first.result_json
    assert (second.call_id, second.attempts) == (first.call_id, 1)
    assert second.evidence[-1].ref not in ("", first.call_id)
    without_key = await running.invoke(WRITE, NOTE, request_id="work")
    assert kind(without_key) == "ERROR_KIND_ALREADY_EXISTS"
    assert (running.workspace("work") / "note.txt").read_text() == "once"


async def test_replay_leaves_what_came_after_the_first_call_alone(running: RunningHub) -> None:
    await running.invoke(WRITE, NOTE, **KEYED)
    await running.invoke(WRITE, {**NOTE, "text": "newer", "overwrite": True}, request_id="work")
    assert (await running.invoke(WRITE, NOTE, **KEYED)).replayed
    assert (running.workspace("work") / "note.txt").read_text() == "newer"


async def test_same_key_with_other_arguments_is_a_conflict(running: RunningHub) -> None:
    first = await running.invoke(WRITE, NOTE, **KEYED)
    second = await running.invoke(WRITE, {**NOTE, "text": "something private"}, **KEYED)
    assert kind(second) == "ERROR_KIND_IDEMPOTENCY_CONFLICT"
    assert not second.error.retryable
    assert MessageToDict(second.error.details) == {"differs": "args", "first_call_id": first.call_id}
    assert "private" not in str(second)
    assert (running.workspace("work") / "note.txt").read_text() == "once"


async def test_stream_is_answered_with_the_stored_result_of_a_unary_call(running: RunningHub) -> None:
    first = await running.invoke(WRITE, NOTE, **KEYED)
    stream = running.stub.InvokeStream(request(WRITE, NOTE, message=pb.InvokeStreamRequest, **KEYED))
    events = [event async for event in stream]
    assert events[-1].result.replayed
    assert events[-1].result.result_json == first.result_json


async def test_client_that_lost_its_answer_waits_for_the_call_that_still_runs(
    running: RunningHub, waits: CountedWaits
) -> None:
    first = asyncio.create_task(running.invoke(waits.name, **WAIT))
    await waits.started.wait()
    others = [asyncio.create_task(running.invoke(waits.name, **WAIT)) for _ in range(10)]
    waits.let_go.set()
    answers = await asyncio.gather(first, *others)
    assert all(answer.ok for answer in answers)
    assert [answer.replayed for answer in answers].count(False) == 1
    assert waits.runs == 1


async def test_call_that_its_client_cancelled_is_not_run_again(running: RunningHub, waits: CountedWaits) -> None:
    first = asyncio.create_task(running.invoke(waits.name, **WAIT))
    await waits.started.wait()
    first.cancel()
    await waits.stopped.wait()
    again = await running.invoke(waits.name, **WAIT)
    assert kind(again) == "ERROR_KIND_OUTCOME_UNKNOWN"
    assert waits.runs == 1


async def test_deadline_of_the_waiting_client_is_kept(running: RunningHub, waits: CountedWaits) -> None:
    first = asyncio.create_task(running.invoke(waits.name, **WAIT))
    await waits.started.wait()
    late = await running.invoke(waits.name, budget={"timeout_s": 0.05}, **WAIT)
    assert kind(late) == "ERROR_KIND_TIMEOUT"
    assert late.error.retryable
    waits.let_go.set()
    assert (await first).ok


async def test_reload_that_denies_the_tool_refuses_the_replay(running: RunningHub) -> None:
    await running.invoke(WRITE, NOTE, **KEYED)
    reads_only = OPEN_POLICY.replace("write:fs, ", "")
    assert running.hub.policy.replace(reads_only).applied
    refused = await running.invoke(WRITE, NOTE, **KEYED)
    assert kind(refused) == "ERROR_KIND_POLICY_DENIED"
    assert not refused.result_json


async def test_audit_log_has_the_replay_under_its_own_call_id(running: RunningHub) -> None:
    first = await running.invoke(WRITE, NOTE, **KEYED)
    second = await running.invoke(WRITE, NOTE, **KEYED)
    events = await running.events(call_id=second.evidence[-1].ref)
    assert [chained.event.type for chained in events] == [EventType.TOOL_CALLED, EventType.TOOL_RESULT]
    attributes = events[-1].event.attributes
    assert (attributes["replayed"], attributes["first_call_id"]) == ("true", first.call_id)


async def test_replays_are_counted(running: RunningHub) -> None:
    for _ in range(3):
        await running.invoke(WRITE, NOTE, **KEYED)
    exposition = running.hub.observing.metrics.exposition().decode()
    assert f'toolhub_tool_replays_total{{tool="{WRITE}"}} 2.0' in exposition


async def test_settings_bound_the_keys(tmp_path: Path) -> None:
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings={"idempotency": {"max_keys": 1}}) as running:
        assert (await running.invoke(WRITE, NOTE, **KEYED)).ok
        refused = await running.invoke(WRITE, {**NOTE, "path": "b"}, idempotency_key="note:2", request_id="work")
        assert kind(refused) == "ERROR_KIND_RATE_LIMITED"
        assert not refused.error.retryable, "a key is forgotten after hours"
        assert MessageToDict(refused.error.details)["passes_in_s"] > 300
        assert (await running.invoke(WRITE, NOTE, **KEYED)).replayed


async def test_malformed_key_fails_the_rpc(running: RunningHub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.invoke(WRITE, NOTE, idempotency_key="two words")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
