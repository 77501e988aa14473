"""Sessions of the Python client, and the client without asyncio, against a whole hub."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import RunningHub, running_hub
from toolhub.v1 import result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from toolhub_client import Answer, HubUnavailable, NotFound, connect, connect_sync
from toolhub_client.session import MAX_IN_FLIGHT

NOW = "core/util.time.now"
HASH = "core/util.hash.sha256Text"
LOCAL = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(tmp_path) as hub:
        yield hub


async def test_calls_of_a_session_each_get_their_own_answer(running: RunningHub) -> None:
    async with connect(running.address, options=LOCAL) as hub, hub.session() as session:
        texts = [str(number) for number in range(2 * MAX_IN_FLIGHT)]
        answers = await asyncio.gather(*(session.invoke(HASH, {"text": text}) for text in texts))
        alone = [await hub.invoke(HASH, {"text": text}) for text in texts[:3]]
    assert [answer.unwrap() for answer in answers[:3]] == [answer.unwrap() for answer in alone]
    assert len({answer.unwrap()["sha256"] for answer in answers}) == len(texts)


async def test_refusal_in_a_session_is_an_answer_of_its_call_alone(running: RunningHub) -> None:
    async with connect(running.address, options=LOCAL) as hub, hub.session() as session:
        good, bad = await asyncio.gather(session.invoke(NOW), session.invoke("no/such.tool"))
    assert good.ok
    assert bad.error is not None
    assert bad.error.kind == "TOOL_NOT_FOUND"


class BreakingToolService(ToolServiceServicer):
    """Answers the calls of the first message; then breaks, or waits until a test names the call to cancel."""

    def __init__(self, *, breaks: bool) -> None:
        self.breaks = breaks
        self.cancelled: list[str] = []
        self.asked = asyncio.Event()

    async def InvokeSession(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.InvokeSessionResponse]:
        async for request in request_iterator:
            self.cancelled += request.cancel_call_ids
            for call in request.calls:
                if call.intent.tool == "answered":
                    result = result_pb2.ToolResult(ok=True, result_json=b"1")
                    yield pb.InvokeSessionResponse(events=[pb.SessionEvent(call_id=call.call_id, result=result)])
                elif self.breaks:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
                else:
                    self.asked.set()

    WatchTools = GetServerInfo = None  # type: ignore[assignment]
    Invoke = InvokeStream = ListTools = GetTool = SearchTools = ExportTools = None  # type: ignore[assignment]


async def serve(servicer: BreakingToolService) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    add_ToolServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def test_session_that_breaks_fails_what_was_in_flight_and_what_comes_after() -> None:
    server, address = await serve(BreakingToolService(breaks=True))
    async with connect(address, options=LOCAL) as hub, hub.session() as session:
        assert (await session.invoke("answered")).unwrap() == 1
        with pytest.raises(HubUnavailable, match="broken"):
            await session.invoke("lost")
        with pytest.raises(HubUnavailable, match="broken"):
            await session.invoke("answered")
    await server.stop(None)


async def test_cancelled_call_is_cancelled_at_the_hub() -> None:
    servicer = BreakingToolService(breaks=False)
    server, address = await serve(servicer)
    async with connect(address, options=LOCAL) as hub, hub.session() as session:
        calling = asyncio.create_task(session.invoke("slow"))
        await servicer.asked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await session.invoke("answered")).unwrap() == 1, "it goes on"
    assert servicer.cancelled == ["c1"]
    await server.stop(None)


async def test_session_is_used_inside_its_block(running: RunningHub) -> None:
    async with connect(running.address, options=LOCAL) as hub:
        session = hub.session()
        with pytest.raises(RuntimeError, match="async with"):
            await session.invoke(NOW)


async def test_program_without_asyncio_finds_and_calls_tools(running: RunningHub) -> None:
    def program() -> None:
        with connect_sync(running.address, options=LOCAL) as hub:
            assert hub.invoke(NOW).ok
            assert NOW in [tool.name for tool in hub.list_tools(names=["core/util.*"])]
            assert hub.search("current time", limit=1)[0].tool.name == NOW
            assert hub.get_tool(NOW).name == NOW
            assert NOW in hub.export("mcp", names=["core/util.*"])[1].values()
            with pytest.raises(NotFound):
                hub.get_tool("no/such.tool")
            *_, last = hub.invoke_stream(HASH, {"text": ""})
            assert isinstance(last, Answer)

    await asyncio.to_thread(program)


async def test_program_without_asyncio_follows_a_job_to_its_answer(running: RunningHub) -> None:
    def program() -> None:
        with connect_sync(running.address, options=LOCAL) as hub:
            job = hub.submit_job(HASH, {"text": ""}, purpose="a test")
            assert [status.sequence for status in hub.watch_job(job.job_id)] != []
            assert hub.job_answer(job.job_id).ok
            assert hub.get_job(job.job_id).job_id == job.job_id
            assert [each.job_id for each in hub.list_jobs(tool=HASH)] == [job.job_id]
            assert hub.cancel_job(job.job_id).job_id == job.job_id

    await asyncio.to_thread(program)


async def test_program_without_asyncio_keeps_artifacts_and_commits_plans(running: RunningHub) -> None:
    def program() -> None:
        with connect_sync(running.address, options=LOCAL) as hub:
            artifact = hub.put_artifact(iter([b"one", b"two"]), name="a.txt")
            assert hub.get_artifact(artifact.artifact_id) == b"onetwo"
            first, *_ = hub.read_artifact(artifact.artifact_id)
            assert first == b"onetwo"
            assert list(hub.list_approvals()) == []
            shown = hub.dry_run("core/fs.writeText", {"path": "a.txt", "text": "hi"}, purpose="a test")
            assert hub.commit(shown).ok

    await asyncio.to_thread(program)


async def test_threads_share_one_hub_and_one_thread_of_the_client(running: RunningHub) -> None:
    def program() -> None:
        with connect_sync(running.address, options=LOCAL) as hub, ThreadPoolExecutor(4) as threads:
            assert all(answer.ok for answer in threads.map(lambda _: hub.invoke(NOW), range(8)))
        assert sum(thread.name == "toolhub-client" for thread in threading.enumerate()) == 1

    await asyncio.to_thread(program)
