"""Workflows of n8n that go on, as jobs of a whole hub: watched, cancelled, lost, found after a death; once each."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.n8n import FakeN8n, How, fake_n8n
from tests.hub import channel_to
from tests.overtaken import overtaken
from tests.processes import served
from tests.rpc.job_client import has_message, state
from tests.rpc.n8n_hub import ASYNC, POLICY, SOURCE, WITHIN_S, Agent, entry, facts, flows_hub, n8n_hub
from tests.rpc.real_servers import write_sources
from tests.unit.adapters.n8n.flows import FLOWS
from toolhub.v1 import error_pb2, job_pb2
from toolhub.v1.registry_service_pb2 import RefreshSourcesRequest
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub

IMPATIENT = {"jobs": {"heartbeat_s": 0.1, "dead_after_s": 0.5}}
"""A dead process is noticed within a second."""
BRISK = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "0.5"}


ONCE = ({"echo": {"a": 1}}, 1)


def _made(n8n: FakeN8n, end: job_pb2.JobStatus, workflow: str = "long") -> tuple[Any, int]:
    """What a job that succeeded made, and how often n8n began."""
    assert state(end) == "SUCCEEDED", end.result.error.message
    return json.loads(end.result.result_json), n8n.starts(workflow)


async def test_a_job_is_watched_from_its_start_to_its_end(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):
        job_id = await agent.begin("long", {"a": 1})
        await agent.reported(job_id, "running")
        n8n.release(1)
        history = await agent.ended(job_id)
        assert _made(n8n, history[-1]) == ONCE
        first = history[0].sequence
        assert [status.sequence for status in history] == list(range(first, first + len(history)))
        known = facts(history[-1])
        assert (known["execution_id"], known["workflow_id"], known["execution_status"]) == ("1", "long", "success")
        assert known["workflow_version"] == n8n.workflows["long"].version_id


async def test_a_waiting_job_is_running_and_states_until_when_it_waits(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"patient": ASYNC}) as (n8n, _, agent):
        job_id = await agent.begin("patient", {"a": 1})
        history = await agent.reported(job_id, "waiting until 20")
        assert state(history[-1]) == "RUNNING"
        n8n.release(1)
        assert _made(n8n, (await agent.ended(job_id))[-1], "patient") == ONCE


@pytest.mark.promise("workflow.cancel-is-confirmed", "jobs.cancel-is-a-request")
async def test_a_job_is_cancelling_until_n8n_has_stopped_it(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):
        job_id = await agent.begin("long")
        await agent.reported(job_id, "running")
        fault = n8n.fails("/api/v1/executions/*/stop", How.STALL)
        assert await agent.cancel(job_id) == "CANCELLING"
        await n8n.was_asked("POST", "/api/v1/executions/1/stop")
        fault.let_go()
        end = (await agent.ended(job_id))[-1]
        assert (state(end), end.result.error.kind) == ("CANCELLED", error_pb2.ERROR_KIND_CANCELLED)
        assert n8n.executions[1].status == "canceled"


@pytest.mark.promise("workflow.cancel-is-confirmed", "jobs.cancel-is-a-request")
async def test_an_older_n8n_cannot_stop_the_execution_and_the_outcome_states_it(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}, version="2.8.4") as (n8n, _, agent):
        job_id = await agent.begin("long", {"a": 1})
        await agent.reported(job_id, "running")
        assert await agent.cancel(job_id) == "CANCELLING"
        await agent.reported(job_id, "cannot stop it")
        n8n.release(1)
        assert _made(n8n, (await agent.ended(job_id))[-1]) == ONCE


@pytest.mark.promise("workflow.never-false-done", "jobs.lost-is-honest")
async def test_an_execution_forgotten_by_n8n_is_lost_and_states_where_to_look(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):
        job_id = await agent.begin("long")
        await agent.reported(job_id, "running")
        n8n.executions.forget()
        end = (await agent.ended(job_id))[-1]
        assert (state(end), end.result.error.kind) == ("LOST", error_pb2.ERROR_KIND_OUTCOME_UNKNOWN)
        assert n8n.url in end.result.error.message
        assert n8n.starts("long") == 1


async def test_a_crash_of_n8n_is_a_failure_of_the_job(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):
        job_id = await agent.begin("long")
        await agent.reported(job_id, "running")
        await n8n.restart()
        end = (await agent.ended(job_id))[-1]
        assert (state(end), end.result.error.kind) == ("FAILED", error_pb2.ERROR_KIND_EXECUTION_ERROR)
        assert n8n.starts("long") == 1


@pytest.mark.promise("workflow.never-twice", "jobs.remote-once")
async def test_a_start_whose_answer_is_lost_is_found(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):
        n8n.fails("/webhook/*", How.LOSE_ANSWER)
        job_id = await agent.begin("long", {"a": 1})
        await agent.reported(job_id, "running")
        n8n.release(1)
        assert _made(n8n, (await agent.ended(job_id))[-1]) == ONCE


async def test_a_deadline_ends_it_and_asks_n8n_to_stop(tmp_path: Path) -> None:
    async with flows_hub(tmp_path, {"long": ASYNC}) as (n8n, _, agent):

        async def late(timeout_s: float) -> list[job_pb2.JobStatus]:
            return await agent.ended(await agent.begin("long", budget={"timeout_s": timeout_s}))

        history = await overtaken(late, has_message("running"), first_s=0.5)
        assert state(history[-1]) == "TIMED_OUT"
        assert (await n8n.reached(n8n.starts("long"), "canceled")).status == "canceled"


@pytest.mark.promise("jobs.handed-over")
async def test_a_hub_that_stops_leaves_it_to_the_next_one(tmp_path: Path) -> None:
    async with fake_n8n(workflows=FLOWS, version="2.10.0", time_scale=None) as n8n:
        source = entry(n8n, {"long": ASYNC})
        async with n8n_hub(tmp_path, source, IMPATIENT) as (_, agent):
            job_id = await agent.begin("long", {"a": 1})
            await agent.reported(job_id, "running")
        assert n8n.executions[1].status == "running"
        async with n8n_hub(tmp_path, source, IMPATIENT) as (_, agent):
            n8n.release(1)
            end = (await agent.ended(job_id))[-1]
        assert _made(n8n, end) == ONCE
        assert facts(end)["attached"] == "2"


@pytest.mark.slow
@pytest.mark.promise("workflow.found-again", "workflow.never-twice", "jobs.remote-once")
@pytest.mark.parametrize("moment", ["started", "followed"])
async def test_kill_9_costs_no_second_execution(tmp_path: Path, moment: str) -> None:
    """The hub dies while n8n begins or works; the next one finds the same execution and follows it to its end."""
    async with fake_n8n(workflows=FLOWS, version="2.10.0", time_scale=None) as n8n:
        write_sources(tmp_path, {SOURCE: entry(n8n, {"long": ASYNC})})
        fault = n8n.fails("/webhook/*", How.HOLD) if moment == "started" else None
        async with _process(tmp_path) as (first, process):
            job_id = await first.begin("long", {"a": 1})
            await n8n.began("long")
            if fault is None:
                await first.reported(job_id, "running")
            process.signal(signal.SIGKILL)
            await process.process.wait()
        if fault is not None:
            fault.let_go()
        n8n.release(1)
        async with _process(tmp_path) as (second, _):
            assert _made(n8n, (await second.ended(job_id))[-1]) == ONCE


@asynccontextmanager
async def _process(home: Path) -> AsyncIterator[tuple[Agent, Any]]:
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    environment = {"TOOLHUB_POLICY_FILE": str(policy), **BRISK}
    async with served(home / "hub", environment=environment) as process, channel_to(process.address) as channel:
        registry: Any = RegistryServiceStub(channel)
        asked = RefreshSourcesRequest(sources=[SOURCE])
        (status,) = (await registry.RefreshSources(asked, timeout=WITHIN_S)).sources
        assert not status.message, status.message
        yield Agent(channel), process
