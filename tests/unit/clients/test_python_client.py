"""The Python client against a scripted server on a free port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from toolhub.v1 import (
    call_pb2,
    error_pb2,
    job_pb2,
    job_service_pb2,
    job_state_pb2,
    progress_pb2,
    result_pb2,
    tool_pb2,
    tool_service_pb2,
)
from toolhub.v1.job_service_pb2_grpc import JobServiceServicer, add_JobServiceServicer_to_server
from toolhub.v1.tool_service_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from toolhub_client import Answer, CallFailed, Chunk, Context, ErrorKind, Hub, Progress, connect

RUNNING, SUCCEEDED = job_state_pb2.JOB_STATE_RUNNING, job_state_pb2.JOB_STATE_SUCCEEDED
ServerContext = Any
"""grpc.aio.ServicerContext; its types and the generated ones disagree."""


@dataclass
class FakeToolService(ToolServiceServicer):
    """Echoes arguments; refuses the tool `refused`; streams for anything."""

    seen: list[tool_service_pb2.InvokeRequest] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)

    async def Invoke(self, request: Any, context: Any) -> tool_service_pb2.InvokeResponse:
        self.seen.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return tool_service_pb2.InvokeResponse(result=checked(request))

    async def InvokeStream(self, request: Any, context: Any) -> AsyncIterator[tool_service_pb2.InvokeStreamResponse]:
        yield tool_service_pb2.InvokeStreamResponse(progress=progress_pb2.Progress(step=1, total=2))
        yield tool_service_pb2.InvokeStreamResponse(chunk=progress_pb2.Chunk(data=b"half", stream="stdout"))
        yield tool_service_pb2.InvokeStreamResponse(result=checked(request))

    async def ListTools(self, request: Any, context: Any) -> tool_service_pb2.ListToolsResponse:
        names = ["a", "b", "c"]
        at = int(request.page_token or 0)
        more = str(at + 1) if at + 1 < len(names) else ""
        return tool_service_pb2.ListToolsResponse(tools=[tool_pb2.ToolSpec(name=names[at])], next_page_token=more)

    WatchTools = GetServerInfo = GetTool = SearchTools = None  # type: ignore[assignment]
    ExportTools = InvokeSession = None  # type: ignore[assignment]


def checked(request: tool_service_pb2.InvokeRequest | tool_service_pb2.InvokeStreamRequest) -> result_pb2.ToolResult:
    if request.intent.tool == "refused":
        error = error_pb2.ToolError(
            kind=error_pb2.ERROR_KIND_RATE_LIMITED, message="Wait a little, then try again.", retryable=True
        )
        error.retry_after.FromMilliseconds(1500)
        error.details.update({"rule_id": "r1"})
        return result_pb2.ToolResult(ok=False, error=error, call_id="c1")
    return result_pb2.ToolResult(ok=True, result_json=request.intent.args_json, call_id="c1")


Script = Callable[[int, ServerContext], AsyncIterator[job_pb2.JobStatus]]


@dataclass
class ScriptedJobService(JobServiceServicer):
    """Each watch follows the next script; notes where every watcher began."""

    scripts: list[Script]
    began_after: list[int] = field(default_factory=list)

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[job_service_pb2.WatchJobResponse]:
        self.began_after.append(request.after_sequence)
        async for status in self.scripts.pop(0)(request.after_sequence, context):
            yield job_service_pb2.WatchJobResponse(status=status)

    WatchJobs = SubmitJob = GetJob = ListJobs = CancelJob = None  # type: ignore[assignment]


def status(sequence: int, state: job_state_pb2.JobState.ValueType = RUNNING) -> job_pb2.JobStatus:
    result = result_pb2.ToolResult(ok=True, result_json=b'{"done":true}') if state == SUCCEEDED else None
    return job_pb2.JobStatus(job_id="j1", sequence=sequence, state=state, result=result)


@asynccontextmanager
async def serving(
    tools: FakeToolService | None = None, jobs: ScriptedJobService | None = None, *, api_key: str = ""
) -> AsyncIterator[Hub]:
    server = grpc.aio.server()
    add_ToolServiceServicer_to_server(tools or FakeToolService(), server)
    add_JobServiceServicer_to_server(jobs or ScriptedJobService([]), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connect(f"127.0.0.1:{port}", api_key=api_key) as hub:
            yield hub
    finally:
        await server.stop(None)


async def test_a_call_carries_intent_context_and_credential() -> None:
    tools = FakeToolService()
    async with serving(tools, api_key="thk_1_x") as hub:
        context = Context(request_id="r1", permissions=("read:fs",), timeout_s=1.5, max_retries=0, labels={"a": "b"})
        answer = await hub.invoke("echo", {"n": 2**60}, purpose="try", idempotency_key="k", context=context)

    assert answer.unwrap() == {"n": 2**60}
    (request,) = tools.seen
    assert (request.intent.purpose, request.intent.idempotency_key) == ("try", "k")
    assert json.loads(request.intent.args_json) == {"n": 2**60}
    assert request.context.budget.timeout.ToMilliseconds() == 1500
    assert request.context.budget.HasField("max_retries")
    assert not request.context.budget.HasField("max_tool_calls")
    assert tools.metadata[0]["authorization"] == "Bearer thk_1_x"


async def test_a_dry_run_asks_for_a_plan() -> None:
    tools = FakeToolService()
    async with serving(tools) as hub:
        await hub.dry_run("echo")
    assert tools.seen[0].mode == call_pb2.INVOKE_MODE_DRY_RUN


async def test_a_refusal_is_an_answer_until_it_is_unwrapped() -> None:
    async with serving() as hub:
        answer = await hub.invoke("refused")
        assert not answer.ok
        assert answer.value is None
        with pytest.raises(CallFailed, match="Wait a little") as failed:
            answer.unwrap()
    assert failed.value.kind == ErrorKind.RATE_LIMITED == "RATE_LIMITED"
    assert "wait for retry_after" in failed.value.advice
    assert failed.value.retryable
    assert failed.value.retry_after_s == 1.5
    assert failed.value.details == {"rule_id": "r1"}


async def test_a_stream_ends_with_the_answer() -> None:
    async with serving() as hub:
        events = [event async for event in hub.invoke_stream("echo", {"a": 1})]
    assert [type(event) for event in events] == [Progress, Chunk, Answer]
    assert isinstance(events[-1], Answer)
    assert events[-1].unwrap() == {"a": 1}


async def test_a_list_is_read_to_its_last_page() -> None:
    async with serving() as hub:
        assert [tool.name async for tool in hub.list_tools()] == ["a", "b", "c"]


async def test_a_watcher_misses_nothing_and_sees_nothing_twice_when_the_hub_goes_away() -> None:
    async def breaks(_: int, context: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        yield status(1)
        yield status(2)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    async def ends(after: int, _: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        yield status(after + 1)

    async def finishes(after: int, _: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        yield status(after + 1, SUCCEEDED)

    jobs = ScriptedJobService([breaks, ends, finishes])
    async with serving(jobs=jobs) as hub:
        seen = [found.sequence async for found in hub.watch_job("j1")]

    assert seen == [1, 2, 3, 4]
    assert jobs.began_after == [0, 2, 3]


async def test_a_watcher_gives_up_when_nothing_comes_any_more() -> None:
    async def silent_watch(_: int, context: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        yield status(1)

    jobs = ScriptedJobService([silent_watch, silent_watch])
    async with serving(jobs=jobs) as hub:
        with pytest.raises(grpc.aio.AioRpcError, match="away"):
            _ = [found async for found in hub.watch_job("j1", attempts=2)]
    assert jobs.scripts == []


async def test_an_unknown_job_is_not_asked_for_again() -> None:
    async def unknown(_: int, context: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        yield status(1)

    jobs = ScriptedJobService([unknown])
    async with serving(jobs=jobs) as hub:
        with pytest.raises(grpc.aio.AioRpcError, match="no such job"):
            await hub.job_answer("j1")
    assert jobs.began_after == [0]


async def test_the_answer_of_a_job_is_its_final_result() -> None:
    async def finishes(_: int, __: ServerContext) -> AsyncIterator[job_pb2.JobStatus]:
        yield status(1)
        yield status(2, SUCCEEDED)

    async with serving(jobs=ScriptedJobService([finishes])) as hub:
        answer = await hub.job_answer("j1")
    assert answer.unwrap() == {"done": True}
