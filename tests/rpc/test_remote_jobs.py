"""Work on a remote side, through a whole hub: followed, cancelled, lost, taken over after a death; once each."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.job_server import JobServer, job_server
from tests.fakes.job_server_faults import How, Op
from tests.hub import channel_to, request
from tests.overtaken import overtaken
from tests.rpc.job_client import JobClient, has_message, state
from tests.rpc.remote_hub import TOOL, HubProcess, remote_hub
from toolhub.v1 import error_pb2, job_pb2
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub

HELD = {"holds": True, "result": "made"}
WITHIN_S = 60.0


class RemoteJobClient(JobClient):
    """A client."""

    async def begin(self, work: dict[str, Any] | None = None, **fields: Any) -> str:
        """Invoke it like any tool; the id of the job that it becomes."""
        tools: Any = ToolServiceStub(self.channel)
        answer = await tools.Invoke(request(TOOL.name, work or HELD, **fields), timeout=WITHIN_S)
        assert answer.result.ok, answer.result.error.message
        return str(answer.result.job.job_id)

    async def works(self, job_id: str) -> None:
        """Wait until the remote side has reported progress."""
        await self.seen(job_id, lambda status: status.progress.message.startswith("step"))


def _check_made(server: JobServer, end: job_pb2.JobStatus) -> None:
    """Done, once, and reported truthfully."""
    assert state(end) == "SUCCEEDED", end.error.message
    assert json.loads(end.result.result_json) == {"value": "made"}
    assert [task.state for task in server.memory.tasks.values()] == ["succeeded"]
    assert list(server.effects.values()) == [1]


@asynccontextmanager
async def _hub(folder: Path, server: JobServer) -> AsyncIterator[RemoteJobClient]:
    async with remote_hub(folder, server.url) as running:
        yield RemoteJobClient(running.channel)


@pytest.fixture
async def server() -> AsyncIterator[JobServer]:
    async with job_server() as server:
        yield server


@pytest.fixture
async def agent(tmp_path: Path, server: JobServer) -> AsyncIterator[RemoteJobClient]:
    async with _hub(tmp_path, server) as agent:
        yield agent


async def test_invoking_it_begins_a_job_that_is_followed_to_its_end(agent: RemoteJobClient, server: JobServer) -> None:
    job_id = await agent.begin({"steps": 3, "result": "made"})
    history = await agent.ended(job_id)
    _check_made(server, history[-1])
    first, last = history[0].sequence, history[-1].sequence
    assert [entry.sequence for entry in history] == list(range(first, last + 1))
    evidence = [dict(proof.attributes) for proof in history[-1].result.evidence]
    assert any(attributes.get("remote_id") == "r-1" for attributes in evidence)


@pytest.mark.promise("jobs.cancel-is-a-request")
async def test_a_job_is_cancelling_until_the_remote_side_has_stopped(agent: RemoteJobClient, server: JobServer) -> None:
    job_id = await agent.begin({**HELD, "stops_after": 5})
    await agent.works(job_id)
    assert await agent.cancel(job_id) == "CANCELLING"
    history = await agent.ended(job_id)
    assert state(history[-1]) == "CANCELLED"
    assert [task.state for task in server.memory.tasks.values()] == ["cancelled"]
    assert any(
        "waiting for its confirmation" in entry.progress.message for entry in history if state(entry) == "CANCELLING"
    )


@pytest.mark.promise("jobs.cancel-is-a-request")
async def test_a_job_that_could_not_be_stopped_still_succeeds(agent: RemoteJobClient, server: JobServer) -> None:
    server.script.add(Op.CANCEL, How.IGNORE)
    job_id = await agent.begin()
    await agent.works(job_id)
    assert await agent.cancel(job_id) == "CANCELLING"
    await server.was_asked(Op.CANCEL)
    server.let_go.set()
    _check_made(server, (await agent.ended(job_id))[-1])


@pytest.mark.promise("jobs.lost-is-honest")
async def test_a_forgotten_remote_job_is_lost_and_states_where_to_look(
    agent: RemoteJobClient, server: JobServer
) -> None:
    server.script.add(Op.STATUS, How.RESTART)
    end = (await agent.ended(await agent.begin()))[-1]
    assert state(end) == "LOST"
    assert end.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
    assert server.url in end.error.message
    assert "Check it there" in end.error.message


async def test_a_deadline_ends_it_and_asks_the_remote_side_to_stop(agent: RemoteJobClient, server: JobServer) -> None:
    async def late(timeout_s: float) -> list[job_pb2.JobStatus]:
        return await agent.ended(await agent.begin(budget={"timeout_s": timeout_s}))

    history = await overtaken(late, has_message("step"), first_s=0.5)
    assert state(history[-1]) == "TIMED_OUT"
    assert list(server.memory.tasks.values())[-1].state == "cancelling"


@pytest.mark.promise("jobs.handed-over")
async def test_a_hub_that_stops_leaves_it_to_the_next_one(tmp_path: Path, server: JobServer) -> None:
    async with _hub(tmp_path, server) as agent:
        job_id = await agent.begin()
        await agent.works(job_id)
    assert server.asked[Op.CANCEL] == 0
    async with _hub(tmp_path, server) as agent:
        server.let_go.set()
        history = await agent.ended(job_id)
    _check_made(server, history[-1])
    assert server.asked[Op.START] == 1


async def test_the_next_hub_waits_for_the_confirmation_that_the_last_one_waited_for(
    tmp_path: Path, server: JobServer
) -> None:
    server.script.add(Op.CANCEL, How.IGNORE)
    async with _hub(tmp_path, server) as agent:
        job_id = await agent.begin()
        await agent.works(job_id)
        assert await agent.cancel(job_id) == "CANCELLING"
        await server.was_asked(Op.CANCEL)
    async with _hub(tmp_path, server) as agent:
        history = await agent.ended(job_id)
    assert server.asked[Op.CANCEL] == 2
    assert state(history[-1]) == "CANCELLED"
    assert [task.state for task in server.memory.tasks.values()] == ["cancelled"]


@pytest.mark.parametrize("op", [Op.START, Op.STATUS, Op.RESULT], ids=lambda op: op.value)
@pytest.mark.promise("jobs.remote-once")
async def test_kill_9_while_an_answer_is_under_way_costs_no_second_effect(
    tmp_path: Path, server: JobServer, op: Op
) -> None:
    server.script.add(op, How.HOLD)
    hub = HubProcess(tmp_path, server.url)
    try:
        await hub.start()
        async with channel_to(hub.address) as channel:
            job_id = await RemoteJobClient(channel).begin({"result": "made"})
            await asyncio.wait_for(server.was_asked(op), WITHIN_S)
        await hub.end(signal.SIGKILL)
        await hub.start()
        async with channel_to(hub.address) as channel:
            history = await RemoteJobClient(channel).ended(job_id)
        await hub.end(signal.SIGTERM)
    finally:
        await hub.end(signal.SIGKILL)
    _check_made(server, history[-1])
    assert server.asked[Op.START] == 1
