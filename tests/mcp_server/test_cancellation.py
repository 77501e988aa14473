"""A call that its client gives up, in each way: the server that works on it stops, and it is on record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.mcp_servers.scripted import Script, serving
from tests.hub import OPEN_POLICY
from tests.mcp_server.mcp_hub import HeldTool, McpHub, mcp_hub
from tests.mcp_server.wire import NEWER, OLDER, Wire, wire
from tests.rpc.real_servers import POLICY, write_sources
from toolhub_service.domain.event import EventType
from toolhub_service.domain.job import JobFilter
from toolhub_service.domain.result import JobState
from toolhub_service.mcp_server import calling

TOOL = "work__hangs"


async def cancelled_by_notification(client: Wire, script: Script) -> None:
    calling = asyncio.create_task(client.call(TOOL))
    await script.started.wait()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": next(client.ids) - 1}}
    await client.http.post(client.url, json=cancelled, headers=client.headers)
    await script.stopped.wait()
    calling.cancel()
    await asyncio.wait({calling})


async def gone(client: Wire, script: Script) -> None:
    calling = asyncio.create_task(client.call(TOOL))
    await script.started.wait()
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling


async def cancelled_as_a_task(client: Wire, script: Script) -> None:
    task = (await client.call(TOOL, task={}))["task"]
    await script.started.wait()
    cancelled = await client.result("tasks/cancel", {"taskId": task["taskId"]})
    assert cancelled["status"] == "cancelled"
    over = await client.result("tasks/result", {"taskId": task["taskId"]})
    assert over["_meta"]["toolhub/error"]["kind"] == "CANCELLED"


CANCELLATIONS: list[tuple[str, Callable[[Wire, Script], Awaitable[None]]]] = [
    (OLDER, cancelled_by_notification),
    (NEWER, gone),
    (OLDER, cancelled_as_a_task),
]


@pytest.mark.promise("mcpserver.cancellation")
async def test_a_call_given_up_in_any_way_stops_its_server_and_is_recorded(tmp_path: Path) -> None:
    script = Script(generation="modern")
    async with serving(script) as url:
        write_sources(tmp_path, {"work": {"url": url}})
        async with mcp_hub(tmp_path, policy=POLICY) as hub:
            assert await hub.grpc.hub.sourcing.sources.wait_until_tried(timeout_s=60)
            for count, (era, way) in enumerate(CANCELLATIONS, 1):
                script.started.clear()
                script.stopped.clear()
                async with asyncio.timeout(60), wire(hub.url, era) as client:
                    await way(client, script)
                    await script.stopped.wait()
                assert script.cancelled == ["hangs"] * count
                async with asyncio.timeout(60):  # the client that went does not wait for the record
                    while (outcomes := await outcomes_of(hub)).count("CANCELLED") < count:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert set(outcomes) <= {"CANCELLED", "ok"}, way.__name__  # ok: the job was accepted


async def outcomes_of(hub: McpHub) -> list[str]:
    events = await hub.grpc.events(types=frozenset({EventType.TOOL_RESULT}), tool="work/hangs")
    return [event.event.outcome for event in events]


async def test_a_client_that_goes_before_it_knows_its_task_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "_PATIENCE_S", 60.0)
    working = HeldTool()
    async with mcp_hub(tmp_path, policy=OPEN_POLICY, tools=[working]) as hub, wire(hub.url, NEWER) as client:
        held = asyncio.create_task(client.call("held__work_on"))
        await working.begun.wait()
        held.cancel()
        async with asyncio.timeout(60):
            await working.ended.wait()
        jobs = hub.grpc.hub.long_work.stores.jobs
        ((job,), _) = await jobs.page(JobFilter(), after=None, limit=2)
        over = [status async for status in hub.grpc.hub.long_work.watch.watch(job, 0, from_first=True)][-1]
        assert over.state is JobState.CANCELLED
        job_now = await jobs.get(job.job_id)
        assert job_now is not None
        assert job_now.cancel_reason == "The client gave the call up."
