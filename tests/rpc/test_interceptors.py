"""What surrounds every RPC, over all four kinds, and over handlers that write instead of yielding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.hub import RunningHub, request, running_hub
from tests.rpc.sample_tools import Waits
from tests.rpc.statuses import FailedRpc, failed, failed_stream
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, refuse
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.front import Front
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.rpc import Layer, Method, ServicerContext

Context = Any


class RecordingLayer(Layer):
    """Writes down every hook it meets."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.errors: list[BaseException | None] = []
        self.over = asyncio.Event()
        self.refusal: HubFailure | None = None

    def enter(self, method: Method, context: ServicerContext) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.seen.append(f"enter {method.kind}")
        return method.name

    def on_request(self, method: Method, state: str, message: Any) -> None:
        assert state == method.name
        self.seen.append("received")

    def on_response(self, method: Method, state: str) -> None:
        self.seen.append("sent")

    def leave(self, method: Method, state: str, context: ServicerContext, error: BaseException | None) -> None:
        self.seen.append("leave")
        self.errors.append(error)
        self.over.set()


class EveryKindOfRpc:
    """One RPC of each kind, besides a stream that writes and RPCs that fail."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def unary(self, _: bytes, context: Context) -> bytes:
        return b"one"

    async def yields(self, _: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def writes(self, _: bytes, context: Context) -> None:
        await context.write(b"one")
        await context.write(b"two")

    async def takes(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        return b"".join([part async for part in requests])

    async def both(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async for part in requests:
            yield part

    async def crash(self, _: bytes, context: Context) -> bytes:
        raise ValueError("secret hunter2")

    async def crash_later(self, _: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("secret hunter2")

    async def crash_written(self, _: bytes, context: Context) -> None:
        await context.write(b"one")
        raise ValueError("secret hunter2")

    async def hub_failure(self, _: bytes, context: Context) -> bytes:
        raise HubFailure(Reason.PIN_UNREADABLE, "Come back later.", tool="a/b")

    async def tool_failure(self, _: bytes, context: Context) -> bytes:
        raise refuse(ErrorKind.RATE_LIMITED, "Slow down.", retry_after_s=1.5)

    async def endless(self, _: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    def handlers(self) -> dict[str, Any]:
        make = {
            grpc.unary_unary_rpc_method_handler: ("unary", "crash", "hub_failure", "tool_failure"),
            grpc.unary_stream_rpc_method_handler: ("yields", "writes", "crash_later", "crash_written", "endless"),
            grpc.stream_unary_rpc_method_handler: ("takes",),
            grpc.stream_stream_rpc_method_handler: ("both",),
        }
        return {name: kind(getattr(self, name)) for kind, names in make.items() for name in names}


class ServerHarness:
    def __init__(self) -> None:
        self.outer, self.inner, self.service = RecordingLayer(), RecordingLayer(), EveryKindOfRpc()
        self.crashes: list[tuple[str, Exception]] = []
        self.layers = [self.outer, ErrorsLayer(lambda path, error: self.crashes.append((path, error))), self.inner]
        self.channel: Any = None

    def call(self, name: str, kind: str = "unary_unary") -> Any:
        return getattr(self.channel, kind)(f"/test.Service/{name}")


@asynccontextmanager
async def serving() -> AsyncIterator[ServerHarness]:
    harness = ServerHarness()
    server = grpc.aio.server()
    front = Front(harness.layers)
    front.add_registered_method_handlers("test.Service", harness.service.handlers())
    server.add_generic_rpc_handlers((front,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        harness.channel = channel
        yield harness
    await server.stop(0)


@pytest.fixture
async def harness() -> AsyncIterator[ServerHarness]:
    async with serving() as running:
        yield running


async def parts() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


async def test_unary_call_meets_every_hook_once(harness: ServerHarness) -> None:
    assert await harness.call("unary")(b"") == b"one"
    assert harness.outer.seen == harness.inner.seen == ["enter unary", "received", "sent", "leave"]
    assert harness.outer.errors == [None]


@pytest.mark.parametrize(("name", "sends"), [("yields", ["sent", "sent"]), ("writes", [])])
async def test_a_stream_reaches_its_client_whole_in_any_pieces(
    harness: ServerHarness, name: str, sends: list[str]
) -> None:
    assert [part async for part in harness.call(name, "unary_stream")(b"")] == [b"one", b"two"]
    assert harness.inner.seen == ["enter server_stream", "received", *sends, "leave"]


async def test_each_message_of_a_client_stream_is_seen(harness: ServerHarness) -> None:
    assert await harness.call("takes", "stream_unary")(parts()) == b"ab"
    assert harness.inner.seen == ["enter client_stream", "received", "received", "sent", "leave"]


async def test_each_message_of_both_directions_is_seen(harness: ServerHarness) -> None:
    assert [part async for part in harness.call("both", "stream_stream")(parts())] == [b"a", b"b"]
    assert sorted(harness.inner.seen) == sorted(["enter bidi_stream", *["received", "sent"] * 2, "leave"])


def internal(failure: FailedRpc) -> None:
    assert (failure.code, failure.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "hunter2" not in failure.message
    assert "ValueError" not in failure.message


@pytest.mark.promise("pipeline.no-exception-text")
async def test_defect_never_shows_its_text_and_is_logged_whole(harness: ServerHarness) -> None:
    internal(await failed(harness.call("crash")(b"")))
    ((path, error),) = harness.crashes
    assert path == "/test.Service/crash"
    assert str(error) == "secret hunter2"


@pytest.mark.parametrize("name", ["crash_later", "crash_written"])
async def test_defect_in_the_middle_of_a_stream_is_reported_the_same_way(harness: ServerHarness, name: str) -> None:
    internal(await failed_stream(harness.call(name, "unary_stream")(b"")))
    assert len(harness.crashes) == 1
    await harness.outer.over.wait()
    assert harness.outer.seen[-1] == "leave"


@pytest.mark.promise("errors.rpc-details")
async def test_failure_of_the_hub_becomes_its_status_with_error_info(harness: ServerHarness) -> None:
    failure = await failed(harness.call("hub_failure")(b""))
    assert failure == FailedRpc(
        grpc.StatusCode.FAILED_PRECONDITION, "Come back later.", "PIN_UNREADABLE", "toolhub", {"tool": "a/b"}
    )
    assert harness.crashes == []


@pytest.mark.promise("errors.rpc-details")
async def test_failure_of_a_part_becomes_the_equal_status_with_retry_info(harness: ServerHarness) -> None:
    failure = await failed(harness.call("tool_failure")(b""))
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert failure.retry_after_s == 1.5


async def test_cancelling_a_stream_ends_its_handler_and_every_layer_leaves(harness: ServerHarness) -> None:
    call = harness.call("endless", "unary_stream")(b"")
    assert await call.read() == b"one"
    await harness.service.started.wait()
    call.cancel()
    await harness.service.stopped.wait()
    await harness.outer.over.wait()
    assert isinstance(harness.outer.errors[0], asyncio.CancelledError)
    assert harness.inner.seen[-1] == "leave"
    assert harness.crashes == []


async def test_layer_that_refuses_lets_the_ones_outside_leave(harness: ServerHarness) -> None:
    harness.inner.refusal = HubFailure(Reason.OWN_REQUEST, "Not you.")
    failure = await failed(harness.call("unary")(b""))
    assert failure.code is grpc.StatusCode.PERMISSION_DENIED
    await harness.outer.over.wait()
    assert harness.outer.seen == ["enter unary", "leave"]
    assert harness.inner.seen == []


async def test_health_watch_passes_the_whole_stack(hub: RunningHub) -> None:
    stub = health_pb2_grpc.HealthStub(hub.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="toolhub.v1.ToolService"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


@pytest.mark.parametrize("path", ["/toolhub.v1.ToolService/Nothing", "/nobody.Home/Knocks", "/x"])
async def test_unknown_method_is_unimplemented_and_shows_nothing(hub: RunningHub, path: str) -> None:
    unknown: Any = hub.channel.unary_unary(path)
    failure = await failed(unknown(b"", timeout=60))
    assert failure.code is grpc.StatusCode.UNIMPLEMENTED
    assert "Traceback" not in failure.message


async def test_metrics_count_calls_by_method_and_code(hub: RunningHub) -> None:
    await hub.invoke("core/util.time.now")
    await hub.invoke("test/unknown")
    await failed(hub.stub.Invoke(pb.InvokeRequest()))
    await failed(hub.stub.GetTool(pb.GetToolRequest(name="test/unknown")))
    stream = hub.stub.InvokeStream(request("core/util.time.now", message=pb.InvokeStreamRequest))
    assert [message.WhichOneof("event") async for message in stream] == ["result"]
    by_method = handled(hub)
    assert by_method["Invoke", "OK"] == 2  # a refused call is an answered RPC
    assert by_method["Invoke", "INVALID_ARGUMENT"] == 1
    assert by_method["GetTool", "NOT_FOUND"] == 1
    assert by_method["InvokeStream", "OK"] == 1


async def test_metrics_count_what_was_cancelled_as_cancelled(tmp_path: Path) -> None:
    waits = Waits()
    async with running_hub(tmp_path, tools=[waits]) as hub:
        stream = hub.stub.InvokeStream(request("test/text.wait", message=pb.InvokeStreamRequest))
        await waits.started.wait()
        stream.cancel()
        await waits.stopped.wait()
        await hub.events()  # the call has been recorded; its stream ends with it
        assert handled(hub)["InvokeStream", "CANCELLED"] == 1


def handled(hub: RunningHub) -> dict[tuple[str, str], float]:
    """How many RPCs have been answered, by method and code."""
    return {
        (sample.labels["grpc_method"], sample.labels["grpc_code"]): sample.value
        for family in text_string_to_metric_families(hub.hub.observing.metrics.exposition().decode())
        for sample in family.samples
        if sample.name == "grpc_server_handled_total"
    }
