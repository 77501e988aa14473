"""Calls when the hub, n8n or the connection between them fails: found again or reported as unknown, and begun once."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.n8n_hub import JOB_S, POLICY, at_work, evidence, history, made, n8n_hub, sources, state
from tests.acceptance.real_n8n import RealN8n
from tests.hub import channel_to, request
from tests.processes import served
from tests.rpc.real_servers import write_sources
from tests.rpc.severable_proxy import wire_to
from toolhub.v1 import error_pb2, job_pb2, result_pb2
from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMPATIENT = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.2", "TOOLHUB_JOBS_DEAD_AFTER_S": "1"}
"""A dead hub is noticed within seconds."""
NOT_YET = {error_pb2.ERROR_KIND_TOOL_NOT_FOUND, error_pb2.ERROR_KIND_TOOL_UNAVAILABLE}
"""What a hub says that has not read its sources."""


class HubClient:
    """A client of a hub in a process of its own."""

    def __init__(self, channel: Any) -> None:
        self._tools: Any = ToolServiceStub(channel)
        self._jobs: Any = JobServiceStub(channel)

    async def begin(self, args: dict[str, Any]) -> str:
        async with asyncio.timeout(JOB_S):
            while True:
                result = (await self._tools.Invoke(request("flows/work", args), timeout=JOB_S)).result
                if result.ok:
                    return str(result.job.job_id)
                assert result.error.kind in NOT_YET, result.error
                await asyncio.sleep(0.2)

    async def history(self, job_id: str, *, until_it_runs: bool = False) -> list[job_pb2.JobStatus]:
        entries = []
        async for answer in self._jobs.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=JOB_S):
            entries.append(answer.status)
            if until_it_runs and state(answer.status) == "RUNNING" and answer.status.progress.message:
                break
        return entries


def prepared(home: Path, n8n: RealN8n) -> Path:
    folder = write_sources(home, sources(n8n)).parent
    (folder / "policy.yaml").write_text(POLICY)
    return folder


async def test_hub_that_was_killed_takes_its_job_up_again(tmp_path: Path, n8n: RealN8n) -> None:
    folder, before = prepared(tmp_path, n8n), len(await n8n.executions("hub-async"))
    args = {"seconds": 8, "n": "killed"}
    async with served(folder, environment=IMPATIENT) as first, channel_to(first.address) as channel:
        agent = HubClient(channel)
        job_id = await agent.begin(args)
        await agent.history(job_id, until_it_runs=True)
        first.signal(signal.SIGKILL)
        await first.process.wait()
    assert await still_at_work(n8n)
    async with served(folder, environment=IMPATIENT) as second, channel_to(second.address) as channel:
        end = (await HubClient(channel).history(job_id))[-1]
    assert made(end)["echo"] == args
    assert len(await n8n.executions("hub-async")) == before + 1


async def still_at_work(n8n: RealN8n) -> bool:
    """Whether the newest execution goes on."""
    (newest, *_) = await n8n.executions("hub-async")
    return str(newest["status"]) == "running"


async def cut_off(n8n: RealN8n, home: Path, tool: str, webhook: str) -> result_pb2.ToolResult:
    """The result of a call whose connection broke after n8n had begun; begun once, whatever it is."""
    before = len(await n8n.executions(webhook))
    async with wire_to(n8n.url) as wire, n8n_hub(home, n8n, wire.url) as hub:
        asked = asyncio.create_task(hub.invoke(tool, {"n": "answer lost"}))
        await n8n.began(webhook, before + 1)
        wire.cut()
        wire.mend()
        result = await asked
    assert len(await n8n.executions(webhook)) == before + 1
    return result


async def test_a_lost_answer_is_found_by_its_key_and_reported(tmp_path: Path, n8n: RealN8n) -> None:
    result = await cut_off(n8n, tmp_path, "flows/slow", "own-slow")
    assert result.ok, result.error
    assert json.loads(result.result_json) == {"echo": {"n": "answer lost"}}
    assert evidence(result)["looked_up"] == "true"


async def test_lost_answer_that_n8n_has_not_kept_is_not_made_up(tmp_path: Path, n8n: RealN8n) -> None:
    """A Respond node's data are the request; what it answered is nowhere."""
    result = await cut_off(n8n, tmp_path, "flows/respond", "hub-wait")
    assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
    assert "ended with success" in result.error.message
    assert "headers" not in str(result)


async def test_job_whose_start_was_never_confirmed_is_found_and_followed(tmp_path: Path, n8n: RealN8n) -> None:
    before = len(await n8n.executions("own-accepts-late"))
    async with wire_to(n8n.url) as wire, n8n_hub(tmp_path, n8n, wire.url) as hub:
        result = await hub.invoke("flows/accepts_late", {"n": "start lost"})
        await n8n.began("own-accepts-late", before + 1)
        wire.cut()
        wire.mend()
        end = (await history(hub, result.job.job_id))[-1]
    assert made(end)["echo"] == {"n": "start lost"}
    assert len(await n8n.executions("own-accepts-late")) == before + 1


async def test_work_that_died_with_n8n_is_not_reported_as_done(tmp_path: Path, n8n: RealN8n) -> None:
    before = len(await n8n.executions("hub-async"))
    async with n8n_hub(tmp_path, n8n) as hub:
        result = await hub.invoke("flows/work", {"seconds": 50, "n": "crashed"})
        await at_work(hub, result.job.job_id)
        await n8n.kill()
        await n8n.start()
        end = (await history(hub, result.job.job_id))[-1]
    assert state(end) == "FAILED", end
    assert "crashed" in end.error.message
    assert len(await n8n.executions("hub-async")) == before + 1


async def test_work_that_waits_survives_a_restart_of_n8n(tmp_path: Path, n8n: RealN8n) -> None:
    before, args = len(await n8n.executions("hub-async")), {"seconds": 66, "n": "waits"}
    async with n8n_hub(tmp_path, n8n) as hub:
        result = await hub.invoke("flows/work", args, budget={"timeout_s": 110.0})
        await at_work(hub, result.job.job_id)
        await n8n.kill()
        await n8n.start()
        end = (await history(hub, result.job.job_id))[-1]
    assert made(end)["echo"] == args
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
