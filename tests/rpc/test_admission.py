"""Too much work is shed at once with advice; a hub that leaves lets running work end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.hub import request, running_hub
from tests.rpc.sample_tools import Echo, SlowToCancel, Waits
from tests.rpc.statuses import failed
from toolhub.v1 import error_pb2
from toolhub_service.domain.event import EventType
from toolhub_service.transport.interceptors.admission import AdmissionLayer
from toolhub_service.transport.rpc import Method
from toolhub_service.transport.status import RpcFailure

NOTICE_S = 3_600.0
"""That the mesh has taken notice is said by the test."""


@pytest.mark.promise("overload.shed-early")
async def test_a_full_hub_sheds_at_once_and_states_when_to_retry(tmp_path: Path) -> None:
    waits = Waits()
    async with running_hub(tmp_path, settings={"server": {"max_in_flight": 1}}, tools=[waits, Echo()]) as running:
        first = asyncio.create_task(running.invoke("test/text.wait"))
        await waits.started.wait()
        failure = await failed(running.stub.Invoke(request("test/text.echo"), timeout=60))
        assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert failure.retry_after_s == 0.25
        assert failure.metadata == {"max_in_flight": "1"}
        waits.let_go.set()
        assert (await first).ok
        assert (await running.invoke("test/text.echo")).ok


@pytest.mark.promise("overload.shed-early")
async def test_a_full_hub_stays_alive_for_health_checks(tmp_path: Path) -> None:
    waits = Waits()
    async with running_hub(tmp_path, settings={"server": {"max_in_flight": 1}}, tools=[waits]) as running:
        first = asyncio.create_task(running.invoke("test/text.wait"))
        await waits.started.wait()
        stub = health_pb2_grpc.HealthStub(running.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        waits.let_go.set()
        await first


async def test_place_of_a_call_that_failed_or_was_cancelled_is_free_again(tmp_path: Path) -> None:
    waits = Waits()
    async with running_hub(tmp_path, settings={"server": {"max_in_flight": 1}}, tools=[waits, Echo()]) as running:
        call = running.stub.Invoke(request("test/text.wait"))
        await waits.started.wait()
        call.cancel()
        await waits.stopped.wait()
        await failed(running.stub.Invoke(request("")))
        while running.hub.server._admission.in_flight:  # noqa: ASYNC110 - an RPC leaves after its client has heard of it
            await asyncio.sleep(0)
        assert (await running.invoke("test/text.echo")).ok


@pytest.mark.promise("serving.drain")
async def test_a_leaving_hub_reports_it_refuses_new_work_and_finishes_running_work(
    tmp_path: Path,
) -> None:
    waits, noticed = Waits(), asyncio.Event()

    async def notice(seconds: float) -> None:
        assert seconds == NOTICE_S
        await noticed.wait()

    async with running_hub(tmp_path, tools=[waits, Echo()]) as running:
        running_call = asyncio.create_task(running.invoke("test/text.wait", {"text": "done"}))
        await waits.started.wait()
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        draining = asyncio.create_task(running.hub.server.drain(NOTICE_S, 30, sleep=notice))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        late = await running.invoke("test/text.echo", {"text": "while the mesh takes notice"})
        assert late.ok
        watch.cancel()
        noticed.set()
        waits.let_go.set()
        assert (await running_call).ok
        await draining


@pytest.mark.promise("serving.drain")
async def test_new_work_of_a_draining_hub_is_refused_as_unavailable(tmp_path: Path) -> None:
    async with running_hub(tmp_path, tools=[Echo()]) as running:
        running.hub.server._admission.draining = True
        failure = await failed(running.stub.Invoke(request("test/text.echo"), timeout=60))
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert failure.retry_after_s == 0.5


@pytest.mark.promise("serving.drain")
async def test_the_reason_of_a_refusal_is_sent_to_proxies_in_plain_text(tmp_path: Path) -> None:
    async with running_hub(tmp_path, tools=[Echo()]) as running:
        running.hub.server._admission.draining = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.stub.Invoke(request("test/text.echo"), timeout=60)
        assert ("toolhub-reason", "DRAINING") in tuple(refused.value.trailing_metadata() or ())


async def test_work_that_does_not_end_in_its_grace_is_cancelled_and_recorded(tmp_path: Path) -> None:
    waits = Waits()
    async with running_hub(tmp_path, tools=[waits]) as running:
        call = asyncio.create_task(running.invoke("test/text.wait"))
        await waits.started.wait()
        await running.hub.server.drain(0, 0.05)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await waits.stopped.wait()
        events = await running.events(tool="test/text.wait")
        assert [event.event.type for event in events] == [EventType.TOOL_RESULT]
        assert events[0].event.outcome == "CANCELLED"


@pytest.mark.promise("audit.two-events", "serving.drain")
async def test_work_that_was_cut_off_is_in_the_log_before_the_log_is_closed(tmp_path: Path) -> None:
    slow = SlowToCancel()
    async with running_hub(tmp_path, settings={"server": {"drain_s": 0.05}}, tools=[slow]) as running:
        call = asyncio.create_task(running.invoke(slow.name))
        await slow.started.wait()
        await running.hub.close()
        cut_off = await call
    async with running_hub(tmp_path) as after:
        events = await after.events(tool=slow.name)
    assert [event.event.outcome for event in events] == [error_pb2.ErrorKind.Name(cut_off.error.kind)[11:]]


async def test_a_leaving_hub_waits_until_no_caller_arrives_any_more_and_not_for_ever() -> None:
    async def waited(busy_turns: int, within_s: float) -> int:
        admission, turns = AdmissionLayer(1), 0
        admission.draining = True

        async def turn(seconds: float) -> None:
            nonlocal turns
            turns += 1
            admission.refused += turns <= busy_turns

        await admission.wait_until_quiet(0.25, within_s, turn)
        return turns

    assert [await waited(busy, 5.0) for busy in (0, 3, 1_000)] == [1, 4, 20]
    assert await waited(1_000, 0.0) == 0, "no mesh was given notice"


async def test_a_watch_whose_refusal_is_held_back_makes_no_room_for_calls() -> None:
    admission, context = AdmissionLayer(max_in_flight=1), cast(Any, None)
    call = Method("/toolhub.v1.ToolService/Invoke", "toolhub.v1.ToolService", "Invoke", "unary")
    watch = Method("/toolhub.v1.JobService/WatchJob", "toolhub.v1.JobService", "WatchJob", "server_stream")
    admission.enter(watch, context)
    held = []
    for _ in range(21):  # twenty leave at once
        held.append(asyncio.create_task(admission.refusals.pace("somebody", watch)))
        await asyncio.sleep(0)
    assert not held[-1].done()
    admission.enter(call, context)
    with pytest.raises(RpcFailure):
        admission.enter(call, context)
    await asyncio.wait(held)
