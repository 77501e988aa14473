"""InvokeSession over the wire: many calls over one stream, each through the whole chain, none at another's cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.hub import OPEN_POLICY, RunningHub, channel_to, request, running_hub
from tests.overtaken import overtaken
from tests.rpc.sample_tools import Crashes, Echo, Waits, WaitsToWrite
from tests.rpc.statuses import FailedRpc, failure_of, in_time
from toolhub.v1 import call_pb2, error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.domain.event import EventType

NOW = "core/util.time.now"
TEXT = "x" * 500_000
GRACE_S = 30.0
"""Longer than any test waits for it."""


def call(name: str, tool: str = NOW, args: dict[str, Any] | None = None, **fields: Any) -> pb.SessionCall:
    made: pb.SessionCall = request(tool, args, message=pb.SessionCall, **fields)
    made.call_id = name
    return made


class Client:
    """One session and what has come over it, by call."""

    def __init__(self, running: RunningHub, timeout_s: float | None = 30) -> None:
        self.running = running
        self.stream: Any = running.stub.InvokeSession(timeout=timeout_s)
        self.events: dict[str, list[pb.SessionEvent]] = {}
        self.messages = 0

    async def send(self, *calls: pb.SessionCall, cancel: tuple[str, ...] = ()) -> None:
        await self.stream.write(pb.InvokeSessionRequest(calls=calls, cancel_call_ids=cancel))

    async def read(self) -> bool:
        """One message; False at the end of a stream that ended well."""
        message = await self.stream.read()
        if message is grpc.aio.EOF:
            return False
        self.messages += 1
        assert message.events
        for event in message.events:
            assert event.WhichOneof("event") is not None
            self.events.setdefault(event.call_id, []).append(event)
        return True

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert await self.read(), f"the stream ended; so far {list(self.events)}"

    async def result(self, name: str) -> result_pb2.ToolResult:
        await self.until(lambda: name in self.events and self.events[name][-1].WhichOneof("event") == "result")
        return self.events[name][-1].result

    async def rest(self) -> None:
        """Half-close and read to the end."""
        if not self.stream.done():
            await self.stream.done_writing()
        while await self.read():
            pass

    async def failure(self) -> FailedRpc:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.rest()
        return failure_of(raised.value)


class SessionHarness:
    def __init__(self, running: RunningHub, waits: Waits, writes: WaitsToWrite) -> None:
        self.running, self.waits, self.writes = running, waits, writes

    async def outcomes(self, tool: str) -> list[str]:
        events = await self.running.events(tool=tool, types=frozenset({EventType.TOOL_RESULT, EventType.POLICY_DENIED}))
        return sorted(event.event.outcome for event in events)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SessionHarness]:
    waits, writes = Waits(), WaitsToWrite()
    async with running_hub(tmp_path, policy=OPEN_POLICY, tools=[waits, writes, Echo(), Crashes()]) as running:
        yield SessionHarness(running, waits, writes)


@pytest.mark.promise("session.each-call-checked")
async def test_every_call_of_a_message_is_answered_under_its_own_name_and_audited(hub: RunningHub) -> None:
    client = Client(hub)
    await client.send(*[call(f"mine-{number}") for number in range(64)])
    await client.rest()
    assert set(client.events) == {f"mine-{number}" for number in range(64)}
    assert all(len(events) == 1 for events in client.events.values())
    results = [events[0].result for events in client.events.values()]
    assert all(result.ok for result in results)
    hub_ids = {result.call_id for result in results}
    assert len(hub_ids) == 64
    assert not hub_ids & set(client.events)
    audited = await hub.events(tool=NOW)
    assert {event.event.call_id for event in audited} == hub_ids
    assert len(audited) == 64
    assert client.messages < 10
    assert await client.stream.code() is grpc.StatusCode.OK


@pytest.mark.promise("session.each-call-checked")
async def test_each_call_is_checked_by_itself(hub: RunningHub) -> None:
    client = Client(hub)
    await client.send(
        call("denied", "core/exec.run", {"argv": ["ls"]}),
        call("wrong", NOW, {"timezone": 5}),
        call("unknown", "core/nothing"),
        call("no-json", args_json=b"{"),
        call("fine"),
    )
    await client.rest()
    kinds = {name: events[-1].result.error.kind for name, events in client.events.items()}
    assert kinds == {
        "denied": error_pb2.ERROR_KIND_POLICY_DENIED,
        "wrong": error_pb2.ERROR_KIND_INPUT_SCHEMA_INVALID,
        "unknown": error_pb2.ERROR_KIND_TOOL_NOT_FOUND,
        "no-json": error_pb2.ERROR_KIND_INVALID_INPUT,
        "fine": error_pb2.ERROR_KIND_UNSPECIFIED,
    }
    assert all(events[-1].result.evidence for events in client.events.values())


async def test_malformed_call_is_answered_and_costs_its_neighbours_nothing(hub: RunningHub) -> None:
    client = Client(hub)
    nameless = pb.SessionCall(call_id="no-intent")
    await client.send(call("a"), call("not a name"), nameless, call("b", request_id="../../etc"), call("c"))
    await client.rest()
    answers = {name: events[-1].result for name, events in client.events.items()}
    assert {name for name, answer in answers.items() if answer.ok} == {"a", "c"}
    assert {answers[name].error.kind for name in ("not a name", "no-intent", "b")} == {
        error_pb2.ERROR_KIND_INVALID_INPUT
    }
    assert "call_id" in answers["not a name"].error.message
    assert "context.request_id" in answers["b"].error.message
    assert len(await hub.events(tool=NOW)) == 2


async def test_message_that_breaks_the_contract_ends_the_session_as_it_ends_any_rpc(hub: RunningHub) -> None:
    client = Client(hub)
    await client.send(call("a"))
    await client.result("a")
    await client.send(*[call(f"c{number}") for number in range(257)])
    failure = await client.failure()
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")
    assert set(failure.fields) == {"calls"}


async def test_bytes_that_are_no_request_end_the_session_with_a_reason(hub: RunningHub) -> None:
    channel: Any = hub.channel
    stream = channel.stream_stream("/toolhub.v1.ToolService/InvokeSession")(iter([b"\xff\xff"]), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stream:
            pass
    assert failure_of(raised.value).reason == "UNREADABLE_REQUEST"


async def test_progress_and_output_come_as_they_happen_and_results_out_of_order(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("slow", "test/text.wait", {"text": "late"}), call("quick"))
    assert (await client.result("quick")).ok
    await client.until(lambda: len(client.events.get("slow", ())) == 2)
    assert [event.WhichOneof("event") for event in client.events["slow"]] == ["progress", "chunk"]
    await client.send(call("next"))
    assert (await client.result("next")).ok
    harness.waits.let_go.set()
    assert json.loads((await client.result("slow")).result_json) == {"text": "late"}
    assert [event.WhichOneof("event") for event in client.events["slow"]] == ["progress", "chunk", "result"]
    await client.rest()


@pytest.mark.promise("session.one-call-cancelled")
async def test_one_call_is_cancelled_and_recorded_and_the_others_go_on(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.wait"), call("y", "test/text.waitToWrite", request_id="r"))
    await harness.writes.started.wait()
    await client.send(cancel=("x", "nobody", "x"))
    cancelled = await client.result("x")
    assert cancelled.error.kind == error_pb2.ERROR_KIND_CANCELLED
    assert cancelled.evidence
    await harness.waits.stopped.wait()
    harness.writes.let_go.set()
    assert (await client.result("y")).ok
    await client.rest()
    assert [len([e for e in events if e.WhichOneof("event") == "result"]) for events in client.events.values()] == [
        1,
        1,
    ]
    assert await harness.outcomes("test/text.wait") == ["CANCELLED"]


async def test_message_may_start_a_call_and_cancel_it(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.wait"), call("y"), cancel=("x",))
    await client.rest()
    assert client.events["x"][-1].result.error.kind == error_pb2.ERROR_KIND_CANCELLED
    assert client.events["y"][-1].result.ok
    assert await harness.outcomes("test/text.wait") == ["CANCELLED"]
    assert harness.waits.running == 0


@pytest.mark.promise("session.one-name-one-answer")
async def test_name_in_flight_is_refused_a_second_time_without_its_own_name(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.wait", {"text": "first"}))
    await harness.waits.started.wait()
    await client.send(call("x", "test/text.echo", {"text": "second"}), call("y"))
    await client.result("y")
    refused = await client.result("")
    assert refused.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
    assert refused.error.details["call_id"] == "x"
    answers = [event for event in client.events["x"] if event.WhichOneof("event") == "result"]
    assert not answers, "callers of the first one go on waiting"
    harness.waits.let_go.set()
    await client.rest()
    answers = [event for event in client.events["x"] if event.WhichOneof("event") == "result"]
    assert [json.loads(event.result.result_json) for event in answers] == [{"text": "first"}]
    assert await harness.outcomes("test/text.echo") == ["INVALID_INPUT"]


async def test_call_keeps_to_its_own_timeout_and_leaves_the_others_alone(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("long", "test/text.wait"))

    async def short(timeout_s: float) -> list[result_pb2.ToolResult]:
        read, write = f"read-{timeout_s}", f"write-{timeout_s}"
        await client.send(
            call(read, "test/text.wait", budget={"timeout_s": timeout_s}),
            call(write, "test/text.waitToWrite", budget={"timeout_s": timeout_s}),
        )
        return [await client.result(name) for name in (read, write)]

    read, written = await overtaken(short, lambda _: harness.writes.started.is_set())
    assert read.error.kind == error_pb2.ERROR_KIND_TIMEOUT
    assert written.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
    harness.waits.let_go.set()
    assert (await client.result("long")).ok
    await client.rest()


async def test_calls_are_answered_before_the_deadline_of_their_stream(harness: SessionHarness) -> None:
    async def answered(timeout_s: float) -> list[result_pb2.ToolResult]:
        client = Client(harness.running, timeout_s)
        await client.send(call("x", "test/text.wait"), call("y", "test/text.wait", budget={"timeout_s": 60}))
        return [await client.result("x"), await client.result("y")]

    results = await overtaken(lambda timeout_s: in_time(answered(timeout_s)), bool, first_s=1.0)
    assert results
    assert [result.error.kind for result in results] == [error_pb2.ERROR_KIND_TIMEOUT] * 2


async def test_dry_run_is_answered_with_a_plan_and_structs_with_structs(harness: SessionHarness) -> None:
    client = Client(harness.running)
    dry = {"mode": call_pb2.INVOKE_MODE_DRY_RUN}
    await client.send(
        call("plan", "core/fs.writeText", {"path": "a", "text": "b"}, **dry),
        call("struct", "test/text.echo", args_struct={"text": "in"}),
    )
    await client.rest()
    assert [event.WhichOneof("event") for event in client.events["plan"]] == ["plan"]
    assert client.events["plan"][0].plan.plan_digest
    assert client.events["struct"][0].result.result_struct["text"] == "in"


async def test_defect_in_a_tool_is_answered_without_its_text(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.crash"), call("y"))
    await client.rest()
    assert client.events["x"][0].result.error.kind == error_pb2.ERROR_KIND_INTERNAL
    assert b"hunter2" not in client.events["x"][0].SerializeToString()
    assert client.events["y"][0].result.ok


async def test_one_key_runs_once_though_both_calls_stand_in_one_message(harness: SessionHarness) -> None:
    client = Client(harness.running)
    twice = [call(name, "test/text.waitToWrite", {"text": "once"}, idempotency_key="k") for name in ("x", "y")]
    await client.send(*twice)
    await harness.writes.started.wait()
    harness.writes.let_go.set()
    await client.rest()
    assert sorted(events[-1].result.replayed for events in client.events.values()) == [False, True]


async def test_half_close_lets_what_is_in_flight_finish(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.wait"))
    await harness.waits.started.wait()
    await client.stream.done_writing()
    harness.waits.let_go.set()
    assert (await client.result("x")).ok
    assert not await client.read()
    assert await client.stream.code() is grpc.StatusCode.OK


async def test_all_in_flight_is_cancelled_and_recorded_when_the_stream_is(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(*[call(f"c{number}", "test/text.wait") for number in range(5)])
    await client.until(lambda: len(client.events) == 5)
    client.stream.cancel()
    await harness.waits.stopped.wait()
    await ended(harness.running)
    assert await harness.outcomes("test/text.wait") == ["CANCELLED"] * 5


async def test_client_that_vanishes_leaves_nothing_running(harness: SessionHarness) -> None:
    channel = channel_to(harness.running.address)
    stub: Any = ToolServiceStub(channel)
    stream = stub.InvokeSession()
    await stream.write(pb.InvokeSessionRequest(calls=[call("x", "test/text.wait")]))
    await harness.waits.started.wait()
    await channel.close(None)
    await harness.waits.stopped.wait()
    await ended(harness.running)
    assert await harness.outcomes("test/text.wait") == ["CANCELLED"]


@pytest.mark.promise("session.bounded")
async def test_reader_that_does_not_read_is_cut_off_from_calling_and_then_loses_nothing(
    harness: SessionHarness,
) -> None:
    client = Client(harness.running, timeout_s=None)
    names = [f"c{number}" for number in range(64)]

    async def write() -> None:
        for name in names:
            await client.send(call(name, "test/text.echo", {"text": TEXT}))

    writing = asyncio.create_task(write())
    await until(lambda: any(session._queue.hold(0) for session in harness.running.hub.server.tools.sessions._open))
    assert (await harness.running.invoke(NOW)).ok
    begun = len(await harness.running.events(tool="test/text.echo", types=frozenset({EventType.TOOL_RESULT})))
    assert begun < len(names)
    await client.until(lambda: len(client.events) == len(names))
    await writing
    await client.rest()
    assert all(events[-1].result.ok for events in client.events.values())


async def test_reader_that_does_not_read_and_goes_leaves_nothing_behind(harness: SessionHarness) -> None:
    client = Client(harness.running, timeout_s=None)
    echoes = [call(f"c{number}", "test/text.echo", {"text": TEXT}) for number in range(7)]

    async def write() -> None:
        await client.send(call("x", "test/text.wait"))
        for _ in range(4):
            await client.send(*echoes)

    writing = asyncio.create_task(write())
    await harness.waits.started.wait()
    while not await harness.running.events(tool="test/text.echo", types=frozenset({EventType.TOOL_RESULT})):
        assert not writing.done() or writing.exception() is None
    client.stream.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await ended(harness.running)
    assert harness.waits.running == 0


@pytest.mark.promise("session.bounded")
async def test_bound_in_flight_stops_the_reading(harness: SessionHarness) -> None:
    servicer = harness.running.hub.server.tools
    servicer.sessions._max_in_flight = 2
    client = Client(harness.running)
    await client.send(*[call(f"c{number}", "test/text.wait") for number in range(5)])
    await client.until(lambda: len(client.events) == 2)
    assert (await harness.running.invoke(NOW)).ok
    assert harness.waits.running == 2
    harness.waits.let_go.set()
    await client.rest()
    assert len(client.events) == 5


async def test_hub_that_leaves_lets_calls_finish_and_ends_sessions_with_a_retryable_status(
    harness: SessionHarness,
) -> None:
    client, idle = Client(harness.running), Client(harness.running)
    await client.send(call("x", "test/text.wait"))
    await idle.send(call("warm"))
    await idle.result("warm")
    await harness.waits.started.wait()
    leaving = asyncio.create_task(harness.running.hub.server.drain(0.0, GRACE_S))
    parted = await idle.failure()
    assert (parted.code, parted.reason, parted.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.5)
    harness.waits.let_go.set()
    assert (await client.result("x")).ok
    assert (await client.failure()).reason == "DRAINING"
    await leaving


async def test_call_that_outlives_the_grace_is_answered_before_the_hub_goes(harness: SessionHarness) -> None:
    client = Client(harness.running)
    await client.send(call("x", "test/text.wait"))
    await harness.waits.started.wait()
    hub = harness.running.hub
    leaving = asyncio.create_task(hub.server.drain(0.0, 0.01, cut_off=hub.pipeline.cut_off))
    assert (await client.result("x")).error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
    assert (await client.failure()).reason == "DRAINING"
    await leaving
    assert await harness.outcomes("test/text.wait") == ["TOOL_UNAVAILABLE"]


async def ended(running: RunningHub) -> None:
    """Until no session is open."""
    await until(lambda: len(running.hub.server.tools.sessions) == 0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing rings when it comes to that
        await asyncio.sleep(0)
