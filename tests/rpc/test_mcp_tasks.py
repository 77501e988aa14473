"""Tasks of MCP servers as jobs of a whole hub, in both generations: followed, cancelled, lost, and found after a
death."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_servers.scripted import Script, question, serving
from tests.hub import channel_to
from tests.overtaken import overtaken
from tests.processes import served
from tests.rpc import real_servers as real
from tests.rpc.job_client import JobClient, has_message, state
from toolhub.v1 import error_pb2, job_pb2
from toolhub.v1.registry_service_pb2 import RefreshSourcesRequest
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub

WITHIN_S = 60.0
ENDLESS = 1_000_000_000
GENERATIONS = [("legacy", "long"), ("modern", "perhaps")]
"""With the tool that runs as a task."""
BRISK = {"TOOLHUB_JOBS_HEARTBEAT_S": "0.1", "TOOLHUB_JOBS_DEAD_AFTER_S": "0.5"}


@dataclass
class TaskClient(JobClient):
    """A client of a hub, and the server behind it."""

    script: Script
    tool: str

    async def begin(self, polls: int = ENDLESS, **fields: Any) -> str:
        """As a job; its id, once the server works on it."""
        job_id = await self.submit({"polls": polls, "text": "made"}, **fields)
        await self.seen(job_id, lambda status: status.progress.message.startswith("working"))
        return job_id

    async def submit(self, args: dict[str, Any], tool: str = "", **fields: Any) -> str:
        return await self.submitted(tool or self.tool, args, **fields)

    def lets_go(self) -> None:
        """The server ends its task at one of the next questions."""
        (task,) = self.script.tasks.values()
        task.polls_left = 2


def _check_made(agent: TaskClient, end: job_pb2.JobStatus) -> None:
    """Done, once, and reported truthfully."""
    assert state(end) == "SUCCEEDED", end.result.error.message
    assert json.loads(end.result.result_json) == {"text": "made"}
    assert agent.script.asked.count("tools/call") == 1
    assert agent.script.cancelled == []


@asynccontextmanager
async def an_agent(home: Path, generation: str, tool: str, **terms: Any) -> AsyncIterator[TaskClient]:
    script = Script(generation=generation, has_extension=True)
    async with serving(script) as url:
        sources = {"work": {"url": url, **terms}}
        async with real.sourced_hub(home, sources) as hub:
            yield TaskClient(hub.channel, script, f"work/{tool}")


@pytest.mark.parametrize(("generation", "tool"), GENERATIONS)
async def test_job_follows_its_task_and_brings_its_result(tmp_path: Path, generation: str, tool: str) -> None:
    async with an_agent(tmp_path, generation, tool) as agent:
        history = await agent.ended(await agent.submit({"polls": 3, "text": "made"}))
        _check_made(agent, history[-1])
        messages = [status.progress.message for status in history if status.progress.message]
        assert messages[-1] == "completed: 0 to go"
        assert any(each.ref == "t-1" for each in history[-1].result.evidence)


@pytest.mark.parametrize(("generation", "tool"), GENERATIONS)
async def test_job_is_cancelling_until_the_server_has_stopped(tmp_path: Path, generation: str, tool: str) -> None:
    async with an_agent(tmp_path, generation, tool) as agent:
        agent.script.confirms = False
        job_id = await agent.begin()
        assert await agent.cancel(job_id) == "CANCELLING"
        history = await agent.seen(job_id, lambda _: agent.script.cancelled == ["t-1"])
        assert state(history[-1]) == "CANCELLING"
        agent.script.tasks["t-1"].status = "cancelled"
        end = (await agent.ended(job_id))[-1]
        assert (state(end), end.result.error.kind) == ("CANCELLED", error_pb2.ERROR_KIND_CANCELLED)


@pytest.mark.parametrize(("generation", "tool"), GENERATIONS)
async def test_a_job_whose_task_is_forgotten_is_lost_with_a_reason(tmp_path: Path, generation: str, tool: str) -> None:
    async with an_agent(tmp_path, generation, tool) as agent:
        job_id = await agent.begin()
        agent.script.tasks.clear()
        end = (await agent.ended(job_id))[-1]
        assert state(end) == "LOST"
        assert end.result.error.details["cause"] == "END_UNCLEAR"
        for words in ("no longer knows the task", "t-1", "Check it there"):
            assert words in end.result.error.message


@pytest.mark.parametrize(("generation", "tool"), GENERATIONS)
async def test_deadline_of_the_job_reaches_the_task(tmp_path: Path, generation: str, tool: str) -> None:
    async with an_agent(tmp_path, generation, tool) as agent:

        async def late(timeout_s: float) -> list[job_pb2.JobStatus]:
            return await agent.ended(await agent.submit({"polls": ENDLESS}, budget={"timeout_s": timeout_s}))

        history = await overtaken(late, has_message("working"), first_s=0.6)
        assert state(history[-1]) == "TIMED_OUT"
        assert agent.script.cancelled[-1] == list(agent.script.tasks)[-1]


@pytest.mark.parametrize(("elicitation", "action"), [("defaults", "accept"), ("decline", "decline")])
async def test_task_that_asks_in_the_middle_is_answered_and_goes_on(
    tmp_path: Path, elicitation: str, action: str
) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string", "default": "Ann"}}, "required": ["name"]}
    async with an_agent(tmp_path, "modern", "perhaps", elicitation=elicitation) as agent:
        job_id = await agent.submit({"text": "made", "wants": {"who": question("Who?", form)}})
        _check_made(agent, (await agent.ended(job_id))[-1])
        ((given,),) = [task.given for task in agent.script.tasks.values()]
        assert given["who"]["action"] == action


@pytest.mark.slow
@pytest.mark.promise("jobs.remote-once")
@pytest.mark.parametrize(("generation", "tool"), GENERATIONS)
async def test_job_finds_its_task_again_after_kill_9(tmp_path: Path, generation: str, tool: str) -> None:
    """The hub dies while the server works; the next one follows the same task to its end."""
    script = Script(generation=generation, has_extension=True)
    async with serving(script) as url:
        real.write_sources(tmp_path, {"work": {"url": url}})
        async with _process(tmp_path, script, tool) as (first, process):
            await _offers(first)
            job_id = await first.begin(idempotency_key="once")
            process.signal(signal.SIGKILL)
            await process.process.wait()
        async with _process(tmp_path, script, tool) as (second, _):
            second.lets_go()
            end = (await second.ended(job_id))[-1]
            _check_made(second, end)
            again = await second.submit({"polls": ENDLESS, "text": "made"}, idempotency_key="once")
            assert (again, script.asked.count("tools/call")) == (job_id, 1)
            attached = [each.attributes["attached"] for each in end.result.evidence if "attached" in each.attributes]
            assert attached == ["2"]


@asynccontextmanager
async def _process(home: Path, script: Script, tool: str) -> AsyncIterator[tuple[TaskClient, Any]]:
    policy = home / "policy.yaml"
    policy.write_text(real.POLICY)
    environment = {"TOOLHUB_POLICY_FILE": str(policy), **BRISK}
    async with served(home / "hub", environment=environment) as process, channel_to(process.address) as channel:
        agent = TaskClient(channel, script, f"work/{tool}")
        yield agent, process


async def _offers(agent: TaskClient) -> None:
    """Until the source has been read."""
    registry: Any = RegistryServiceStub(agent.channel)
    (status,) = (await registry.RefreshSources(RefreshSourcesRequest(sources=["work"]), timeout=WITHIN_S)).sources
    assert not status.message, status.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("elicitation", "words"), [("defaults", "User declined"), ("ask", "User declined"), ("decline", "Report: tea\n")]
)
async def test_reference_server_whose_task_asks_goes_on(tmp_path: Path, elicitation: str, words: str) -> None:
    """The older generation: it asks on the stream of tasks/result, and only clients that said that they can be
    asked."""
    async with real.sourced_hub(tmp_path, {"all": real.everything(elicitation=elicitation)}) as hub:
        agent = TaskClient(hub.channel, Script(), "all/simulate-research-query")
        end = (await agent.ended(await agent.submit({"topic": "tea", "ambiguous": True})))[-1]
        assert state(end) == "SUCCEEDED", end.result.error.message
        assert words in json.loads(end.result.result_json)["text"]
