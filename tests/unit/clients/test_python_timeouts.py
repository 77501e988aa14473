"""`timeout` of the Python client's methods: the whole call, and the deadline that the hub gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.free_port import free_port
from tests.hub import OPEN_POLICY, running_hub
from tests.overtaken import overtaken
from tests.rpc.sample_tools import Waits
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.tool_service_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from toolhub_client import DeadlineExceeded, Hub, HubUnavailable, channel, connect, connect_sync

LOCAL = (("grpc.use_local_subchannel_pool", 1),)
HASH = "core/util.hash.sha256Text"
WAITS = (Waits.name, {"text": "a"})


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def hub(tmp_path: Path, waits: Waits) -> AsyncIterator[Hub]:
    async with (
        running_hub(tmp_path, policy=OPEN_POLICY, tools=[waits]) as running,
        connect(running.address, options=LOCAL) as client,
    ):
        yield client


async def outcome(call: Coroutine[Any, Any, Any]) -> str:
    """What became of a call that was to run out of time: the hub's word, or the client's."""
    try:
        answer = await call
    except DeadlineExceeded:
        return "DeadlineExceeded"
    assert answer.error is not None
    return str(answer.error.kind)


async def last_of(hub: Hub, timeout_s: float) -> Any:
    return [event async for event in hub.invoke_stream(*WAITS, purpose="a test", timeout=timeout_s)][-1]


async def in_session(hub: Hub, timeout_s: float) -> Any:
    async with hub.session() as session:
        return await session.invoke(*WAITS, purpose="a test", timeout=timeout_s)


CALLS: dict[str, Callable[[Hub, float], Coroutine[Any, Any, Any]]] = {
    "invoke": lambda hub, timeout: hub.invoke(*WAITS, purpose="a test", timeout=timeout),
    "invoke_stream": last_of,
    "session": in_session,
}


@pytest.mark.parametrize("way", CALLS)
async def test_call_ends_with_its_timeout_and_is_stopped_at_the_hub(hub: Hub, waits: Waits, way: str) -> None:
    async def attempt(timeout_s: float) -> str:
        return await outcome(CALLS[way](hub, timeout_s))

    ended = await overtaken(attempt, lambda _: waits.started.is_set())
    assert ended in {"TIMEOUT", "OUTCOME_UNKNOWN", "DeadlineExceeded"}
    async with asyncio.timeout(60):
        await waits.stopped.wait()


async def test_waiting_for_a_job_ends_with_its_timeout_and_the_job_goes_on(hub: Hub, waits: Waits) -> None:
    job = await hub.submit_job(*WAITS, purpose="a test", timeout=60)
    with pytest.raises(DeadlineExceeded, match=r"longer than its timeout of 0.2 s"):
        await hub.job_answer(job.job_id, timeout=0.2)
    assert not waits.stopped.is_set()
    await hub.cancel_job(job.job_id, timeout=60)
    assert not (await hub.job_answer(job.job_id, timeout=60)).ok


async def test_every_method_takes_a_timeout(hub: Hub) -> None:
    assert (await hub.server_info(timeout=60)).server.version
    assert (await hub.search("hash a text", limit=1, timeout=60))[0].tool.name
    assert (await hub.get_tool(HASH, timeout=60)).name == HASH
    _, names = await hub.export("openai", timeout=60, names=[HASH])
    message = await hub.run_tool_call(
        {"type": "function_call", "call_id": "1", "name": next(iter(names)), "arguments": '{"text":""}'}, timeout=60
    )
    assert "e3b0c442" in message["output"]
    assert [tool.name async for tool in hub.list_tools(names=[HASH], timeout=60)] == [HASH]
    assert (await hub.commit(await hub.dry_run(HASH, {"text": ""}, timeout=60), timeout=60)).ok
    artifact = await hub.put_artifact(b"hello", name="a.txt", timeout=60)
    assert await hub.get_artifact(artifact.artifact_id, timeout=60) == b"hello"
    assert [each.artifact_id async for each in hub.list_artifacts(timeout=60)] == [artifact.artifact_id]
    await hub.delete_artifact(artifact.artifact_id, timeout=60)
    assert [each async for each in hub.list_jobs(timeout=60)] == []
    assert [each async for each in hub.list_approvals(timeout=60)] == []
    assert await hub.face("countbot").definitions(timeout=60)


class NotesDeadlines(ToolServiceServicer):
    """Notes what time each RPC has, and gives two pages."""

    def __init__(self) -> None:
        self.left_s: list[float | None] = []
        self.passed_s = 0.0

    async def ExportTools(self, request: Any, context: Any) -> pb.ExportToolsResponse:
        self.left_s.append(context.time_remaining())
        self.passed_s += 400
        return pb.ExportToolsResponse(tools_json=b"[]", next_page_token="" if request.page_token else "2")

    WatchTools = GetServerInfo = Invoke = InvokeStream = InvokeSession = None  # type: ignore[assignment]
    ListTools = GetTool = SearchTools = None  # type: ignore[assignment]


async def test_pages_share_one_deadline_and_no_timeout_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    servicer, server = NotesDeadlines(), grpc.aio.server()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + servicer.passed_s)
    monkeypatch.setattr(channel, "time", clock)
    add_ToolServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}", options=LOCAL) as hub:
        await hub.export(timeout=600)
        await hub.export()
    await server.stop(None)
    first_s, second_s, *unlimited = servicer.left_s
    assert first_s is not None
    assert second_s is not None
    # The wire rounds a timeout up: gRPC writes at most 8 digits of one unit.
    assert 300 < first_s <= 605
    assert 0 < second_s <= 205
    assert unlimited == [None, None]


async def test_timeout_bounds_the_waiting_for_a_hub() -> None:
    began_s = time.monotonic()
    async with connect(f"127.0.0.1:{free_port()}", retry_s=600) as hub:
        with pytest.raises(HubUnavailable, match=r"within 0.2 s|refused"):
            await hub.get_tool(HASH, timeout=0.2)
    assert time.monotonic() - began_s < 300


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
async def test_timeout_that_is_none_is_refused_before_anything_is_sent(timeout_s: float) -> None:
    async with connect(f"127.0.0.1:{free_port()}") as hub:
        with pytest.raises(ValueError, match="give seconds above 0, or None"):
            await hub.invoke(HASH, {"text": ""}, timeout=timeout_s)
        with pytest.raises(ValueError, match="give seconds above 0, or None"):
            await hub.put_artifact(b"hello", timeout=timeout_s)


def test_client_without_asyncio_takes_the_same_timeouts() -> None:
    with connect_sync(f"127.0.0.1:{free_port()}", retry_s=600) as hub:
        for call in (hub.search, hub.get_tool, hub.get_job, hub.invoke, hub.submit_job):
            with pytest.raises(HubUnavailable):
                call("core/none", timeout=0.1)
