"""Many calls of one connection at once, and calls that end early: what a hub asks of a server reaches it, both
generations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from tests.hub import RunningHub, request
from tests.overtaken import overtaken
from tests.rpc import real_servers as real
from tests.unit.adapters.mcp.links import PYTHON_PATH, ROOT, plain_http
from toolhub.v1 import error_pb2
from toolhub.v1 import job_service_pb2 as jobs_pb
from toolhub.v1 import tool_service_pb2 as pb
from toolhub.v1.job_state_pb2 import JobState

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PLAIN = ("plain_stdio", "plain_http", "plain_http_legacy")
"""Servers of tests that count what was cancelled; the first two speak the generation of 2026."""
ALL_AT_ONCE: dict[str, Any] = {"max_concurrency": 100}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    home: Path = tmp_path_factory.mktemp("work")
    async with AsyncExitStack() as servers:
        everything = await servers.enter_async_context(real.everything_over_http())
        modern = await servers.enter_async_context(plain_http())
        legacy = await servers.enter_async_context(plain_http("--generation", "2025-11-25"))
        own = real.program(sys.executable, "-m", "tests.fakes.mcp_servers.plain", cwd=str(ROOT))
        sources = {
            "stdio": real.everything(**ALL_AT_ONCE),
            "http": {"url": everything.url, **ALL_AT_ONCE},
            "plain_stdio": {**own, "env": {"PYTHONPATH": PYTHON_PATH}, **ALL_AT_ONCE},
            "plain_http": {"url": modern.url, **ALL_AT_ONCE},
            "plain_http_legacy": {"url": legacy.url, **ALL_AT_ONCE},
        }
        yield await servers.enter_async_context(real.sourced_hub(home, sources))


def connects(hub: RunningHub, source: str) -> int:
    """How many connections to it have stood."""
    life: Any = hub.hub.sourcing.sources._controllers[source]
    return int(life._source._server.link.connects)


@pytest.mark.parametrize(
    ("source", "tool", "name"),
    [
        ("stdio", "echo", "message"),
        ("http", "echo", "message"),
        ("plain_stdio", "echo", "text"),
        ("plain_http", "echo", "text"),
        ("plain_http_legacy", "echo", "text"),
    ],
)
async def test_a_hundred_calls_at_once_on_one_connection_get_their_own_answers(
    hub: RunningHub, source: str, tool: str, name: str
) -> None:
    results = await asyncio.gather(*(hub.invoke(f"{source}/{tool}", {name: f"<{number}>"}) for number in range(100)))
    for number, result in enumerate(results):
        assert result.ok, result.error.message
        assert f"<{number}>" in result.result_json.decode()
    assert connects(hub, source) == 1


@pytest.mark.parametrize("source", ["stdio", "http"])
async def test_a_hundred_long_calls_run_side_by_side_and_each_sees_its_own_progress(
    hub: RunningHub, source: str
) -> None:
    """One after another they would take longer than a test may. Of progress a busy hub may leave out what is past."""

    async def one(number: int) -> list[tuple[float, float]]:
        args = {"duration": 1.0, "steps": 1 + number % 5}
        asked = request(f"{source}/trigger-long-running-operation", args, message=pb.InvokeStreamRequest)
        messages = [message async for message in hub.stub.InvokeStream(asked, timeout=real.WITHIN_S)]
        assert messages[-1].result.ok, messages[-1].result.error.message
        return [(each.progress.step, each.progress.total) for each in messages if each.HasField("progress")]

    async with asyncio.timeout(50):
        seen = await asyncio.gather(*(one(number) for number in range(100)))
    for number, progress in enumerate(seen):
        total = 1 + number % 5
        assert progress
        assert progress == sorted(set(progress) & {(step, total) for step in range(1, total + 1)})
    assert connects(hub, source) == 1


async def sleeps(hub: RunningHub, source: str, fate: str) -> int:
    """How many sleeps of the server have `begun`, or were `cancelled`."""
    return int((await hub.value(f"{source}/{fate}"))["result"])


async def until(hub: RunningHub, source: str, fate: str, count: int) -> None:
    async with asyncio.timeout(60):
        while await sleeps(hub, source, fate) < count:  # noqa: ASYNC110 - what a server counts has no event here
            await asyncio.sleep(0.01)


@pytest.mark.promise("mcp.deadline-reaches-the-server")
@pytest.mark.parametrize("source", PLAIN)
async def test_a_deadline_reaches_the_server(hub: RunningHub, source: str) -> None:
    before = await sleeps(hub, source, "cancelled")

    async def late(timeout_s: float) -> bool:
        """Whether the server had begun."""
        begun = await sleeps(hub, source, "begun")
        result = await hub.invoke(f"{source}/sleep", {"seconds": 30}, budget={"timeout_s": timeout_s})
        assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
        return await sleeps(hub, source, "begun") > begun

    await overtaken(late, bool, first_s=0.4)
    await until(hub, source, "cancelled", before + 1)
    assert connects(hub, source) == 1


@pytest.mark.promise("mcp.deadline-reaches-the-server")
@pytest.mark.parametrize("source", PLAIN)
async def test_a_cancelled_call_reaches_the_server(hub: RunningHub, source: str) -> None:
    begun, before = await sleeps(hub, source, "begun"), await sleeps(hub, source, "cancelled")
    call = hub.stub.Invoke(request(f"{source}/sleep", {"seconds": 30}), timeout=real.WITHIN_S)
    await until(hub, source, "begun", begun + 1)
    call.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await call
    assert call.cancelled()
    await until(hub, source, "cancelled", before + 1)


@pytest.mark.promise("mcp.deadline-reaches-the-server")
@pytest.mark.parametrize("source", PLAIN)
async def test_a_cancelled_job_reaches_the_server(hub: RunningHub, source: str) -> None:
    begun, before = await sleeps(hub, source, "begun"), await sleeps(hub, source, "cancelled")
    job = await hub.submit(f"{source}/sleep", {"seconds": 30})
    await until(hub, source, "begun", begun + 1)
    await hub.jobs.CancelJob(jobs_pb.CancelJobRequest(job_id=job.job_id), timeout=real.WITHIN_S)
    last = (await hub.watched(job.job_id))[-1]
    assert JobState.Name(last.state) == "JOB_STATE_CANCELLED"
    await until(hub, source, "cancelled", before + 1)
