"""Several processes on one SQLite file: `--workers 2`, of which one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tests.hub import OPEN_POLICY, RunningHub, channel_to
from tests.processes import Served, ended, served
from tests.rpc.held_tools import HoldOnce, HoldSafely
from tests.rpc.principals import Client, Status, is_gapless, state, states
from tests.rpc.statuses import failed
from toolhub.v1 import error_pb2, job_pb2

pytestmark = pytest.mark.slow

ONCE, AGAIN = HoldOnce.name, HoldSafely.name
IMPATIENT = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "3", "TOOLHUB_METRICS_LISTEN": ""}
"""A worker that was killed is noticed soon; one that starves for a second or two, not at all."""
CONNECTIONS = 12
"""So many that the kernel gives some to either worker."""


class WorkersHarness:
    """Two workers, and clients over connections of their own."""

    def __init__(self, running: Served, clients: Sequence[Client], folder: Path) -> None:
        self.running, self.clients, self._folder = running, clients, folder

    def args(self, name: str) -> dict[str, str]:
        return {"until": str(self._folder / name)}

    def let_go(self, name: str) -> None:
        (self._folder / name).touch()

    async def submitted(self, tool: str, name: str) -> dict[int, list[job_pb2.Job]]:
        """A job of each client, by the process that runs it."""
        jobs = await asyncio.gather(*(client.submit(tool, self.args(name)) for client in self.clients))
        pids = await asyncio.gather(*(self.runner(job) for job in jobs))
        return {pid: [job for job, its in zip(jobs, pids, strict=True) if its == pid] for pid in pids}

    async def runner(self, job: job_pb2.Job) -> int:
        seen = await self.clients[0].seen(job.job_id, lambda entry: entry.progress.message != "")
        return int(seen[-1].progress.message)


@pytest.fixture
def config(tmp_path: Path) -> str:
    policy, config = tmp_path / "policy.yaml", tmp_path / "toolhub.yaml"
    policy.write_text(OPEN_POLICY)
    custom = [{"tool": f"tests.rpc.held_tools:{each.__name__}"} for each in (HoldOnce, HoldSafely)]
    tools = {"trusted_namespaces": ["tests.rpc"], "custom": custom}
    config.write_text(json.dumps({"policy": {"file": str(policy)}, "tools": tools}))
    return str(config)


@pytest.fixture
async def harness(tmp_path: Path, config: str) -> AsyncIterator[WorkersHarness]:
    async with (
        served(tmp_path / "hub", "--config", config, "--workers", "2", environment=IMPATIENT) as running,
        AsyncExitStack() as channels,
    ):
        clients = [await _client(running.address, channels) for _ in range(CONNECTIONS)]
        yield WorkersHarness(running, clients, tmp_path)


async def _client(address: str, channels: AsyncExitStack) -> Client:
    channel = await channels.enter_async_context(channel_to(address))
    return Client(RunningHub(cast(Any, None), address, channel))


async def test_jobs_and_keys_are_those_of_all_workers(harness: WorkersHarness) -> None:
    jobs = await harness.submitted(AGAIN, "first")
    assert len(jobs) == 2, "one worker answered everything"
    (job, *_), (other, *_) = jobs.values()
    followed = [asyncio.create_task(client.ended(job.job_id, 1)) for client in harness.clients]
    for client in harness.clients:
        assert (await client.page()).total_size == CONNECTIONS
    cancelled = [await client.cancel(other.job_id) for client in harness.clients]
    assert cancelled[0] == "CANCELLING"
    assert set(cancelled) <= {"CANCELLING", "CANCELLED"}
    assert states(await harness.clients[0].ended(other.job_id))[-1] == "CANCELLED"
    harness.let_go("first")
    histories = await asyncio.gather(*followed)
    assert all(is_gapless(history) and history == histories[0] for history in histories)
    assert state(histories[0][-1]) == "SUCCEEDED"

    calls = [
        asyncio.create_task(client.call(ONCE, harness.args("second"), idempotency_key="k-1", request_id="work"))
        for client in harness.clients
    ]
    conflict = await harness.clients[0].submit(ONCE, harness.args("third"), idempotency_key="k-1")
    assert (await harness.clients[1].ended(conflict.job_id))[-1].error.kind == error_pb2.ERROR_KIND_IDEMPOTENCY_CONFLICT
    harness.let_go("second")
    answers = await asyncio.gather(*calls)
    assert all(answer.ok for answer in answers)
    assert [answer.replayed for answer in answers].count(False) == 1
    assert len({answer.result_json for answer in answers}) == 1
    same = await asyncio.gather(
        *(client.submit(ONCE, harness.args("second"), idempotency_key="k-2") for client in harness.clients)
    )
    assert len({each.job_id for each in same}) == 1
    refused = await failed(harness.clients[-1].submit(ONCE, harness.args("third"), idempotency_key="k-2"))
    assert refused.code is grpc.StatusCode.ABORTED


async def test_jobs_of_a_worker_that_is_killed_are_taken_over_or_lost(harness: WorkersHarness) -> None:
    safe, unsafe = await harness.submitted(AGAIN, "go"), await harness.submitted(ONCE, "go")
    assert set(safe) == set(unsafe) == set(harness.running.children())
    victim, survivor = safe
    watched = {job.job_id: await _followed(harness.clients[0], job) for job in safe[victim]}
    os.kill(victim, signal.SIGKILL)
    await ended(victim)
    async with AsyncExitStack() as channels:
        fresh = await _client(harness.running.address, channels)
        for job in safe[victim]:
            entries = watched[job.job_id]
            entries += await fresh.seen(
                job.job_id, lambda entry: _is_run_by_another(entry, victim), entries[-1].sequence
            )
        harness.let_go("go")
        for job in safe[victim]:
            entries = watched[job.job_id]
            entries += await fresh.ended(job.job_id, entries[-1].sequence)
            assert is_gapless(entries)
            assert states(entries)[-1] == "SUCCEEDED"
            assert json.loads(entries[-1].result.result_json)["pid"] != victim
        for job in unsafe[victim]:
            last = (await fresh.ended(job.job_id))[-1]
            assert (state(last), last.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
        for job in (*safe[survivor], *unsafe[survivor]):
            last = (await fresh.ended(job.job_id))[-1]
            assert (state(last), json.loads(last.result.result_json)) == ("SUCCEEDED", {"pid": survivor})


@pytest.mark.promise("jobs.next-hub-at-once")
async def test_jobs_of_a_killed_hub_go_on_with_the_next_one_without_waiting_for_its_silence(
    tmp_path: Path, config: str
) -> None:
    patient = {"TOOLHUB_JOBS_DEAD_AFTER_S": "600", "TOOLHUB_METRICS_LISTEN": ""}
    arguments, held = ("--config", config), {"until": str(tmp_path / "go")}
    async with AsyncExitStack() as channels:
        async with served(tmp_path / "hub", *arguments, environment=patient) as running:
            client = await _client(running.address, channels)
            safe, unsafe = await client.submit(AGAIN, held), await client.submit(ONCE, held)
            seen = await _followed(client, safe)
            await _followed(client, unsafe)
            pid = running.process.pid
            running.signal(signal.SIGKILL)
            await running.process.wait()
        async with served(tmp_path / "hub", *arguments, environment=patient) as running:
            client = await _client(running.address, channels)
            seen += await client.seen(safe.job_id, lambda entry: _is_run_by_another(entry, pid), seen[-1].sequence)
            assert is_gapless(seen)
            assert state((await client.ended(unsafe.job_id))[-1]) == "LOST"
            (tmp_path / "go").touch()
            assert state((await client.ended(safe.job_id))[-1]) == "SUCCEEDED"


async def _followed(client: Client, job: job_pb2.Job) -> list[Status]:
    """Its history so far."""
    return await client.seen(job.job_id, lambda entry: entry.progress.message != "")


def _is_run_by_another(entry: Status, victim: int) -> bool:
    return entry.progress.message not in ("", str(victim))
