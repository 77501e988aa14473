"""Excessive callers: full hubs, unread streams, bombs, deep and huge messages, and many calls at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.hub import CALL_TIMEOUT_S, OPEN_POLICY, RunningHub, request, running_hub
from toolhub.v1 import error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.result import Chunk
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput
from toolhub_service.transport.tool_servicer import StreamSink

MEBIBYTE = 1024 * 1024


class GatedTool(Tool["GatedTool.In", "GatedTool.Out"]):
    """Runs until the gate opens."""

    name = "acme/gate.wait"
    description = "Wait for the gate."

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        waited: bool

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Semaphore(0)
        self.left = asyncio.Semaphore(0)

    async def run(self, args: In, context: ToolContext) -> Out:
        self.entered.release()
        try:
            await self.gate.wait()
        finally:
            self.left.release()
        return self.Out(waited=True)


class FloodingTool(Tool["FloodingTool.In", "FloodingTool.Out"]):
    """Sends 512 MiB while it runs."""

    name = "acme/flood.tell"
    description = "Tell a lot."

    class In(ToolInput, frozen=True):
        pass

    class Out(ToolOutput, frozen=True):
        sent_mib: int

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def run(self, args: In, context: ToolContext) -> Out:
        for number in range(512):
            context.sink.chunk(Chunk(data=bytes([number % 256]) * MEBIBYTE))
            await asyncio.sleep(0)
        self.done.set()
        return self.Out(sent_mib=512)


@pytest.fixture
async def small_hub(tmp_path: Path) -> AsyncIterator[tuple[RunningHub, GatedTool]]:
    """Four calls in flight and no more."""
    waiting = GatedTool()
    settings = {"server": {"max_in_flight": 4}}
    async with running_hub(tmp_path, policy=OPEN_POLICY, settings=settings, tools=[waiting]) as hub:
        yield hub, waiting


def resident_mib() -> float:
    """Memory of this process, and so of the hub in it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


@pytest.mark.promise("overload.shed-early")
async def test_a_full_hub_sheds_at_once_and_serves_again(small_hub: tuple[RunningHub, GatedTool]) -> None:
    hub, waiting = small_hub
    held = [asyncio.create_task(hub.invoke(waiting.name)) for _ in range(4)]
    for _ in held:
        await waiting.entered.acquire()
    shed = await asyncio.gather(*(refusal(hub.invoke("core/util.time.now")) for _ in range(50)))
    assert {refused.code() for refused in shed} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all(b"RetryInfo" in dict(refused.trailing_metadata())["grpc-status-details-bin"] for refused in shed)
    health = health_pb2_grpc.HealthStub(hub.channel)
    alive = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
    assert alive.status == health_pb2.HealthCheckResponse.SERVING
    waiting.gate.set()
    assert all(result.ok for result in await asyncio.gather(*held))
    assert (await hub.invoke("core/util.time.now")).ok
    assert len({chained.event.call_id for chained in await hub.events()}) == 5, "what was shed never became a call"


async def test_callers_that_hang_up_give_their_slots_back(small_hub: tuple[RunningHub, GatedTool]) -> None:
    hub, waiting = small_hub
    for _ in range(3):
        calls = [hub.stub.InvokeStream(request(waiting.name, message=pb.InvokeStreamRequest)) for _ in range(4)]
        for _ in calls:
            await waiting.entered.acquire()
        for call in calls:
            call.cancel()
        for _ in calls:
            await waiting.left.acquire()
    assert (await hub.invoke("core/util.time.now")).ok
    ended = [chained.event.outcome for chained in await hub.events(tool=waiting.name) if chained.event.outcome]
    assert ended == ["CANCELLED"] * 12


@pytest.mark.promise("stream.bounded")
async def test_an_unread_stream_holds_a_bounded_amount(tmp_path: Path) -> None:
    flood = FloodingTool()
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[flood]) as hub:
        before_mib = resident_mib()
        call = hub.stub.InvokeStream(request(flood.name, message=pb.InvokeStreamRequest), timeout=CALL_TIMEOUT_S)
        await flood.done.wait()
        assert resident_mib() - before_mib < 100, "512 MiB were sent"
        assert (await hub.invoke("core/util.time.now")).ok, "others are served meanwhile"
        last = [event async for event in call][-1]
        assert last.result.ok, "a late reader gets the newest output and the result"


async def test_a_slow_reader_keeps_the_newest_output() -> None:
    sink = StreamSink()
    for number in range(40):
        sink.chunk(Chunk(data=bytes([number]) * 100_000))
    sink.close()
    kept = [event.data[0] async for event in sink if isinstance(event, Chunk)]
    assert kept == list(range(30, 40))


@pytest.mark.promise("bounds.requests")
async def test_bombs_and_huge_messages_are_refused_before_they_are_read(open_hub: RunningHub) -> None:
    for size_bytes, compression in ((64 * MEBIBYTE, grpc.Compression.Gzip), (6 * MEBIBYTE, None)):
        asked = request("core/util.hash.sha256Text", args_json=b'{"text":"' + b"a" * size_bytes + b'"}')
        refused = await refusal(open_hub.stub.Invoke(asked, compression=compression, timeout=CALL_TIMEOUT_S))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    big = [("x-note", "a" * 60_000)]
    refused = await refusal(open_hub.invoke("core/util.time.now", metadata=big))
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    asked = request("core/util.hash.sha256Text", {"text": "a" * MEBIBYTE})
    answer = await open_hub.stub.Invoke(asked, compression=grpc.Compression.Gzip, timeout=CALL_TIMEOUT_S)
    assert answer.result.ok, "compression itself is welcome"


def nested(depth: int) -> Struct:
    struct = inner = Struct()
    for _ in range(depth):
        inner = inner.fields["a"].struct_value
    inner.fields["end"].bool_value = True
    return struct


@pytest.mark.parametrize("depth", [30, 90, 2_000])
async def test_deep_arguments_are_refused_with_a_message(open_hub: RunningHub, depth: int) -> None:
    deep = b'{"json":' + b"[" * depth + b"]" * depth + b',"path":"@"}'
    result = await open_hub.invoke("core/util.json.select", args_json=deep)
    assert result.ok == (depth < 60)
    assert result.ok or result.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
    asked = request("core/util.json.select")
    asked.intent.args_struct.CopyFrom(nested(min(depth, 90)))
    try:
        answer = (await open_hub.stub.Invoke(asked, timeout=CALL_TIMEOUT_S)).result
        assert not answer.ok
        assert error_pb2.ErrorKind.Name(answer.error.kind) in (
            "ERROR_KIND_INPUT_SCHEMA_INVALID",
            "ERROR_KIND_INVALID_INPUT",
        )
    except grpc.aio.AioRpcError as refused:
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - either answer is typed
    assert (await open_hub.invoke("core/util.time.now")).ok


async def test_envelopes_beyond_their_bounds_are_refused(open_hub: RunningHub) -> None:
    for fields in (
        {"labels": {f"l{number}": "x" for number in range(33)}},
        {"labels": {"a": "x" * 257}},
        {"permissions": ["read:fs"] * 65},
        {"request_id": "a" * 129},
        {"purpose": "p" * 4_097},
        {"idempotency_key": "a b"},
    ):
        refused = await refusal(open_hub.invoke("core/util.time.now", **fields))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, fields
    refused = await refusal(open_hub.invoke("x" * 257))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_many_callers_at_once_are_all_answered_and_all_recorded(open_hub: RunningHub) -> None:
    tools = ("core/util.time.now", "core/fs.listDir", "core/none", "core/fs.readText")
    args: dict[str, dict[str, Any]] = {"core/fs.readText": {"path": "../x"}}
    calls = [open_hub.invoke(tool, args.get(tool), request_id="crowd") for tool in tools * 100]
    results = await asyncio.gather(*calls)
    assert len({result.call_id for result in results}) == 400
    assert all(result.evidence for result in results)
    events = await open_hub.events()
    assert len(events) == 500, "a read is one event, a call of no tool two"
    assert {chained.event.call_id for chained in events} == {result.call_id for result in results}
