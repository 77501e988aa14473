"""What a job comes to when the hub or n8n dies under it: taken up again, or told truly; never begun twice."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.n8n_hub import JOB_S, POLICY, n8n_hub, sources, state
from tests.acceptance.real_n8n import RealN8n
from tests.hub import channel_to, request
from tests.processes import Served, served
from tests.rpc.real_servers import write_sources
from toolhub.v1 import error_pb2, job_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.job_state_pb2 import JobState
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMPATIENT = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.2", "TOOLHUB_JOBS_DEAD_AFTER_S": "1"}
"""A dead hub is noticed within seconds."""
UNSTARTED = {error_pb2.ERROR_KIND_TOOL_NOT_FOUND, error_pb2.ERROR_KIND_TOOL_UNAVAILABLE}


async def begun(hub: Served, args: dict[str, Any]) -> str:
    """Begin `flows/work`; a hub that has just started may not know it yet."""
    async with channel_to(hub.address) as channel, asyncio.timeout(JOB_S):
        tools: Any = ToolServiceStub(channel)
        while True:
            result = (await tools.Invoke(request("flows/work", args), timeout=JOB_S)).result
            if result.ok:
                return str(result.job.job_id)
            assert result.error.kind in UNSTARTED, result.error
            await asyncio.sleep(0.2)


async def history(hub: Served, job_id: str) -> list[job_pb2.JobStatus]:
    async with channel_to(hub.address) as channel:
        jobs: Any = JobServiceStub(channel)
        watch = jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
        return [answer.status async for answer in watch]


async def until_running(hub: Served, job_id: str) -> None:
    async with channel_to(hub.address) as channel:
        jobs: Any = JobServiceStub(channel)
        watch = jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S)
        async for answer in watch:
            if answer.status.state == JobState.JOB_STATE_RUNNING and answer.status.progress.message:
                watch.cancel()
                return


def prepared(home: Path, n8n: RealN8n) -> Path:
    folder = write_sources(home, sources(n8n)).parent
    (folder / "policy.yaml").write_text(POLICY)
    return folder


async def test_hub_that_was_killed_takes_its_job_up_again(tmp_path: Path, n8n: RealN8n) -> None:
    folder, before = prepared(tmp_path, n8n), len(await n8n.executions("hub-async"))
    async with served(folder, environment=IMPATIENT) as first:
        job_id = await begun(first, {"seconds": 8, "n": "killed"})
        await until_running(first, job_id)
        first.signal(signal.SIGKILL)
        await first.process.wait()
    async with served(folder, environment=IMPATIENT) as second:
        end = (await history(second, job_id))[-1]
    assert state(end) == "SUCCEEDED", end.error
    assert json.loads(end.result.result_json)["echo"] == {"seconds": 8, "n": "killed"}
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_work_that_died_with_n8n_is_not_told_as_done(tmp_path: Path, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    async with n8n_hub(tmp_path, n8n) as hub:
        result = await hub.invoke("flows/work", {"seconds": 50, "n": "crashed"})
        await n8n.kill()
        await n8n.start()
        end = (await hub.watched(result.job.job_id))[-1]
    assert state(end) in {"FAILED", "LOST"}, end
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_work_that_waits_survives_a_restart_of_n8n(tmp_path: Path, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    async with n8n_hub(tmp_path, n8n) as hub:
        result = await hub.invoke("flows/work", {"seconds": 66, "n": "waits"}, budget={"timeout_s": 110.0})
        await n8n.kill()
        await n8n.start()
        watch = hub.jobs.WatchJob(pb.WatchJobRequest(job_id=result.job.job_id), timeout=JOB_S)
        end = [answer.status async for answer in watch][-1]
    assert state(end) == "SUCCEEDED", end.error
    assert json.loads(end.result.result_json)["echo"] == {"seconds": 66, "n": "waits"}
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_n8n_that_is_down_takes_no_work_and_the_call_may_be_repeated(tmp_path: Path, n8n: RealN8n) -> None:
    async with n8n_hub(tmp_path, n8n) as hub:
        await n8n.stop()
        try:
            result = await hub.invoke("flows/last", {"n": "down"})
        finally:
            await n8n.start()
        assert not result.ok
        assert result.error.kind in {error_pb2.ERROR_KIND_TOOL_UNAVAILABLE, error_pb2.ERROR_KIND_NETWORK_ERROR}
        assert result.error.retryable
