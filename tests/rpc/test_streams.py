"""Streams and deadlines: progress and chunks as they happen, one answer at the end, and always an end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.fakes.http_server import RecordedRequest, response, serving
from tests.hub import OPEN_POLICY, RunningHub, channel_to, request, running_hub
from tests.overtaken import overtaken
from tests.rpc.sample_tools import Crashes, Echo, Waits, WaitsToWrite
from tests.rpc.statuses import in_time
from toolhub.v1 import call_pb2, error_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.domain.event import EventType

POLICY = OPEN_POLICY + "commands:\n  - {name: script, path: /bin/sh, flags: [{flag: -c, value: '(?s).*'}]}\n"
SIZE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 32 * 1024


class StreamHarness:
    def __init__(self, running: RunningHub, waits: Waits, writes: WaitsToWrite) -> None:
        self.running, self.waits, self.writes = running, waits, writes

    def stream(self, tool: str, args: dict[str, Any] | None = None, **fields: Any) -> Any:
        timeout_s = fields.pop("timeout_s", 60)
        return self.running.stub.InvokeStream(
            request(tool, args, message=pb.InvokeStreamRequest, **fields), timeout=timeout_s
        )

    async def late(self, tool: str, args: dict[str, Any] | None = None) -> result_pb2.ToolResult:
        """What is answered within the deadline of an RPC to a call that takes longer."""
        result = await overtaken(
            lambda timeout_s: in_time(self.running.invoke(tool, args, timeout_s=timeout_s)),
            lambda result: result is not None,
            first_s=1.0,
        )
        assert result is not None
        return result

    async def outcome(self, tool: str) -> str:
        """How the last call of the tool was recorded."""
        events = await self.running.events(tool=tool)
        assert events[-1].event.type is EventType.TOOL_RESULT
        return events[-1].event.outcome


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[StreamHarness]:
    waits, writes = Waits(), WaitsToWrite()
    async with running_hub(tmp_path, policy=POLICY, tools=[waits, writes, Echo(), Crashes()]) as running:
        yield StreamHarness(running, waits, writes)


def kinds(messages: list[pb.InvokeStreamResponse]) -> list[str | None]:
    return [message.WhichOneof("event") for message in messages]


@pytest.mark.promise("stream.one-result-last")
async def test_a_copy_reports_progress_in_bytes_and_ends_with_one_result(harness: StreamHarness) -> None:
    folder = harness.running.workspace("copy")
    folder.mkdir(parents=True)
    (folder / "big.bin").write_bytes(b"x" * SIZE_BYTES)
    args = {"source": "big.bin", "destination": "copy.bin"}
    messages = [message async for message in harness.stream("core/fs.copy", args, request_id="copy")]
    progress = [message.progress for message in messages if message.WhichOneof("event") == "progress"]
    assert progress
    assert all((step.total, step.unit) == (SIZE_BYTES, "bytes") for step in progress)
    assert [step.step for step in progress] == sorted({step.step for step in progress})
    assert progress[-1].step == SIZE_BYTES
    assert kinds(messages).count("result") == 1
    assert messages[-1].result.ok
    assert json.loads(messages[-1].result.result_json)["bytesCopied"] == SIZE_BYTES


@pytest.mark.promise("stream.one-result-last")
async def test_command_streams_its_output_before_its_result(harness: StreamHarness) -> None:
    args = {"argv": ["script", "-c", "echo one; echo two >&2; echo three"]}
    messages = [message async for message in harness.stream("core/exec.run", args)]
    chunks = [message.chunk for message in messages if message.WhichOneof("event") == "chunk"]
    by_stream = {
        name: b"".join(chunk.data for chunk in chunks if chunk.stream == name) for name in ("stdout", "stderr")
    }
    assert by_stream == {"stdout": b"one\nthree\n", "stderr": b"two\n"}
    assert kinds(messages)[-1] == "result"
    assert json.loads(messages[-1].result.result_json)["stdout"] == "one\nthree\n"


async def test_events_arrive_while_the_call_still_runs(harness: StreamHarness) -> None:
    call = harness.stream("test/text.wait", {"text": "late"})
    assert (await call.read()).progress.message == "half way"
    assert (await call.read()).chunk.data == b"so far"
    assert harness.waits.running == 1
    harness.waits.let_go.set()
    assert json.loads((await call.read()).result.result_json) == {"text": "late"}
    assert await call.read() is grpc.aio.EOF


async def test_a_stream_names_its_call_before_the_first_event(harness: StreamHarness) -> None:
    call = harness.stream("test/text.wait")
    (call_id,) = (value for key, value in await call.initial_metadata() if key == "toolhub-call-id")
    harness.waits.let_go.set()
    messages = [message async for message in call]
    assert messages[-1].result.call_id == call_id


@pytest.mark.promise("stream.one-result-last")
async def test_dry_run_streams_a_plan_and_nothing_else(harness: StreamHarness) -> None:
    call = harness.stream("core/fs.writeText", {"path": "a", "text": "b"}, mode=call_pb2.INVOKE_MODE_DRY_RUN)
    messages = [message async for message in call]
    assert kinds(messages) == ["plan"]
    assert messages[0].plan.plan_digest


@pytest.mark.parametrize("tool", ["test/unknown", "test/text.crash"])
async def test_refusal_and_defect_end_a_stream_with_a_result_too(harness: StreamHarness, tool: str) -> None:
    messages = [message async for message in harness.stream(tool)]
    assert kinds(messages) == ["result"]
    assert not messages[0].result.ok


@pytest.mark.promise("cancel.stops-and-is-recorded")
async def test_cancelling_a_stream_stops_the_tool_and_is_recorded(harness: StreamHarness) -> None:
    call = harness.stream("test/text.wait")
    await harness.waits.started.wait()
    call.cancel()
    await harness.waits.stopped.wait()
    assert await harness.outcome("test/text.wait") == "CANCELLED"


@pytest.mark.promise("cancel.stops-and-is-recorded")
async def test_cancelling_a_unary_call_stops_the_tool_and_is_recorded(harness: StreamHarness) -> None:
    call = harness.running.stub.Invoke(request("test/text.wait"), timeout=60)
    await harness.waits.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await harness.waits.stopped.wait()
    assert await harness.outcome("test/text.wait") == "CANCELLED"


async def test_client_that_vanishes_stops_the_tool(harness: StreamHarness) -> None:
    channel = channel_to(harness.running.address)
    stub: Any = ToolServiceStub(channel)
    call = stub.InvokeStream(request("test/text.wait", message=pb.InvokeStreamRequest))
    await harness.waits.started.wait()
    await channel.close(None)
    await harness.waits.stopped.wait()
    assert call.done()


@pytest.mark.promise("budget.answered-before-deadline")
async def test_call_that_outlives_its_deadline_is_answered_before_the_rpc_ends(harness: StreamHarness) -> None:
    result = await harness.late("test/text.wait")
    assert result.error.kind == error_pb2.ERROR_KIND_TIMEOUT
    assert await harness.outcome("test/text.wait") == "TIMEOUT"


@pytest.mark.promise("retry.unknown-outcome")
async def test_side_effect_that_outlives_its_deadline_is_answered_as_unknown(harness: StreamHarness) -> None:
    result = await harness.late("test/text.waitToWrite")
    assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN


@pytest.mark.promise("budget.answered-before-deadline")
async def test_stream_that_outlives_its_deadline_ends_with_a_result(harness: StreamHarness) -> None:
    async def stream(timeout_s: float) -> list[pb.InvokeStreamResponse]:
        return [message async for message in harness.stream("test/text.wait", timeout_s=timeout_s)]

    messages = await overtaken(lambda timeout_s: in_time(stream(timeout_s)), bool, first_s=1.0)
    assert messages
    assert kinds(messages) == ["progress", "chunk", "result"]
    assert messages[-1].result.error.kind == error_pb2.ERROR_KIND_TIMEOUT


async def test_command_that_outlives_its_deadline_is_answered_before_the_rpc_ends(harness: StreamHarness) -> None:
    args = {"argv": ["script", "-c", "echo $$; exec sleep 60"]}
    result = await harness.late("core/exec.run", args)
    assert result.error.kind in (error_pb2.ERROR_KIND_TIMEOUT, error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)


async def test_many_calls_run_at_the_same_time(harness: StreamHarness) -> None:
    calls = [asyncio.create_task(harness.running.invoke("test/text.wait", {"text": str(n)})) for n in range(20)]
    while harness.waits.running < 20:
        await harness.waits.started.wait()
        await asyncio.sleep(0)
    harness.waits.let_go.set()
    answers = await asyncio.gather(*calls)
    assert sorted(int(json.loads(answer.result_json)["text"]) for answer in answers) == list(range(20))


@pytest.mark.promise("stream.one-result-last")
async def test_lines_of_a_command_arrive_while_it_still_runs_and_in_their_order(harness: StreamHarness) -> None:
    script = "echo one; until [ -e go ]; do sleep 0.02; done; echo two; echo three"
    call = harness.stream("core/exec.run", {"argv": ["script", "-c", script]}, request_id="lines")
    assert (await call.read()).chunk.data == b"one\n"
    (harness.running.workspace("lines") / "go").touch()
    rest = await read_on(call)
    assert b"".join(message.chunk.data for message in rest[:-1]) == b"two\nthree\n"
    assert json.loads(rest[-1].result.result_json)["stdout"] == "one\ntwo\nthree\n"


@pytest.mark.promise("cancel.stops-and-is-recorded")
async def test_cancelling_a_stream_midway_kills_the_command(harness: StreamHarness) -> None:
    seconds = f"60.{os.getpid()}"
    call = harness.stream("core/exec.run", {"argv": ["script", "-c", f"echo on; sleep {seconds} & wait"]})
    assert (await call.read()).chunk.data == b"on\n"
    await until(lambda: runs("sleep", seconds))
    call.cancel()
    await until(lambda: not runs("sleep", seconds))
    await until_recorded(harness, "core/exec.run")
    assert await harness.outcome("core/exec.run") == "CANCELLED"


@pytest.mark.promise("stream.bounded")
async def test_reader_that_does_not_read_delays_no_command_and_still_gets_the_result(harness: StreamHarness) -> None:
    args = {"argv": ["script", "-c", "yes | head -c 8000000"]}
    call = harness.stream("core/exec.run", args)
    await until_recorded(harness, "core/exec.run")
    messages = [message async for message in call]
    assert kinds(messages).count("result") == 1
    assert messages[-1].result.ok
    assert sum(len(message.chunk.data) for message in messages) < 4_000_000


@pytest.mark.promise("stream.one-result-last")
async def test_a_download_reports_its_progress_while_it_runs(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def halting(_: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        whole, sent = response(b"x" * SIZE_BYTES), SIZE_BYTES // 2
        writer.write(whole[:sent])
        while not go_on.is_set():
            writer.write(whole[sent : sent + PIECE_BYTES])
            sent += PIECE_BYTES
            with suppress(TimeoutError):
                await asyncio.wait_for(go_on.wait(), 0.01)
        writer.write(whole[sent:])
        await writer.drain()
        return True

    egress = "egress: [{hosts: [127.0.0.1], ports: [%d], cidrs: [127.0.0.0/8]}]\n"
    async with (
        serving(halting) as server,
        running_hub(tmp_path, policy=OPEN_POLICY + egress % server.port) as running,
    ):
        args = {"url": server.url("/big"), "destPath": "big.bin"}
        call = running.stub.InvokeStream(
            request("core/http.downloadFile", args, message=pb.InvokeStreamRequest), timeout=60
        )
        first = await call.read()
        assert 0 < first.progress.step < SIZE_BYTES
        assert (first.progress.total, first.progress.unit) == (SIZE_BYTES, "bytes")
        go_on.set()
        messages = [first, *await read_on(call)]
    steps = [message.progress.step for message in messages[:-1]]
    assert steps == sorted(set(steps))
    assert steps[-1] == SIZE_BYTES
    assert kinds(messages).count("result") == 1
    assert json.loads(messages[-1].result.result_json)["bytes"] == SIZE_BYTES


async def read_on(call: Any) -> list[pb.InvokeStreamResponse]:
    """The messages that are left: grpc does not let one be read and the others be iterated over."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


def runs(*words: str) -> bool:
    """Whether a process with these words in its command line runs."""
    return any(set(words) <= set(command_line(folder)) for folder in Path("/proc").glob("[0-9]*"))


def command_line(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_text().split("\0")
    except OSError:  # it has just ended
        return []


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing rings when a process ends that is not ours
        await asyncio.sleep(0.005)


async def until_recorded(harness: StreamHarness, tool: str) -> None:
    """Until the call of the tool has been settled."""
    settled = frozenset({EventType.TOOL_RESULT})
    while not await harness.running.events(tool=tool, types=settled):  # noqa: ASYNC110 - the log rings for nobody
        await asyncio.sleep(0)
